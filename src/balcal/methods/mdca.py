"""Hebbalaguppe, Prakash, Madan, Arora: A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved Neural
Network Calibration. CVPR 2022.

    L = CE + beta mean_k | mean_i p_ik - share of class k in the batch |

A batch-level loss: the shares are those of the batch, and noisy if it is small. With several processes, or with
accumulated batches, each part has shares of its own, which is another loss than that of the whole batch.

Paper and released code differ: BalCAL's code offers the added term alone, without a classification loss; we do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Mdca:
    """Cross-entropy plus the distance between mean probabilities and class frequencies."""

    beta: Annotated[float, at_least(0)] = 1.0

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def term(self, logits: Tensor, labels: Tensor) -> Tensor:
        p = logits.softmax(1)
        onehot = torch.zeros_like(p).scatter(1, labels[:, None], 1.0)
        return (p.mean(0) - onehot.mean(0)).abs().mean()

    def weighted(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        z, w = at_least_float32(logits), weights / weights.sum()
        onehot = torch.zeros_like(z).scatter(1, labels[:, None], 1.0)
        apart = (w @ (z.softmax(1) - onehot)).abs().mean()
        return w @ F.cross_entropy(z, labels, reduction="none") + self.beta * apart

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        return F.cross_entropy(z, labels) + self.beta * self.term(z, labels)


METHODS = {
    "mdca": Method(
        "mdca",
        loss=Mdca(),
        about="loss: + mean p_k against class frequencies",
        when="Class frequencies matter: it calibrates each class, not only the top one.",
        paper="Hebbalaguppe, Prakash, Madan, Arora",
        venue="CVPR 2022",
    )
}
