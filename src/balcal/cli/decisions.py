"""`balcal decide`: thresholds, prediction sets, costs and groups of a run or of predictions in a file."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.decisions import Decisions, PredictionSets, SetReport, Threshold, decide, prediction_sets, threshold
from balcal.evaluation.prediction_files import read_array, read_source
from balcal.evaluation.promises import Checked, check_threshold, held_out_and_test, remarks_on
from balcal.metrics.groups import GroupVerdict, group_verdict
from balcal.metrics.inputs import read_predictions
from balcal.runs import Run
from balcal.runtime.devices import pick_device


@dataclass(frozen=True)
class DecideOptions:
    """What to decide about, as given on the command line."""

    accuracy: float | None = None
    error_rate: float | None = None
    confidence: float = 0.95
    per_class: bool = False
    sets: float | None = None
    score: str = "lac"
    costs: Path | None = None
    groups: str | None = None


@dataclass(frozen=True)
class DecisionResult:
    """What was found, part by part; prints as sentences."""

    samples: int
    threshold: Threshold | None = None
    checked: Checked | None = None
    sets: PredictionSets | None = None
    sets_checked: SetReport | None = None
    costs: Decisions | None = None
    groups: GroupVerdict | None = None
    remarks: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        parts = {name: value for name, value in vars(self).items() if value is not None}
        return {
            name: value.as_dict() if hasattr(value, "as_dict") else vars(value) if isinstance(value, Checked) else value
            for name, value in parts.items()
        }

    def __str__(self) -> str:
        names = ("threshold", "checked", "sets", "sets_checked", "costs", "groups")
        parts = [getattr(self, name) for name in names if getattr(self, name) is not None]
        return "\n".join([*map(str, parts), *self.remarks])


def decide_about(
    source: str, options: DecideOptions, check: str | None, method: str | None, labels: str | None, kind: str | None
) -> DecisionResult:
    """Choose on a run's calibration split and check on its test split; or choose on one file, check on another."""
    held_out, test, before, remarks = _predictions(source, check, method, labels, kind)
    made: dict[str, Any] = {"remarks": remarks}
    names = None if options.groups is None else _names(options.groups, len(held_out))
    asked = options.sets is None and options.costs is None
    if asked or options.accuracy is not None or options.error_rate is not None:
        made["threshold"] = threshold(
            held_out,
            accuracy=options.accuracy,
            error_rate=options.error_rate,
            confidence=options.confidence,
            per_class=options.per_class,
            groups=names,
        )
        if test is not None and names is None:
            made["checked"] = check_threshold(made["threshold"], test)
    if options.sets is not None:
        alpha = round(1 - options.sets, 12)
        made["sets"] = prediction_sets(held_out, alpha=alpha, method=options.score, per_class=options.per_class)  # type: ignore[arg-type]
        if test is not None:
            made["sets_checked"] = made["sets"].evaluate(log_probs=test.log_probs, labels=test.labels, seed=0)
    if options.costs is not None:
        judged = held_out if test is None else test
        made["costs"] = decide(
            log_probs=judged.log_probs, costs=_matrix(options.costs), labels=judged.labels, before=before
        )
    if names is not None:
        made["groups"] = group_verdict(read_predictions(held_out).top(), names)
    return DecisionResult(len(held_out), **made)


def _predictions(
    source: str, check: str | None, method: str | None, labels: str | None, kind: str | None
) -> tuple[Predictions, Predictions | None, Any, list[str]]:
    """(held out, test, probabilities of the test split before the post-hoc map that was asked for, remarks)."""
    if Path(source).is_dir():
        if check is not None:
            raise BalcalError("--check goes with a file; a run has its own test split")
        run = Run.at(Path(source))
        whole = run.recipe.method + registry.method(method) if method else run.recipe.method
        with run.in_use():
            both = held_out_and_test(run, whole, pick_device())
            before = held_out_and_test(run, run.recipe.method, pick_device())[1].probs if method else None
        return *both, before, remarks_on(run, whole)
    if method is not None:
        raise BalcalError(
            "--with goes with a run; calibrate a file first: balcal calibrate FILE.npz --with ts --apply ..."
        )
    held_out = read_source(source, labels, kind).predictions().for_fitting()
    test = None if check is None else read_source(check, kind=kind).predictions()
    if test is not None and test.log_probs.shape[1] != held_out.log_probs.shape[1]:
        raise BalcalError(f"{check} has {test.log_probs.shape[1]} classes, {source} {held_out.log_probs.shape[1]}")
    return held_out, test, None, []


def _names(source: str, n: int) -> Any:
    """Names of groups: an array of an .npz or .npy file, or a text file with a name in each line."""
    if ".np" in Path(source).suffix or ".npz:" in source:
        return read_array(source, "groups")
    try:
        names = Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise BalcalError(
            f"cannot read {source}: groups are a text file with a name in each line, or an .npy file"
        ) from None
    return np.array(names[1:] if len(names) == n + 1 and names[0].strip().lower() in ("group", "groups") else names)


def _matrix(path: Path) -> Any:
    """A table of costs: a line for each class, a number for each action."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[float(cell) for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    except ValueError:
        raise BalcalError(
            f"{path} must hold numbers only: a line for each true class, a column for each action"
        ) from None
    if not rows or len({len(row) for row in rows}) != 1:
        raise BalcalError(f"{path} must have lines of equally many numbers")
    return rows
