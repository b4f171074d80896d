"""Selective prediction: the error that remains if only the most confident samples are answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, Floats, check_bins, equal_mass
from balcal.metrics.inputs import Rows, TopLabels, read
from balcal.metrics.metric import Metric, by_name
from balcal.metrics.unbinned import ks_of, kuiper_of, sorted_top, weighted_groups


@by_name
def risk_coverage(
    *, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None
) -> tuple[Floats, Floats]:
    """(coverage, risk): the error among the k most confident samples, for k = 1 ... N.

    Among samples of equal confidence errors are spread evenly, so that their order does not matter. With weights,
    coverage is the share of the weight; there is still one point for each sample.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> coverage, risk = risk_coverage(probs=p, labels=[0, 1, 0, 0])
    >>> coverage.tolist(), risk.round(3).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.5, 0.333, 0.25])
    """
    top = read(probs, log_probs, labels, sample_weight).top()
    return risk_curve(sorted_top(top)[1]) if top.weights is None else _weighted_curve(top)


@by_name
def aurc(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Area under the risk-coverage curve: the mean of the risk over k = 1 ... N. Lower is better.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> round(aurc(probs=p, labels=[0, 1, 0, 0]), 6)  # (0 + 1/2 + 1/3 + 1/4) / 4
    0.270833
    """
    return aurc_of(read(probs, log_probs, labels, sample_weight).top())


def risk_curve(right: Floats) -> tuple[Floats, Floats]:
    """From the running number of right answers in ascending confidence, as `sorted_top` counts them."""
    n = len(right)
    taken = np.arange(1, n + 1)
    hits = right[-1] - np.append(right[-2::-1], 0.0)
    return taken / n, 1 - hits / taken


def _descending(top: TopLabels) -> tuple[Floats, Floats]:
    """(weight, weight of the errors) of each distinct confidence, the highest first."""
    _, mass, right = weighted_groups(top)
    return mass[::-1], (mass - right).clip(min=0)[::-1]


def _weighted_curve(top: TopLabels) -> tuple[Floats, Floats]:
    mass, errors = (np.append(0.0, np.cumsum(each)) for each in _descending(top))
    order = np.lexsort((top.mass.numpy(), -top.conf.numpy()))
    taken = np.cumsum(top.mass.numpy()[order])
    return taken / top.total, np.interp(taken, mass, errors) / taken


def aurc_of(top: TopLabels) -> float:
    """The mean of the risk over k = 1 ... N.

    A sample of weight w stands for w equal ones. Over a group of equal samples errors grow by s at each, the risk is
    (a + s k) / k. Its sum over the group is a (H(end) - H(start)) + s w, with harmonic numbers H. They are defined for
    fractions too.
    """
    if top.weights is None:
        return float(risk_curve(sorted_top(top)[1])[1].mean())
    mass, errors = _descending(top)
    end, wrong = np.cumsum(mass), np.cumsum(errors)
    start, share = end - mass, errors / mass
    before = wrong - errors - start * share
    total = before * (digamma(end + 1) - digamma(start + 1)) + errors
    return float(total.sum() / end[-1])


def ranked_figures(top: TopLabels, bins: int = 15) -> dict[str, float]:
    return {
        "adaptive_ece": equal_mass(top, bins).ece(),
        "ks": ks_of(top),
        "kuiper": kuiper_of(top),
        "aurc": aurc_of(top),
    }


class Ranked(Accumulator):
    """Adaptive ECE, KS and Kuiper error and AURC. They rank the samples: nine bytes for each, 17 with weights.

    >>> meter = Ranked()
    >>> meter.update(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
    >>> meter.update(probs=[[0.7, 0.3], [0.6, 0.4]], labels=[0, 0])
    >>> round(meter.compute()["aurc"], 6)
    0.270833
    """

    @by_name
    def __init__(self, bins: int = 15) -> None:
        super().__init__()
        self.bins = check_bins(bins)
        self.conf: list[Tensor] = []
        self.right: list[Tensor] = []
        self.weights: list[Tensor | None] = []

    def add_rows(self, rows: Rows) -> None:
        top = rows.top()
        self.conf.append(top.conf)
        self.right.append(top.right)
        self.weights.append(top.weights)

    def merge(self, other: Accumulator) -> None:
        if not isinstance(other, Ranked) or other.bins != self.bins:
            raise BalcalError(f"cannot merge a {type(other).__name__} into a Ranked of other settings")
        self.conf += other.conf
        self.right += other.right
        self.weights += other.weights

    def compute(self) -> dict[str, float]:
        if not self.conf:
            raise BalcalError("there are no samples to measure: update first")
        weights = None
        if any(each is not None for each in self.weights):
            pairs = zip(self.conf, self.weights, strict=True)
            weights = torch.cat([torch.ones_like(conf) if mass is None else mass for conf, mass in pairs])
        return ranked_figures(TopLabels(torch.cat(self.conf), torch.cat(self.right), weights=weights), self.bins)


METRICS = {
    "aurc": Metric(
        aurc,
        "lower",
        "fraction",
        "1/N sum_k (errors among the k most confident) / k",
        "Geifman, Uziel, El-Yaniv, ICLR 2019",
        {"score": "confidence", "ties": "errors spread evenly"},
    ),
}
