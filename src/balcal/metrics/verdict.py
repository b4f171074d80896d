"""The figures of one set of predictions: all of them by name (`summary`), or the main ones with intervals (`verdict`).

The verdict also has the noise floor, which is what a perfect model would score, and one sentence on what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from balcal.core import BalcalError, Predictions
from balcal.metrics import bootstrap
from balcal.metrics.bins import Floats, bin_table
from balcal.metrics.bootstrap import Interval
from balcal.metrics.calibration import ClassBinSums
from balcal.metrics.inputs import Rows, TopLabels, read, read_predictions
from balcal.metrics.scoring import entropies, losses, per_sample_scores, squares
from balcal.metrics.selective import ranked_figures
from balcal.metrics.unbinned import residual_grid, smooth_error

Kind = Literal["perfect", "over", "under", "mixed"]
Bounds = tuple[float, float]
TELLING = 0.05
"""a noise floor above this hides errors that matter: there are too few samples to conclude anything"""


def top_label(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> dict[str, float]:
    """Every metric of the top label, by name, reading the table once.

    >>> round(top_label(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])["ece"], 6)
    0.35
    """
    return top_label_figures(read(probs, log_probs, labels).top(), bins)


def summary(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> dict[str, float]:
    """Every metric of predictions and labels, by name.

    >>> sorted(summary(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1]))[:5]
    ['accuracy', 'adaptive_ece', 'aurc', 'brier', 'brier_per_class']
    """
    rows = read(probs, log_probs, labels)
    classwise = ClassBinSums(rows.num_classes, bins)
    classwise.add_rows(rows)
    brier = float(squares(rows).mean())
    return {
        **top_label_figures(rows.top(), bins),
        **classwise.compute(),
        "nll": float(losses(rows).mean()),
        "brier": brier,
        "brier_per_class": brier / rows.num_classes,
        "entropy": float(entropies(rows).mean()),
    }


def top_label_figures(top: TopLabels, bins: int) -> dict[str, float]:
    return {
        **bin_table(top, bins).figures(),
        **ranked_figures(top, bins),
        "smooth_ece": smooth_error(residual_grid(top)),
    }


@dataclass(frozen=True)
class Verdict:
    """The figures of a set of predictions, as fractions; printed in percent. `..._interval` are 95 %.

    Where all samples are alike, as a single one is, NLL has no upper bound: its interval ends at infinity.
    """

    samples: int
    classes: int
    accuracy: float
    accuracy_interval: Bounds
    mean_confidence: float
    gap: float
    """mean confidence - accuracy"""
    gap_interval: Bounds
    ece: float
    """uniform bins (lo, hi], L1, top label"""
    ece_interval: Bounds
    """of the ECE without noise; it begins at 0 if the model is indistinguishable from a perfect one"""
    debiased_ece: float
    floor_mean: float
    """noise floor: the mean ECE of perfectly calibrated models with these confidences, on so many samples"""
    floor_high: float
    """its 97.5 % quantile"""
    over: float
    """part of `ece` where confidence exceeds accuracy"""
    under: float
    nll: float
    nll_interval: Bounds
    brier: float
    brier_interval: Bounds
    bins: int = 15
    resamples: int = 1000
    seed: int = 0

    @property
    def kind(self) -> Kind:
        """Indistinguishable from perfect, over-confident, under-confident, or both in different bins."""
        if self.ece <= self.floor_high:
            return "perfect"
        low, high = self.gap_interval
        lesser = min(self.over, self.under)
        if lesser > self.floor_high or (low <= 0 <= high and lesser > self.ece / 5):
            return "mixed"
        return "over" if self.gap > 0 else "under"

    def sentence(self) -> str:
        low, high = self.gap_interval
        direction, (near, far) = ("over", (low, high)) if self.gap > 0 else ("under", (-high, -low))
        by = f"{direction}-confident by {_percent(abs(self.gap))} [{near * 100:.2f}, {far * 100:.2f}]"
        if self.kind == "perfect":
            few = f", but {self.samples:,} samples are too few to tell: {_percent(self.floor_high)} would look alike"
            leaning = f", though {by} on average" if near > 0 else ""
            return "indistinguishable from perfect" + leaning + (few if self.floor_high > TELLING else "")
        if self.kind == "mixed":
            return (
                f"over-confident in some bins ({_percent(self.over)} of ECE), "
                f"under-confident in others ({_percent(self.under)})"
            )
        return by

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: None stands for it."""
        fields = asdict(self)
        for name in ("nll", "nll_interval"):
            fields[name] = _finite_or_none(fields[name])
        return fields

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verdict:
        """From what `as_dict` returned, also if it was stored as JSON in between."""
        return cls(**{name: _or_infinite(value) for name, value in fields.items()})

    def __str__(self) -> str:
        floor = f"a perfect model scores {_percent(self.floor_mean)} on average, up to {_percent(self.floor_high)}"
        parts = f"{self.bins} bins; over {_percent(self.over)}, under {_percent(self.under)}"
        against = f"mean; {self.gap * 100:+.2f} % against accuracy"
        return "\n".join(
            [
                f"{self.samples:,} samples, {self.classes} classes: {self.sentence()}",
                _row("accuracy", self.accuracy, self.accuracy_interval),
                _row("confidence", self.mean_confidence, None, against),
                _row("ECE", self.ece, self.ece_interval, floor),
                _row("debiased", self.debiased_ece, None, parts),
                _row("NLL", self.nll, self.nll_interval, percent=False),
                _row("Brier", self.brier, self.brier_interval, percent=False),
            ]
        )


def verdict(
    predictions: Predictions | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    groups: Any = None,
) -> Verdict:
    """Measure predictions, or arrays by name, and say how certain each figure is.

    With `groups=`, a name for each sample or a mapping of names to masks, it also tests calibration in each group and
    returns a `GroupedVerdict`.

    Two hundred samples at a confidence of 0.9, of which 150 are right:

    >>> print(verdict(probs=[[0.9, 0.1]] * 200, labels=[0] * 150 + [1] * 50))
    200 samples, 2 classes: over-confident by 15.00 % [8.50, 21.00]
      accuracy    75.00 %   [68.57, 80.49]
      confidence  90.00 %                      mean; +15.00 % against accuracy
      ECE         15.00 %   [9.00, 21.00]      a perfect model scores 1.71 % on average, up to 5.00 %
      debiased    15.00 %                      15 bins; over 15.00 %, under 0.00 %
      NLL          0.6547   [0.5118, 0.7865]
      Brier        0.4200   [0.3160, 0.5160]
    """
    bootstrap.check_resampling(bins, resamples, seed)
    rows = _rows(predictions, probs, log_probs, labels)
    top, scores = rows.top(), per_sample_scores(rows)
    figures = bin_table(top, bins).figures()
    floor = bootstrap.noise_floor(top, bins, 2 * resamples, seed)
    drawn = bootstrap.Resamples([top], _finite(scores), bins, resamples, seed)
    intervals = _intervals(top, scores, figures, floor, drawn)
    found = Verdict(
        samples=len(top),
        classes=rows.num_classes,
        accuracy=figures["accuracy"],
        mean_confidence=figures["mean_confidence"],
        gap=intervals["gap"].value,
        ece=figures["ece"],
        debiased_ece=figures["debiased_ece"],
        floor_mean=float(floor.mean()),
        floor_high=float(np.quantile(floor, 0.975)),
        over=figures["over_confidence"],
        under=figures["under_confidence"],
        nll=intervals["nll"].value,
        brier=intervals["brier"].value,
        bins=bins,
        resamples=resamples,
        seed=seed,
        **{f"{name}_interval": interval.bounds for name, interval in intervals.items()},
    )
    if groups is None:
        return found
    from balcal.metrics.groups import grouped

    return grouped(found, top, groups)


def _intervals(
    top: TopLabels, scores: dict[str, Floats], figures: dict[str, float], floor: Floats, drawn: bootstrap.Resamples
) -> dict[str, Interval]:
    """Of accuracy, gap, ECE, NLL and Brier score: from the resamples, and wider where those see no doubt."""
    right = top.right.double().numpy()
    accuracy = bootstrap.wilson(figures["accuracy"], len(top))
    gap = bootstrap.percentile(figures["mean_confidence"] - figures["accuracy"], drawn.gap[0])
    gap = bootstrap.widen_gap(gap, right, accuracy)
    ece = bootstrap.ece_interval(figures["ece"], drawn.ece[0], floor)
    means = {}
    for name, most in (("nll", math.inf), ("brier", 2.0)):
        value = float(scores[name].mean())
        if name in drawn.means:
            found = bootstrap.percentile(value, drawn.means[name])
            means[name] = bootstrap.widen_mean(found, scores[name], right, most)
        else:
            means[name] = Interval(value, value, value)
    return {"accuracy": accuracy, "gap": gap, "ece": bootstrap.widen_ece(ece, right, gap), **means}


def _rows(predictions: Predictions | None, probs: Any, log_probs: Any, labels: Any) -> Rows:
    if predictions is not None:
        if probs is not None or log_probs is not None or labels is not None:
            raise BalcalError("pass predictions, or arrays by name, not both")
        return read_predictions(predictions)
    return read(probs, log_probs, labels)


def _finite(scores: dict[str, Floats]) -> dict[str, Floats]:
    return {name: x for name, x in scores.items() if np.isfinite(x).all()}


def _finite_or_none(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_finite_or_none, value))
    return None if math.isinf(value) else value


def _or_infinite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_or_infinite, value))
    return math.inf if value is None else value


def _percent(share: float) -> str:
    return f"{share * 100:.2f} %"


def _row(name: str, value: float, interval: Bounds | None, more: str = "", percent: bool = True) -> str:
    scale, digits, unit = (100, 2, " %") if percent else (1, 4, "")
    bounds = "" if interval is None else "[" + ", ".join(f"{x * scale:.{digits}f}" for x in interval) + "]"
    return f"  {name:<11}{f'{value * scale:.{digits}f}{unit}':>8}   {bounds:<18} {more}".rstrip()
