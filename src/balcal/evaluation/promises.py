"""Decisions of a run: a threshold and prediction sets from its calibration split, checked on its test split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from balcal.build import as_method
from balcal.core import BalcalError, Outputs, Predictions
from balcal.decisions import PredictionSets, SetReport, Threshold, prediction_sets, threshold
from balcal.evaluation.judge import batches_of, calibrated_model, predictions_of
from balcal.evaluation.members import mean_of, members_of
from balcal.evaluation.predict import predict_batches
from balcal.methods.joining import maps_networks
from balcal.metrics.exact import clopper_pearson
from balcal.metrics.inputs import read_predictions
from balcal.recipe import Method
from balcal.runs import Run


@dataclass(frozen=True)
class Checked:
    """What a threshold did on other samples. `..._interval` are 95 %."""

    samples: int
    accepted: int
    coverage: float
    coverage_interval: tuple[float, float]
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.accuracy is None or self.accuracy_interval is None:
            return f"on {self.samples:,} test samples: none is accepted"
        low, high = self.accuracy_interval
        return (
            f"on {self.samples:,} test samples: {self.coverage:.1%} accepted, {self.accuracy:.1%} "
            f"[{low * 100:.1f}, {high * 100:.1f}] of these right"
        )


def check_threshold(found: Threshold, others: Predictions, groups: Any = None) -> Checked:
    """Use a threshold on samples that it was not chosen on."""
    rows = read_predictions(others)
    taken = found.accept(log_probs=others.log_probs, groups=groups)
    right = rows.top().right.numpy()[taken]
    if found.positive is not None:
        right = rows.labels.cpu().numpy()[taken] == found.positive
    n, k, hits = len(rows), int(taken.sum()), int(right.sum())
    known = (hits / k, clopper_pearson(hits, k)) if k else (None, None)
    return Checked(n, k, k / n, clopper_pearson(k, n), *known)


@dataclass(frozen=True, eq=False)
class Promises:
    """A threshold and prediction sets of a model, and how they did on its test split. What cannot be had is None."""

    threshold: Threshold
    checked: Checked
    sets: PredictionSets | None
    set_report: SetReport | None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the card."""
        return {
            "threshold": self.threshold.as_dict(),
            "checked": vars(self.checked),
            "sets": None if self.sets is None else self.sets.as_dict(),
            "sets_checked": None if self.set_report is None else _short(self.set_report),
            "notes": list(self.notes),
        }


def _short(report: SetReport) -> dict[str, Any]:
    return {name: value for name, value in report.as_dict().items() if not name.startswith("by_")}


def promises_of(
    held_out: Predictions, test: Predictions, accuracy: float = 0.99, confidence: float = 0.95, alpha: float = 0.1
) -> Promises:
    """Choose on held-out predictions, check on those of the test split."""
    found = threshold(held_out, accuracy=accuracy, confidence=confidence)
    sets, report, notes = None, None, list[str]()
    try:
        sets = prediction_sets(held_out, alpha=alpha)
        report = sets.evaluate(log_probs=test.log_probs, labels=test.labels)
    except BalcalError as error:
        notes.append(f"no prediction sets: {error}")
    return Promises(found, check_threshold(found, test), sets, report, tuple(notes))


def held_out_and_test(run: Run, method: Method, device: torch.device) -> tuple[Predictions, Predictions]:
    """(calibration, test) predictions after the method's post-hoc map, which is fitted on the calibration split."""
    method = as_method(method)
    if maps_networks(method):
        if parts := members_of(run, method):
            found = zip(*(held_out_and_test(*part, device) for part in parts), strict=True)
            held_out, test = map(mean_of, found)
            return held_out, test
        model, splits = calibrated_model(run, method, device)
        held_out, test = (
            predict_batches(model, batches_of(run, part, device), role=role)
            for part, role in ((splits.calibrate, "calibrate"), (splits.test, "test"))
        )
        return held_out, test
    held_out, test = predictions_of(run, method, device)
    fitted = method.posthoc.fit(Outputs.of(held_out.log_probs), held_out.labels)
    with torch.no_grad():
        held_out, test = (
            Predictions(fitted(Outputs.of(each.log_probs)), each.labels, each.role) for each in (held_out, test)
        )
    return held_out, test


def remarks_on(run: Run, method: Method) -> list[str]:
    """What else the calibration split was used for: then the promise is not quite exact."""
    uses = [] if run.recipe.task.calibrate_size else ["chose the epoch"]
    if "posthoc" in method.changes:
        uses.append(f"fitted {method.changes['posthoc']}")
    if not uses:
        return []
    return [
        f"The same held-out samples {' and '.join(uses)}, so the promise is not quite exact: see the test split."
        + ("" if run.recipe.task.calibrate_size else " A task with calibrate_size has a split of its own for it.")
    ]
