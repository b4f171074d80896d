"""Calibration of the top label: does a confidence of 0.8 mean right in 8 of 10 cases?

Bins are uniform and right-closed, (lo, hi] over (0, 1]; confidence 0 falls into the first, 1 into the last; L1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from balcal.metrics.inputs import read


def bin_of(conf: Tensor, bins: int) -> Tensor:
    """The bin of each confidence, by the edges k / bins themselves: no rounding of a product decides.

    >>> bin_of(torch.tensor([0.0, 0.2, 0.20001, 1.0]), 5)
    tensor([0, 0, 1, 4])
    """
    edges = torch.arange(1, bins, device=conf.device).to(conf.dtype) / bins
    return torch.bucketize(conf, edges)


def signed_gaps(probs: Any, log_probs: Any, labels: Any, bins: int) -> Tensor:
    """Per bin: (sum of confidence - number right) / N. Positive where the model is over-confident."""
    p, _, y = read(probs, log_probs, labels)
    conf, pick = p.max(1)
    gap = conf - (pick == y).double()
    return torch.zeros(bins, dtype=gap.dtype).index_add_(0, bin_of(conf, bins), gap) / len(y)


def ece(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of share x |accuracy - confidence|. Lower is better.

    Four samples, two bins; the second holds confidences 0.6, 0.8, 0.9 (mean 2.3/3), two of them right:

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(ece(probs=p, labels=[0, 1, 0, 1], bins=2), 6)  # (|1 - 0.5| + |2 - 2.3|) / 4
    0.2
    """
    return float(signed_gaps(probs, log_probs, labels, bins).abs().sum())


def over_confidence(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> float:
    """The part of ECE from bins whose confidence exceeds their accuracy. Lower is better.

    >>> over_confidence(probs=[[1.0, 0.0], [1.0, 0.0]], labels=[0, 1])
    0.5
    """
    return float(signed_gaps(probs, log_probs, labels, bins).clamp(min=0).sum())


def under_confidence(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> float:
    """The part of ECE from bins whose accuracy exceeds their confidence. Lower is better.

    >>> under_confidence(probs=[[0.75, 0.25], [0.75, 0.25]], labels=[0, 0])
    0.25
    """
    return float((-signed_gaps(probs, log_probs, labels, bins)).clamp(min=0).sum())


def mean_confidence(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """Mean of the largest probability: to be held against accuracy.

    >>> mean_confidence(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1])
    0.625
    """
    p, _, _ = read(probs, log_probs, labels)
    return float(p.max(1).values.mean())


METRICS = {
    "ece": ece,
    "over_confidence": over_confidence,
    "under_confidence": under_confidence,
    "mean_confidence": mean_confidence,
}
