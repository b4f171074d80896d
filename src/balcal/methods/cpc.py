"""Cheng, Vasconcelos: Calibrating Deep Neural Networks by Pairwise Constraints. CVPR 2022.

With sp(x) = log(1 + exp(x)):

    L   = CE + bdc BDC + bec BEC
    BDC = mean_i( 1/(K-1) sum over k != y of sp(z_k - z_y) )                         the label against each other class
    BEC = mean_i( 1/((K-1)(K-2)) sum over i, j != y of 1/2 sp(z_j - z_i) )           the other classes among each other

BEC is smallest when the other logits are all equal; it is then about ln(2) / 2, not 0. For K = 2 there is only one
other class, and BEC is 0. Each sample stands for itself, so processes and accumulated batches add up.

The K^2 pairs are never all in memory. A pair i, j and its mirror j, i together are |d| / 2 + log(1 + exp(-|d|)) with
d = z_i - z_j; once the logits are sorted, pairs s ranks apart are two slices, and s runs from 1 to K - 2.

Paper and released code differ: the code in general use includes the pairs i = j, a constant ln(2) / (2 (K-2))
without gradient, so we do (diagonal=false leaves it out); for K = 2 it divides by zero. The BalCAL paper cites
another paper for this method by mistake.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError, at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


class PairSum(torch.autograd.Function):
    """z (N, M) -> sum over pairs i < j of |d| / 2 + log(1 + exp(-|d|)), (N,), and its slope on the way."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        z, order = z.sort(1, descending=True)
        m = z.shape[1]
        slope = (m - 1) / 2 - torch.arange(m, dtype=z.dtype, device=z.device)  # of the |d| / 2: the first beats m - 1
        value, slope = z @ slope, slope.repeat(len(z), 1)
        for s in range(1, m):
            x = (z[:, s:] - z[:, :-s]).exp_()  # exp(-|d|), at most 1
            value += x.log1p().sum(1)
            x /= 1 + x
            slope[:, s:] += x
            slope[:, :-s] -= x
        ctx.save_for_backward(torch.empty_like(slope).scatter_(1, order, slope))
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # create_graph: the slope would silently count as constant
            raise BalcalError("cpc has no second derivative: take the gradient without create_graph")
        slope: Tensor = ctx.saved_tensors[0]
        return grad[:, None] * slope


@dataclass(frozen=True)
class Cpc:
    """Cross-entropy plus a binary loss for every pair of classes."""

    bdc: Annotated[float, at_least(0)] = 0.1
    bec: Annotated[float, at_least(0)] = 1.0
    diagonal: bool = True
    """whether i = j counts as a pair"""

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def discrimination(self, logits: Tensor, labels: Tensor) -> Tensor:
        """BDC"""
        return F.softplus(others(logits, labels) - logits.gather(1, labels[:, None])).mean()

    def exclusion(self, logits: Tensor, labels: Tensor) -> Tensor:
        """BEC"""
        k = logits.shape[1]
        if k == 2:
            return logits.new_zeros(())
        own = (k - 1) * math.log(2) / 2 if self.diagonal else 0.0
        pairs: Tensor = PairSum.apply(others(logits, labels))  # type: ignore[no-untyped-call]
        return (pairs.mean() + own) / ((k - 1) * (k - 2))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        return (
            F.cross_entropy(z, labels)
            + self.bdc * self.discrimination(z, labels)
            + self.bec * self.exclusion(z, labels)
        )


def others(logits: Tensor, labels: Tensor) -> Tensor:
    """(N, K - 1): the logits without the label's."""
    k = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, k + (k >= labels[:, None]))


METHODS = {
    "cpc": Method(
        "cpc",
        loss=Cpc(),
        about="loss: + a binary loss per pair of classes",
        when="You train from scratch with up to some hundred classes: its cost grows with their square.",
        paper="Cheng, Vasconcelos",
        venue="CVPR 2022",
        cost="N K^2 per batch",
    )
}
