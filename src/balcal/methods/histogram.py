"""Zadrozny, Elkan: Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers.
ICML 2001. One class against the rest:

    q_k(p) = share of label k among the held-out samples whose p_k fell into the same bin as p

with equal bins (a, b] over 0 to 1, p = 0 in the first. An empty bin takes its centre. Frequencies are kept between
1/(2N) and 1 - 1/(2N) (see `Piecewise`), and rows divided by their sum. The predicted class may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.fitted_map import Piecewise
from balcal.methods.parts.held_out import check_held_out
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


def frequencies(p: Tensor, right: Tensor, edges: Tensor, weights: Tensor | None = None) -> Tensor:
    """(N, K) probabilities, (N, K) truths, (N,) weights -> (K, bins).

    >>> frequencies(torch.tensor([[0.2], [0.4], [0.5]]), torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([0.5]))
    tensor([[0.6667, 0.7500]])
    """
    bins = len(edges) + 1
    index = torch.searchsorted(edges, p.T.contiguous())
    empty = p.new_zeros(p.shape[1], bins)
    each = torch.ones_like(p.T) if weights is None else weights.expand_as(p.T)
    count = empty.scatter_add(1, index, each)
    hits = empty.scatter_add(1, index, each * right.T)
    centre = (torch.arange(bins).to(p) + 0.5) / bins
    return torch.where(count > 0, hits / count, centre)


@dataclass(frozen=True)
class HistogramBinning(PostHoc):
    """The frequency of each class in each of its bins."""

    bins: Annotated[int, at_least(1, most=10_000)] = 15

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Piecewise.identity(num_classes, self.bins)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(
            outputs, labels, "histogram", weights, groups, least=max(10, self.bins), each_class="frequencies"
        )
        z, k = held_out.scores, held_out.classes
        edges = torch.arange(1, self.bins).to(z) / self.bins
        right = nn.functional.one_hot(held_out.labels, k).to(z)
        height = frequencies(z.softmax(1), right, edges, held_out.weights)
        flat = torch.zeros_like(height)
        return Piecewise(edges.repeat(k, 1), flat, height, flat, floor=1 / (2 * max(held_out.size, 1)))


METHODS = {
    "histogram": Method(
        "histogram",
        posthoc=HistogramBinning(),
        about="frequencies in 15 bins for each class",
        when="Tens of thousands of held-out samples, and errors of any shape. The predicted class may change.",
        paper="Zadrozny, Elkan",
        venue="ICML 2001",
        cost="one fit after training",
    )
}
