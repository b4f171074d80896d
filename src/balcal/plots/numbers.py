"""The numbers of each chart, computed once: `balcal.plots` and the pages of `balcal report` draw the same records.

Here are those of predictions. Training curves are in `plots/training.py`, shift and OOD in `plots/shift.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from balcal.core import Predictions
from balcal.metrics.bins import Floats, bin_table
from balcal.metrics.bootstrap import wilson
from balcal.metrics.inputs import Rows, first_largest, read
from balcal.metrics.unbinned import sorted_top
from balcal.runs import Run

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """Of each bin: samples, mean confidence, accuracy, and the band of a perfect model; NaN where a bin is empty."""

    count: Floats
    confidence: Floats
    accuracy: Floats
    low: Floats
    """accuracy of a perfect model with as many samples of this confidence: at least this, 39 times of 40"""
    high: Floats

    @property
    def bins(self) -> int:
        return len(self.count)

    @property
    def gap(self) -> Floats:
        return self.confidence - self.accuracy


def reliability_table(predictions: Predictions, bins: int = 15) -> Reliability:
    """Numbers of a reliability diagram.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(), torch.tensor([0, 0]))
    >>> table = reliability_table(p, bins=5)
    >>> table.count.tolist(), table.accuracy.tolist()
    ([0.0, 0.0, 0.0, 1.0, 1.0], [nan, nan, nan, 0.0, 1.0])
    """
    table = bin_table(rows_of(predictions).top(), bins)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = table.conf / table.count, table.right / table.count
    bounds = [perfect_band(int(n), c) if n else (np.nan, np.nan) for n, c in zip(table.count, confidence, strict=True)]
    low, high = np.array(bounds).T
    return Reliability(table.count, confidence, accuracy, low, high)


def perfect_band(count: int, confidence: float) -> tuple[float, float]:
    """The 95 % band for the accuracy of a perfect model: quantiles of the binomial.

    Samples of one bin differ a little in confidence. Taking their mean for all makes the band no narrower.

    >>> perfect_band(10, 0.5)
    (0.2, 0.8)
    """
    hits = np.arange(count + 1)
    below = bdtr(hits, count, min(max(confidence, 0.0), 1.0))
    return tuple(float(np.searchsorted(below, q)) / count for q in (0.025, 0.975))  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Confidences:
    """Histograms of confidence: of the samples that are predicted rightly, and of the others."""

    edges: Floats
    right: Ints
    wrong: Ints

    @property
    def right_share(self) -> Floats:
        return _shares(self.right)

    @property
    def wrong_share(self) -> Floats:
        return _shares(self.wrong)


def _shares(counts: Ints) -> Floats:
    shares: Floats = counts / max(counts.sum(), 1)
    return shares


def confidence_table(predictions: Predictions, bins: int = 20) -> Confidences:
    """Uniform bins over [0, 1], right-closed as everywhere."""
    top = rows_of(predictions).top()
    return Confidences(
        np.linspace(0, 1, bins + 1),
        *(histogram(top.conf[chosen].numpy(), bins) for chosen in (top.right, ~top.right)),
    )


def histogram(confidence: Floats, bins: int) -> Ints:
    """How many of the confidences lie in each of the bins.

    >>> histogram(np.array([0.0, 0.5, 0.51, 1.0]), 2).tolist()
    [2, 2]
    """
    edges = np.arange(1, bins) / bins
    return np.bincount(np.searchsorted(edges, confidence), minlength=bins)


@dataclass(frozen=True, eq=False)
class Classes:
    """Of each class: how often it is predicted, with which mean confidence, and how often rightly."""

    count: Ints
    confidence: Floats
    accuracy: Floats
    low: Floats
    """end of the 95 % interval of accuracy"""
    high: Floats

    @property
    def gap(self) -> Floats:
        return self.confidence - self.accuracy

    def worst(self, most: int) -> Ints:
        """The classes that add most to miscalibration, from over-confident to under-confident."""
        seen = np.flatnonzero(self.count)
        chosen = seen[np.argsort(-np.abs(self.gap * self.count)[seen], kind="stable")][:most]
        order: Ints = chosen[np.argsort(-self.gap[chosen], kind="stable")]
        return order


def class_table(predictions: Predictions) -> Classes:
    rows = rows_of(predictions)
    top, pick = rows.top(), first_largest(rows.table).cpu().numpy()
    count = np.bincount(pick, minlength=rows.num_classes)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(pick, top.conf.numpy(), rows.num_classes) / count
        accuracy = np.bincount(pick, top.right.double().numpy(), rows.num_classes) / count
    bounds = [wilson(a, n).bounds if n else (np.nan, np.nan) for a, n in zip(accuracy.tolist(), count, strict=True)]
    return Classes(count, confidence, accuracy, *np.array(bounds).T)


@dataclass(frozen=True, eq=False)
class Coverage:
    """Risk by coverage: the share of samples answered, the error among them, and the error that the model claims."""

    coverage: Floats
    risk: Floats
    claimed: Floats
    """1 - mean confidence of what is answered; of a calibrated model it is the risk"""
    threshold: Floats
    """the lowest confidence that is answered"""


def coverage_table(predictions: Predictions, points: int | None = None) -> Coverage:
    """At every sample, or at some points of them. Errors among equal confidences are spread evenly.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(), torch.tensor([0, 0]))
    >>> table = coverage_table(p)
    >>> table.risk.tolist(), table.claimed.round(3).tolist(), table.threshold.round(3).tolist()
    ([0.0, 0.5], [0.1, 0.2], [0.9, 0.7])
    """
    conf, right = sorted_top(rows_of(predictions).top())
    n, falling = len(conf), conf[::-1]
    hits = right[-1] - np.append(right[-2::-1], 0.0)
    taken = np.arange(1, n + 1)
    chosen = np.unique(np.linspace(1, n, points).round().astype(int)) if points else taken
    claimed = 1 - np.cumsum(falling) / taken
    return Coverage(chosen / n, *(x[chosen - 1] for x in (1 - hits / taken, claimed, falling)))


def confident_mistakes(predictions: Predictions, most: int) -> list[tuple[int, int, float]]:
    """(sample, predicted class, confidence) of wrong predictions, the most confident first."""
    rows = rows_of(predictions)
    top, pick = rows.top(), first_largest(rows.table)
    wrong = (~top.right).nonzero()[:, 0].numpy()
    order = wrong[np.argsort(-top.conf.numpy()[wrong], kind="stable")][:most]
    return [(int(i), int(pick[i]), float(top.conf[i])) for i in order]


@dataclass(frozen=True)
class Confusion:
    """How often one class is predicted for another, and with which mean confidence."""

    says: int
    """the predicted class"""
    label: int
    count: int
    confidence: float


def confusions(predictions: Predictions, most: int) -> list[Confusion]:
    """The most frequent ones first.

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]).log(), torch.tensor([1, 1, 1]))
    >>> confusions(p, 5)
    [Confusion(says=0, label=1, count=2, confidence=0.85)]
    """
    rows = rows_of(predictions)
    top, pick, labels = rows.top(), first_largest(rows.table).cpu().numpy(), rows.labels.cpu().numpy()
    wrong = ~top.right.numpy()
    pairs, where, count = np.unique(
        pick[wrong] * rows.num_classes + labels[wrong], return_inverse=True, return_counts=True
    )
    mean = np.bincount(where, top.conf.numpy()[wrong], len(pairs)) / count
    order = np.argsort(-count, kind="stable")[:most]
    return [
        Confusion(says, label, int(count[i]), round(float(mean[i]), 6))
        for i in order
        for says, label in [divmod(int(pairs[i]), rows.num_classes)]
    ]


def rows_of(predictions: Predictions) -> Rows:
    return read(None, predictions.log_probs, predictions.labels)


def finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if np.isfinite(value)]


def run_of(source: Run | str | Path) -> Run:
    """The run itself, or the one in this folder."""
    return source if isinstance(source, Run) else Run.at(Path(source))
