"""`balcal calibrate` for predictions in files: fit a post-hoc method on one, apply it to another, compare."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from balcal.build import spec_of
from balcal.core import BalcalError, Outputs, Predictions
from balcal.evaluation.prediction_files import read_source
from balcal.methods.parts.fitted_map import explained
from balcal.metrics.comparison import Comparison, compare
from balcal.metrics.inputs import read_predictions
from balcal.metrics.scoring import losses
from balcal.metrics.verdict import Verdict, verdict
from balcal.runtime.files import write_atomic


@dataclass(frozen=True)
class CalibrationResult:
    """What a post-hoc method changes: on the predictions it was fitted on, and on others, if given."""

    method: str
    fitted: str
    fit_nll: tuple[float, float]
    """on the set it was fitted on, before and after"""
    explained: dict[str, str] = field(default_factory=dict)
    """what `auto` chose, and why"""
    before: Verdict | None = None
    after: Verdict | None = None
    difference: Comparison | None = None

    def as_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "method": self.method,
            "fitted": self.fitted,
            "fit_nll": list(map(_known, self.fit_nll)),
            **self.explained,
        }
        for name in ("before", "after", "difference"):
            part = getattr(self, name)
            if part is not None:
                result[name] = part.as_dict()
        return result

    def __str__(self) -> str:
        lines = [
            f"{self.method}: {self.fitted}, NLL where it was fitted {self.fit_nll[0]:.4f} -> {self.fit_nll[1]:.4f}"
        ]
        lines += [self.explained["why"]] if self.explained else []
        if self.difference is None:
            return "\n".join(lines) + "\n(evaluate it on other samples: --apply FILE.npz)"
        return "\n".join([*lines, "before", str(self.before), "after", str(self.after), str(self.difference)])


def calibrate_arrays(
    source: str, method: str, apply: str | None, labels: str | None, kind: str | None, out: Path | None
) -> CalibrationResult:
    """Fit on the predictions in `source`; calibrate and evaluate those in `apply`; write them to `out`."""
    held_out = read_source(source, labels, kind).predictions().for_fitting()
    fitted = spec_of(method).fit(Outputs.of(held_out.log_probs), held_out.labels)
    fit_nll = _nll(held_out, fitted)
    if apply is None:
        if out is not None:
            raise BalcalError("--out needs --apply: say which predictions are to be calibrated")
        return CalibrationResult(method, str(fitted), fit_nll, explained(fitted))
    others = read_source(apply, kind=kind).predictions()
    if torch.equal(others.labels, held_out.labels) and torch.equal(others.log_probs, held_out.log_probs):
        raise BalcalError(f"{apply} holds the very predictions that were fitted on: evaluate on other samples")
    if others.log_probs.shape[1] != held_out.log_probs.shape[1]:
        raise BalcalError(f"{apply} has {others.log_probs.shape[1]} classes, {source} {held_out.log_probs.shape[1]}")
    with torch.no_grad():
        calibrated = Predictions(fitted(Outputs.of(others.log_probs)), others.labels, others.role)
    difference = compare(others, calibrated, names=("no calibration", method))
    result = CalibrationResult(
        method, str(fitted), fit_nll, explained(fitted), verdict(others), verdict(calibrated), difference
    )
    if out is not None:
        buffer = io.BytesIO()
        np.savez(buffer, probs=calibrated.probs.numpy(), labels=calibrated.labels.numpy())
        write_atomic(out, buffer.getvalue())
    return result


def _nll(held_out: Predictions, fitted: torch.nn.Module) -> tuple[float, float]:
    with torch.no_grad():
        after = Predictions(fitted(Outputs.of(held_out.log_probs)), held_out.labels)
    before, now = (float(losses(read_predictions(each)).mean()) for each in (held_out, after))
    return before, now


def _known(value: float) -> float | None:
    """None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
