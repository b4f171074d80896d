"""Selective prediction: the error that remains if only the most confident samples are answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, Floats, check_bins, equal_mass
from balcal.metrics.inputs import Rows, TopLabels, read
from balcal.metrics.metric import Metric
from balcal.metrics.unbinned import ks_error, sorted_top


def risk_coverage(*, probs: Any = None, log_probs: Any = None, labels: Any) -> tuple[Floats, Floats]:
    """(coverage, risk): the error among the k most confident samples, for k = 1 ... N.

    Among samples of equal confidence errors are spread evenly, so that their order does not matter.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> coverage, risk = risk_coverage(probs=p, labels=[0, 1, 0, 0])
    >>> coverage.tolist(), risk.round(3).tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.0, 0.5, 0.333, 0.25])
    """
    return risk_curve(sorted_top(read(probs, log_probs, labels).top())[1])


def aurc(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """Area under the risk-coverage curve: the mean of the risk over k = 1 ... N. Lower is better.

    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]
    >>> round(aurc(probs=p, labels=[0, 1, 0, 0]), 6)  # (0 + 1/2 + 1/3 + 1/4) / 4
    0.270833
    """
    return float(risk_coverage(probs=probs, log_probs=log_probs, labels=labels)[1].mean())


def risk_curve(right: Floats) -> tuple[Floats, Floats]:
    """From the running number of right answers in ascending confidence, as `sorted_top` counts them."""
    n = len(right)
    taken = np.arange(1, n + 1)
    hits = right[-1] - np.append(right[-2::-1], 0.0)
    return taken / n, 1 - hits / taken


def ranked_figures(top: TopLabels, bins: int = 15) -> dict[str, float]:
    conf, right = sorted_top(top)
    return {
        "adaptive_ece": equal_mass(top, bins).ece(),
        "ks": ks_error(conf, right),
        "aurc": float(risk_curve(right)[1].mean()),
    }


class Ranked(Accumulator):
    """Adaptive ECE, KS error and AURC. They rank the samples, so memory grows by nine bytes per sample.

    >>> meter = Ranked()
    >>> meter.update(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
    >>> meter.update(probs=[[0.7, 0.3], [0.6, 0.4]], labels=[0, 0])
    >>> round(meter.compute()["aurc"], 6)
    0.270833
    """

    def __init__(self, bins: int = 15) -> None:
        super().__init__()
        self.bins = check_bins(bins)
        self.conf: list[Tensor] = []
        self.right: list[Tensor] = []

    def add_rows(self, rows: Rows) -> None:
        top = rows.top()
        self.conf.append(top.conf)
        self.right.append(top.right)

    def merge(self, other: Accumulator) -> None:
        if not isinstance(other, Ranked) or other.bins != self.bins:
            raise BalcalError(f"cannot merge a {type(other).__name__} into a Ranked of other settings")
        self.conf += other.conf
        self.right += other.right

    def compute(self) -> dict[str, float]:
        if not self.conf:
            raise BalcalError("there are no samples to measure: update first")
        return ranked_figures(TopLabels(torch.cat(self.conf), torch.cat(self.right)), self.bins)


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
