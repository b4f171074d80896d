"""Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    vs:  p = softmax(w * z + b)     one scale and one bias for each class
    ms:  p = softmax(W z + b)       all K x K weights

w, W and b have the lowest NLL on held-out data, starting from temperature scaling (w = 1/T, b = 0). z are the scores as
given: a model's log-probabilities, or raw logits.

Both overfit. In `vs` a few samples that look as temperature scaling says are added (`--set posthoc.prior=0` leaves them
out), and w is kept within a box. `ms` is drawn to temperature scaling by a penalty that cross-validation chooses; with
`--set posthoc.penalty=...` the diagonal is free, as in the literature (see `parts/affine.py`). On log-probabilities it
is Dirichlet calibration. `svs` and `sms` do better than both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.affine import Affine, DiagonalProblem, fit_affine
from balcal.methods.parts.fitted_map import FittedMap
from balcal.methods.parts.held_out import FEW, Prior, check_held_out
from balcal.methods.temperature import solve_temperature
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings

BOX = 1e3
"""No scale is further from 0 than this, as in temperature scaling."""
STRONGEST = 1e9
"""penalty: a weaker one already leaves nothing but the diagonal"""


class Vector(FittedMap):
    """log softmax(w * scores + b)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, uniform: float = 0.0) -> None:
        super().__init__(uniform, weight=weight, bias=bias)

    def calibrated(self, scores: Tensor) -> Tensor:
        return (self.weight.to(scores) * scores + self.bias.to(scores)).log_softmax(-1)


Penalty = Annotated[float | None, at_least(0, "be at least 0, or None to have it chosen,", STRONGEST)]


@dataclass(frozen=True)
class VectorScaling(PostHoc):
    """One scale and one bias for each class. `prior` is what temperature scaling weighs, in samples."""

    as_they_are: ClassVar[bool] = True
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Vector(torch.ones(num_classes), torch.zeros(num_classes))

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(
            outputs, labels, "vs", weights, groups, per_class=2, each_class="bias", as_they_are=True
        )
        z = held_out.scores
        scale = 1 / solve_temperature(z, held_out.labels, held_out.weights, self.prior)
        targets = held_out.targets((scale * z).log_softmax(1), self.prior)
        w, b = DiagonalProblem(held_out, scale, targets).solve_within(BOX, "vs").T
        return Vector(w, b, held_out.uniform(self.prior))


@dataclass(frozen=True)
class MatrixScaling(PostHoc):
    """A full matrix and a bias. `penalty` None: chosen by cross-validation on the calibration set."""

    as_they_are: ClassVar[bool] = True
    penalty: Penalty = None

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Affine.identity(num_classes)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(
            outputs, labels, "ms", weights, groups, per_class=3, each_class="weights", as_they_are=True
        )
        scale = 1 / solve_temperature(held_out.scores, held_out.labels, held_out.weights)
        fitted = fit_affine(held_out, scale, self.penalty, "ms")
        return Affine(*fitted, held_out.uniform() if self.penalty is None else 0.0)


METHODS = {
    "vs": Method(
        "vs",
        posthoc=VectorScaling(),
        about="vector scaling: a scale and a bias for each class",
        when="Some classes are over-confident and others are not. `svs` does better with few samples.",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training",
    ),
    "ms": Method(
        "ms",
        posthoc=MatrixScaling(),
        about="matrix scaling, its penalty chosen by cross-validation",
        when="Thousands of held-out samples and few classes. `sms` does better.",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training, K^3",
    ),
}
