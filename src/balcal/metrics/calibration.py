"""Calibration of the top label, in bins: does a confidence of 0.8 mean right in 8 of 10 cases?

By default there are 15 bins, uniform and right-closed, (lo, hi] over (0, 1]. Confidence 0 falls into the first, 1 into
the last. Of equally probable classes the first is the prediction. Empty bins count nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, bin_of, bin_table, check_bins, equal_mass, zeros
from balcal.metrics.inputs import Rows, read
from balcal.metrics.metric import UNIFORM, Metric, by_name
from balcal.runtime.values import check_whole


@by_name
def ece(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None) -> float:
    """Expected calibration error: sum over bins of share x |accuracy - confidence|. Lower is better.

    Four samples, two bins; the second holds confidences 0.6, 0.8, 0.9 (mean 2.3/3), two of them right:

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(ece(probs=p, labels=[0, 1, 0, 1], bins=2), 6)  # (|1 - 0.5| + |2 - 2.3|) / 4
    0.2
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).ece()


@by_name
def mce(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None) -> float:
    """Maximum calibration error: the largest |accuracy - confidence| of any bin. Lower is better.

    A bin with one sample counts as much as one with a thousand, so this is mostly noise.

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> mce(probs=p, labels=[0, 1, 0, 1], bins=2)  # the first bin holds 0.5, and it is right
    0.5
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).mce()


@by_name
def rmsce(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None) -> float:
    """Root mean squared calibration error over the bins. Lower is better.

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(rmsce(probs=p, labels=[0, 1, 0, 1], bins=2), 6)  # sqrt((1 x 0.5^2 + 3 x 0.1^2) / 4)
    0.264575
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).rmsce()


@by_name
def debiased_ece(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """ECE less the part that noise adds, to first order, and not below 0. Lower is better.

    ECE takes the absolute value of noisy gaps, so even a perfect model scores above 0. With m the gap in a bin and
    s^2 = acc (1 - acc) / n its variance, noise adds E|N(m, s^2)| - |m|. That much is subtracted.

    A bin of 100 samples at 0.75, 75 of them right, has a gap of 0; one right answer less, and it is all noise still:

    >>> p = [[0.75, 0.25]] * 100
    >>> round(ece(probs=p, labels=[0] * 74 + [1] * 26), 6)
    0.01
    >>> debiased_ece(probs=p, labels=[0] * 74 + [1] * 26)
    0.0
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).debiased_ece()


@by_name
def over_confidence(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """The part of ECE from bins whose confidence exceeds their accuracy. Lower is better.

    >>> over_confidence(probs=[[1.0, 0.0], [1.0, 0.0]], labels=[0, 1])
    0.5
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).over()


@by_name
def under_confidence(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """The part of ECE from bins whose accuracy exceeds their confidence. Lower is better.

    >>> under_confidence(probs=[[0.75, 0.25], [0.75, 0.25]], labels=[0, 0])
    0.25
    """
    return bin_table(read(probs, log_probs, labels, sample_weight).top(), bins).under()


@by_name
def adaptive_ece(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """ECE over bins of equal mass (AECE). Lower is better.

    The edges are the confidences of rank N/bins, 2N/bins, ...; bins are (lo, hi], the first holds the smallest
    confidence too, and equal confidences stay together.

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(adaptive_ece(probs=p, labels=[0, 1, 0, 1], bins=2), 6)  # (|1 - 1.1| + |2 - 1.7|) / 4
    0.1
    """
    return equal_mass(read(probs, log_probs, labels, sample_weight).top(), bins).ece()


@by_name
def classwise_ece(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """Mean over classes of the ECE of "this sample is class k", each over all samples. Lower is better.

    With two classes and one bin: class 0 is given 0.9 + 0.6 in all and occurs once, class 1 the mirror image.

    >>> round(classwise_ece(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1], bins=1), 6)  # |1.5 - 1| / 2, twice
    0.25
    """
    rows = read(probs, log_probs, labels, sample_weight)
    sums = ClassBinSums(rows.num_classes, bins)
    sums.add_rows(rows)
    return sums.compute()["classwise_ece"]


@by_name
def binary_ece(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> float:
    """ECE of the probability of class 1, for two classes: does 0.2 mean that 2 in 10 are of class 1? Lower is better.

    `ece` looks at the top label: confidences from 0.5 to 1, and whether the answer is right. Here bins run over the
    probability of class 1, from 0 to 1, and are compared with the share of class 1. A probability of 0.2 and one of 0.8
    share a bin of `ece`, where their errors may cancel; here they do not.

    >>> round(binary_ece(probs=[0.2, 0.2, 0.9, 0.9], labels=[0, 1, 1, 1], bins=2), 6)  # (|0.4 - 1| + |1.8 - 2|) / 4
    0.2
    """
    rows = read(probs, log_probs, labels, sample_weight)
    if rows.num_classes != 2:
        raise BalcalError(f"binary_ece is for two classes, not {rows.num_classes}: use ece or classwise_ece")
    return class_1_ece(rows, bins)


def class_1_ece(rows: Rows, bins: int) -> float:
    sums = ClassBinSums(2, bins)
    sums.add_rows(rows)
    return sums.compute()["binary_ece"]


@by_name
def mean_confidence(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Mean of the largest probability, to compare with accuracy.

    >>> mean_confidence(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1])
    0.625
    """
    rows = read(probs, log_probs, labels, sample_weight)
    return rows.mean(rows.top().conf)


class ClassBinSums(Accumulator):
    """Class-wise ECE from K x 15 numbers; of two classes also that of class 1.

    >>> meter = ClassBinSums(num_classes=2, bins=1)
    >>> meter.update(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])
    >>> {name: round(value, 6) for name, value in meter.compute().items()}
    {'classwise_ece': 0.25, 'binary_ece': 0.25}
    """

    @by_name
    def __init__(self, num_classes: int, bins: int = 15) -> None:
        super().__init__()
        self.num_classes, self.bins = check_whole(num_classes, "the number of classes", 2), check_bins(bins)
        self.sums = {"gap": zeros(self.num_classes * self.bins), "count": zeros(1)}

    def add_rows(self, rows: Rows) -> None:
        if rows.num_classes != self.num_classes:
            raise BalcalError(f"this counts {self.num_classes} classes, and the predictions have {rows.num_classes}")
        offsets = torch.arange(self.num_classes, device=rows.table.device) * self.bins
        gap, start = torch.zeros_like(self.sums["gap"]), 0
        for _, probs, labels in rows.chunks():
            place = bin_of(probs, self.bins, None if rows.logs else rows.table.dtype) + offsets
            wide, mine = probs.double(), place.gather(1, labels[:, None])[:, 0]
            mass = None
            if rows.weights is not None:
                mass = rows.weights[start : start + len(labels)].to(wide.device)
                wide = wide * mass[:, None]
            gap += torch.bincount(place.flatten(), wide.flatten(), len(gap)).cpu()
            gap -= torch.bincount(mine, mass, len(gap)).cpu()
            start += len(labels)
        self.sums["gap"] += gap
        self.sums["count"] += rows.total

    def compute(self) -> dict[str, float]:
        gaps, count = self.sums["gap"].abs(), self.checked_count()
        found = {"classwise_ece": float(gaps.sum()) / count / self.num_classes}
        return found if self.num_classes > 2 else found | {"binary_ece": float(gaps[self.bins :].sum()) / count}


_GUO = "Naeini, Cooper, Hauskrecht, AAAI 2015; Guo et al., ICML 2017"

METRICS = {
    "ece": Metric(ece, "lower", "fraction", "sum_b n_b/N |acc_b - conf_b|", _GUO, {**UNIFORM, "norm": "L1"}),
    "mce": Metric(mce, "lower", "fraction", "max_b |acc_b - conf_b|", _GUO, {**UNIFORM, "norm": "max"}),
    "rmsce": Metric(
        rmsce,
        "lower",
        "fraction",
        "sqrt( sum_b n_b/N (acc_b - conf_b)^2 )",
        "Hendrycks, Mazeika, Dietterich, ICLR 2019",
        {**UNIFORM, "norm": "L2"},
    ),
    "debiased_ece": Metric(
        debiased_ece,
        "lower",
        "fraction",
        "max(0, ECE - sum_b n_b/N ( E|N(m_b, s_b^2)| - |m_b| ))",
        "after Kumar, Liang, Ma, NeurIPS 2019, with the expectation in closed form",
        {**UNIFORM, "norm": "L1"},
    ),
    "over_confidence": Metric(
        over_confidence,
        "lower",
        "fraction",
        "sum_b n_b/N max(0, conf_b - acc_b)",
        "the positive part of ECE",
        {**UNIFORM, "norm": "L1"},
    ),
    "under_confidence": Metric(
        under_confidence,
        "lower",
        "fraction",
        "sum_b n_b/N max(0, acc_b - conf_b)",
        "the negative part of ECE",
        {**UNIFORM, "norm": "L1"},
    ),
    "adaptive_ece": Metric(
        adaptive_ece,
        "lower",
        "fraction",
        "sum_b n_b/N |acc_b - conf_b|",
        "Nguyen, O'Connor, EMNLP 2015",
        {"of": "top label", "bins": 15, "edges": "order statistics of rank kN/15, (lo, hi]", "norm": "L1"},
    ),
    "classwise_ece": Metric(
        classwise_ece,
        "lower",
        "fraction",
        "1/K sum_k sum_b n_kb/N |freq_kb - conf_kb|",
        "Kull et al., NeurIPS 2019; Nixon et al., CVPR workshops 2019",
        {**UNIFORM, "of": "each class against the rest", "norm": "L1"},
    ),
    "binary_ece": Metric(
        binary_ece,
        "lower",
        "fraction",
        "sum_b n_b/N |freq_b - mean p_b|, p the probability of class 1",
        "Naeini, Cooper, Hauskrecht, AAAI 2015",
        {**UNIFORM, "of": "class 1 of two", "norm": "L1"},
    ),
    "mean_confidence": Metric(
        mean_confidence, "neither", "fraction", "1/N sum_i max_k p_ik", "to compare with accuracy"
    ),
}
