"""The main figures of one set of predictions, with intervals.

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
from balcal.metrics.bins import Floats, bin_sizes, bin_table
from balcal.metrics.bootstrap import Interval
from balcal.metrics.details import Details
from balcal.metrics.inputs import Rows, TopLabels, read, read_predictions
from balcal.metrics.metric import by_name, finite_or_none, or_infinite
from balcal.metrics.scoring import per_sample_scores
from balcal.runtime.values import check_number

Kind = Literal["perfect", "few", "over", "under", "mixed"]
Bounds = tuple[float, float]
MATTERS = 0.03
"""a gap between confidence and accuracy that matters, unless a user says otherwise: three points"""


@dataclass(frozen=True)
class Verdict:
    """The figures of a set of predictions, as fractions; printed in percent. `..._interval` are 95 %.

    Where all samples are alike, NLL has no upper bound: its interval ends at infinity.

    >>> verdict(probs=[[0.9, 0.1]] * 200, labels=[0] * 150 + [1] * 50).sentence()
    'over-confident by 15.00 % [8.50, 21.00]'
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
    matters: float = MATTERS
    """the smallest gap that matters"""
    effective_samples: float | None = None
    """with weights: how many samples of equal weight say as much"""
    details: Details | None = None
    """tests of perfect calibration, and a decomposition of the scores, if asked for"""

    @property
    def kind(self) -> Kind:
        """Indistinguishable from perfect, over-confident, under-confident, or both in different bins; `few`: neither a
        perfect model nor a gap that matters can be ruled out."""
        if self.ece <= self.floor_high:
            return "few" if self.could_hide > self.matters else "perfect"
        low, high = self.gap_interval
        lesser = min(self.over, self.under)
        if lesser > self.floor_high or (low <= 0 <= high and lesser > self.ece / 5):
            return "mixed"
        return "over" if self.gap > 0 else "under"

    @property
    def could_hide(self) -> float:
        """The largest gap that these samples do not rule out: the upper end of the intervals of ECE and of the gap."""
        return max(self.ece_interval[1], *map(abs, self.gap_interval))

    @property
    def samples_needed(self) -> int | None:
        """About how many samples would tell a gap that matters; none, if these do.

        Intervals shrink with the square root of the number of samples. The present ones depend on chance, so we also
        take what a perfect model of the same confidences would get: the noise floor, and the width of an interval.
        """
        if self.kind != "few":
            return None
        typical = 2.2 * self.floor_high - 1.2 * self.floor_mean
        needed = self.samples * (max(self.could_hide, typical) / self.matters) ** 2
        digits = int(10 ** max(0, math.floor(math.log10(needed)) - 1))
        return math.ceil(needed / digits) * digits

    def sentence(self) -> str:
        low, high = self.gap_interval
        direction, (near, far) = ("over", (low, high)) if self.gap > 0 else ("under", (-high, -low))
        by = f"{direction}-confident by {_percent(abs(self.gap))} [{near * 100:.2f}, {far * 100:.2f}]"
        though = f", though {by} on average" if near > 0 else ""
        if self.kind == "perfect":
            return f"indistinguishable from perfect{though}"
        if self.kind == "few":
            return (
                f"too few samples to tell: a gap of up to {_percent(self.could_hide)} could hide{though}; "
                f"about {self.samples_needed:,} would do"
            )
        if self.kind == "mixed":
            return (
                f"over-confident in some bins ({_percent(self.over)} of ECE), "
                f"under-confident in others ({_percent(self.under)})"
            )
        return by

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: None stands for it."""
        fields = asdict(self)
        fields["details"] = self.details and self.details.as_dict()
        for name in ("effective_samples", "details"):
            if fields[name] is None:
                del fields[name]
        for name in ("nll", "nll_interval"):
            fields[name] = finite_or_none(fields[name])
        return fields

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Verdict:
        """From what `as_dict` returned, also if it was stored as JSON in between."""
        found = {name: or_infinite(value) for name, value in fields.items() if name != "details"}
        return cls(**found, details=Details.of(fields["details"]) if fields.get("details") else None)

    def __str__(self) -> str:
        floor = f"a perfect model scores {_percent(self.floor_mean)} on average, up to {_percent(self.floor_high)}"
        parts = f"{self.bins} bins; over {_percent(self.over)}, under {_percent(self.under)}"
        against = f"mean; {self.gap * 100:+.2f} % against accuracy"
        size = f"{self.samples:,} samples"
        if self.effective_samples is not None:
            size += f" (weighted, worth {self.effective_samples:,.0f})"
        return "\n".join(
            [
                f"{size}, {self.classes} classes: {self.sentence()}",
                _row("accuracy", self.accuracy, self.accuracy_interval),
                _row("confidence", self.mean_confidence, None, against),
                _row("ECE", self.ece, self.ece_interval, floor),
                _row("debiased", self.debiased_ece, None, parts),
                _row("NLL", self.nll, self.nll_interval, percent=False),
                _row("Brier", self.brier, self.brier_interval, percent=False),
                *(f"  {line}" for line in (self.details.lines() if self.details else [])),
            ]
        )


@by_name
def verdict(
    predictions: Predictions | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    sample_weight: Any = None,
    matters: float = MATTERS,
    details: bool = False,
    recalibrate: Any = None,
    groups: Any = None,
) -> Verdict:
    """Measure predictions, or arrays by name, and say how certain each figure is.

    Parameters
    ----------
    predictions
        What `balcal.predict` returned; or pass arrays by name.
    probs, log_probs
        (N, K); of two classes (N,) will do, the probability of class 1.
    labels
        (N,) class indices.
    bins, resamples, seed
        Of ECE, and of the bootstrap.
    sample_weight
        (N,): figures count a sample of weight 2 twice. Intervals and noise floor resample samples, not copies, and the
        accuracy has Wilson's interval for the effective number of samples, (sum w)^2 / sum w^2.
    matters
        The smallest gap between confidence and accuracy that matters. Where the samples rule out neither a perfect
        model nor such a gap, the verdict is that they are too few.
    details, recalibrate
        Add tests of perfect calibration with p-values, and what NLL and Brier score are made of, by `recalibrate` as in
        `decomposition`.
    groups
        A name for each sample, or a mapping of names to masks: calibration is also tested in each group, and a
        `GroupedVerdict` returned.

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
    if not 0 < check_number(matters, "the gap that matters") < 1:
        raise BalcalError(f"the gap that matters must lie between 0 and 1, not {matters}")
    rows = _rows(predictions, probs, log_probs, labels, sample_weight)
    if len(rows) < 2:
        raise BalcalError("one sample says nothing about calibration: a verdict needs at least two, better hundreds")
    top, scores = rows.top(), per_sample_scores(rows)
    table = bin_table(top, bins)
    figures = table.figures()
    if top.weights is not None:  # a sample is one observation, however often it counts
        figures["debiased_ece"] = table.debiased_ece(bin_sizes(top, bins))
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
        matters=float(matters),
        effective_samples=None if top.weights is None else top.effective,
        details=Details.of_rows(rows, recalibrate) if details else None,
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
    accuracy = bootstrap.wilson(min(figures["accuracy"], 1.0), top.effective)
    gap = bootstrap.percentile(figures["mean_confidence"] - figures["accuracy"], drawn.gap[0])
    gap = bootstrap.widen_gap(gap, right, accuracy)
    ece = bootstrap.ece_interval(figures["ece"], drawn.ece[0], floor)
    means = {}
    for name, most in (("nll", math.inf), ("brier", 2.0)):
        value = bootstrap.mean_of(scores[name], top.weights)
        if name in drawn.means:
            found = bootstrap.percentile(value, drawn.means[name])
            means[name] = bootstrap.widen_mean(found, scores[name], right, most, top.effective)
        else:
            means[name] = Interval(value, value, value)
    return {"accuracy": accuracy, "gap": gap, "ece": bootstrap.widen_ece(ece, right, gap), **means}


def _rows(predictions: Predictions | None, probs: Any, log_probs: Any, labels: Any, sample_weight: Any) -> Rows:
    if predictions is not None:
        if probs is not None or log_probs is not None or labels is not None:
            raise BalcalError("pass predictions, or arrays by name, not both")
        return read_predictions(predictions, sample_weight)
    return read(probs, log_probs, labels, sample_weight)


def _finite(scores: dict[str, Floats]) -> dict[str, Floats]:
    return {name: x for name, x in scores.items() if np.isfinite(x).all()}


def _percent(share: float) -> str:
    return f"{share * 100:.2f} %"


def _row(name: str, value: float, interval: Bounds | None, more: str = "", percent: bool = True) -> str:
    scale, digits, unit = (100, 2, " %") if percent else (1, 4, "")
    bounds = "" if interval is None else "[" + ", ".join(f"{x * scale:.{digits}f}" for x in interval) + "]"
    return f"  {name:<11}{f'{value * scale:.{digits}f}{unit}':>8}   {bounds:<18} {more}".rstrip()
