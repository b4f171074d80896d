"""Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo: ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration Measure.
ICLR 2023.

With confidence r = max_k p_k and correctness c (a constant for the gradient):

    x_ij = (c_j - r_j) [r_j <= r_i],  j != i
    ESD  = mean_i( mean_j(x_ij)^2 - var_j(x_ij) / (N - 1) )              an unbiased estimate, which may be negative
    L    = CE + weight sqrt(max(0, ESD))

A batch-level loss: it compares the samples of a batch with each other. With several processes, or with accumulated
batches, each part is compared within itself only, which is another loss than that of the whole batch. Where ESD <= 0,
and for fewer than three samples, it is cross-entropy.

Paper and released code differ: the authors compute ESD on batches of their own, from a tenth of the training data
held out for it, with weight 4 on ImageNet-100; here it is the training batch, as in BalCAL's code, with weight 4.
BalCAL's code takes logits for confidences, which is a mistake, with weight 0.5 for one classifier and 4 for two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import at_least_float32
from balcal.methods.mmce import confidences
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Esd:
    """Cross-entropy plus an estimate of how far confidence and correctness drift apart."""

    weight: Annotated[float, at_least(0)] = 4.0

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def estimate(self, logits: Tensor, labels: Tensor) -> Tensor:
        r, c = confidences(logits, labels)
        n = len(r)
        if n < 3:
            return r.new_zeros(())
        another = ~torch.eye(n, dtype=torch.bool, device=r.device)
        x = (c - r).where(another & (r <= r[:, None]), 0.0)
        mean = x.sum(1, keepdim=True) / (n - 1)
        var = (x - mean).square().where(another, 0.0).sum(1) / (n - 2)
        return (mean[:, 0].square() - var / (n - 1)).mean()

    def weighted(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """A sample of weight w counts w times in each mean; equal weights change nothing, weight 0 leaves it out."""
        counted = weights > 0
        z, y, w = at_least_float32(logits)[counted], labels[counted], weights[counted]
        ce, n = w @ F.cross_entropy(z, y, reduction="none") / w.sum(), len(w)
        if n < 3:
            return ce
        r, c = confidences(z, y)
        of = w.expand(n, n).where(~torch.eye(n, dtype=torch.bool, device=w.device), 0.0)
        of = of / of.sum(1, keepdim=True)
        x = (c - r).where(r <= r[:, None], 0.0).expand(n, n)
        mean = (of * x).sum(1, keepdim=True)
        left = of.square().sum(1)
        var = (of * (x - mean).square()).sum(1) / (1 - left)
        esd = w @ (mean[:, 0].square() - var * left) / w.sum()
        return ce + self.weight * esd.where(esd > 0, 1.0).sqrt().where(esd > 0, 0.0)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        esd = self.estimate(z, labels)
        root = esd.where(esd > 0, 1.0).sqrt().where(esd > 0, 0.0)  # the slope of a root at 0 must not be asked for
        return F.cross_entropy(z, labels) + self.weight * root


METHODS = {
    "esd": Method(
        "esd",
        loss=Esd(),
        about="loss: + expected squared difference",
        when="Large batches, and a loss without bins or kernels to choose.",
        paper="Yoon, Tee, Yoon, Yoon, Kim, Li, Yoo",
        venue="ICLR 2023",
        cost="N^2 per batch",
    )
}
