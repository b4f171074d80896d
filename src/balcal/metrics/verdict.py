"""One look at predictions: are they right, do they know how often, and how sure can we be of that?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch

from balcal.core import BalcalError, Predictions
from balcal.metrics import bootstrap as resample
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import Rows, TopLabels, read, read_predictions
from balcal.metrics.scoring import losses, squares

Kind = Literal["perfect", "over", "under", "mixed"]
Bounds = tuple[float, float]


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
    """of the ECE behind the noise; it begins at 0 if the model cannot be told from a perfect one"""
    debiased_ece: float
    floor_mean: float
    """ECE that a perfectly calibrated model with these confidences scores on average on so many samples"""
    floor_high: float
    """and what it exceeds one time in forty"""
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
            return "indistinguishable from perfect" + (f", though {by} on average" if near > 0 else "")
        if self.kind == "mixed":
            return (
                f"over-confident in some bins ({_percent(self.over)} of ECE), "
                f"under-confident in others ({_percent(self.under)})"
            )
        return by

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: None stands for it."""
        told = asdict(self)
        for name in ("nll", "nll_interval"):
            told[name] = _finite_or_none(told[name])
        return told

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Verdict:
        """From what `as_dict` made, also after a journey through JSON."""
        return cls(**{name: _or_infinite(value) for name, value in told.items()})

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
) -> Verdict:
    """Judge predictions, or arrays by name.

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
    resample.check_resampling(bins, resamples, seed)
    rows = _rows(predictions, probs, log_probs, labels)
    top, values = _measured(rows)
    figures, right = bin_table(top, bins).figures(), top.right.double().numpy()
    floor = resample.noise_floor(top, bins, 2 * resamples, seed)
    drawn = resample.Resamples([top], _finite(values), bins, resamples, seed)
    accuracy = resample.wilson(figures["accuracy"], len(top))
    gap = resample.percentile(figures["mean_confidence"] - figures["accuracy"], drawn.gap[0])
    gap = resample.around_gap(gap, right, accuracy)
    ece = resample.around_ece(figures["ece"], drawn.ece[0], floor)

    def mean(name: str, most: float) -> resample.Interval:
        value = float(values[name].mean())
        if name not in drawn.means:
            return resample.Interval(value, value, value)
        return resample.around_equal(resample.percentile(value, drawn.means[name]), values[name], right, most)

    nll, brier = mean("nll", math.inf), mean("brier", 2.0)
    return Verdict(
        samples=len(top),
        classes=rows.num_classes,
        accuracy=figures["accuracy"],
        accuracy_interval=accuracy.bounds,
        mean_confidence=figures["mean_confidence"],
        gap=gap.value,
        gap_interval=gap.bounds,
        ece=figures["ece"],
        ece_interval=resample.around_ece_of_one_kind(ece, right, gap).bounds,
        debiased_ece=figures["debiased_ece"],
        floor_mean=float(floor.mean()),
        floor_high=float(np.quantile(floor, 0.975)),
        over=figures["over_confidence"],
        under=figures["under_confidence"],
        nll=nll.value,
        nll_interval=nll.bounds,
        brier=brier.value,
        brier_interval=brier.bounds,
        bins=bins,
        resamples=resamples,
        seed=seed,
    )


@dataclass(frozen=True)
class Comparison:
    """Second model minus first, on the same samples; 95 % intervals from resampling both together."""

    samples: int
    accuracy: resample.Interval
    nll: resample.Interval
    brier: resample.Interval
    ece: resample.Interval
    bins: int = 15
    names: tuple[str, str] = ("the first", "the second")

    def sentence(self) -> str:
        told = []
        for title, found, sign in (("accuracy", self.accuracy, 1), ("NLL", self.nll, -1), ("ECE", self.ece, -1)):
            tie = "the same" if found.low == found.high == 0 else "a tie" if found.low <= 0 <= found.high else ""
            told.append(f"{title} {tie or ('better' if found.value * sign > 0 else 'worse')}")
        return f"{self.names[1]} against {self.names[0]}: " + ", ".join(told)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Comparison:
        """From what `as_dict` made, also after a journey through JSON."""
        try:
            parts = {name: resample.Interval(**value) for name, value in told.items() if isinstance(value, dict)}
            return cls(**{**told, **parts, "names": tuple(told["names"])})
        except (TypeError, KeyError, AttributeError):
            raise BalcalError("this is not a comparison as `as_dict` makes it: compare the models again") from None

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples, {self.sentence()}"]
        for name, title in (("accuracy", "accuracy"), ("ece", "ECE"), ("nll", "NLL"), ("brier", "Brier")):
            found: resample.Interval = getattr(self, name)
            scale, digits = (100, 2) if name in ("accuracy", "ece") else (1, 4)
            value, low, high = (f"{x * scale:+.{digits}f}" for x in (found.value, found.low, found.high))
            lines.append(f"  {title:<11}{value:>8}{' %' if scale == 100 else '  '}   [{low}, {high}]")
        return "\n".join(lines)


def compare(
    first: Predictions,
    second: Predictions,
    names: tuple[str, str] = ("the first", "the second"),
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """The difference of two models on the same samples, second minus first, by a paired bootstrap.

    >>> y = torch.tensor([0] * 150 + [1] * 50)
    >>> hot, warm = (Predictions(torch.tensor([[p, 1 - p]] * 200).log(), y) for p in (0.9, 0.76))
    >>> print(compare(hot, warm))
    200 samples, the second against the first: accuracy the same, NLL better, ECE better
      accuracy      +0.00 %   [+0.00, +0.00]
      ECE          -14.00 %   [-17.41, -4.71]
      NLL         -0.0921     [-0.1547, -0.0242]
      Brier       -0.0448     [-0.0784, -0.0084]
    """
    resample.check_resampling(bins, resamples, seed)
    if not isinstance(names, tuple | list) or [type(name) for name in names] != [str, str]:
        raise BalcalError(f"names must be those of the two models, not {names!r:.60}")
    both = [read_predictions(p) for p in (first, second)]
    if not torch.equal(*(rows.labels.cpu() for rows in both)):
        raise BalcalError("these predictions are not of the same samples: their labels differ")
    (top_a, values_a), (top_b, values_b) = map(_measured, both)
    if not all(np.isfinite(x).all() for x in (*values_a.values(), *values_b.values())):
        raise BalcalError("a label was given probability 0, its NLL is infinite: there is nothing to subtract")
    right = (top_b.right.double() - top_a.right.double()).numpy()
    values = {name: values_b[name] - values_a[name] for name in values_a} | {"accuracy": right}
    if len(top_a) == 1 or (all(x.min() == x.max() for x in values.values()) and any(x[0] for x in values.values())):
        raise BalcalError(
            f"the difference is the same in all of {len(top_a):,} samples, so resampling cannot say how sure it is: "
            "compare the models on more samples"
        )
    drawn = resample.Resamples([top_a, top_b], values, bins, resamples, seed)
    eces = (bin_table(top_a, bins).ece(), bin_table(top_b, bins).ece())
    floors = (
        resample.noise_floor(top_a, bins, 2 * resamples, seed),
        resample.noise_floor(top_b, bins, 2 * resamples, seed),
    )
    means = {name: resample.percentile(float(x.mean()), drawn.means[name]) for name, x in values.items()}
    return Comparison(
        samples=len(top_a),
        ece=resample.around_difference(eces, drawn.ece[1] - drawn.ece[0], floors),
        bins=bins,
        names=(names[0], names[1]),
        **means,
    )


def _rows(predictions: Predictions | None, probs: Any, log_probs: Any, labels: Any) -> Rows:
    if predictions is not None:
        if probs is not None or log_probs is not None or labels is not None:
            raise BalcalError("pass predictions, or arrays by name, not both")
        return read_predictions(predictions)
    return read(probs, log_probs, labels)


def _measured(rows: Rows) -> tuple[TopLabels, dict[str, resample.Floats]]:
    return rows.top(), {"nll": losses(rows).numpy(), "brier": squares(rows).numpy()}


def _finite(values: dict[str, resample.Floats]) -> dict[str, resample.Floats]:
    return {name: x for name, x in values.items() if np.isfinite(x).all()}


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
