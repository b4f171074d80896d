"""Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    vs:  p = softmax(w * z + b)     one scale and one bias for each class
    ms:  p = softmax(W z + b)       all K x K weights

w, W and b have the lowest NLL on held-out data, starting from temperature scaling (w = 1/T, b = 0), so that neither is
worse than `ts` there. z are the scores as given: a model's log-probabilities, or raw logits.

`vs` is unique up to a constant in b, and kept within a box so that separable data has a finite answer. `ms` overfits:
its off-diagonals and biases carry a penalty (see `parts/affine.py`). On log-probabilities it is Dirichlet calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.affine import Affine, fit_affine
from balcal.methods.parts.fitted_map import FittedMap, check_held_out, minimise
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

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight=weight, bias=bias)

    def calibrated(self, scores: Tensor) -> Tensor:
        return (self.weight.to(scores) * scores + self.bias.to(scores)).log_softmax(-1)


def solve_vector(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(w, b) of lowest NLL."""
    n, k = z.shape
    t = 1 / solve_temperature(z, labels)
    p = (t * z).softmax(1)
    h = p * (1 - p) + 1e-6
    # Centred where the curvature is, a class's scale and bias do not pull on each other; then both get curvature one.
    m = (h * z).sum(0) / h.sum(0)
    c = z - m
    unit = torch.stack([(h * c * c).mean(0) + 1e-6, h.mean(0)]).rsqrt()
    right = F.one_hot(labels, k)

    def objective(u: Tensor) -> tuple[Tensor, Tensor]:
        w, a = u * unit
        log_p = (w * c + a).log_softmax(1)
        miss = (log_p.exp() - right) / n
        return F.nll_loss(log_p, labels), torch.stack([(miss * c).sum(0), miss.sum(0)]) * unit

    start = torch.stack([torch.full_like(m, t), t * m])
    box = torch.stack([torch.full_like(m, BOX), BOX * (1 + m.abs())])
    w, a = minimise(objective, start / unit, "vs", box / unit) * unit
    return w, a - w * m


Penalty = Annotated[float | None, at_least(0, "be at least 0, or None to have it chosen,", STRONGEST)]


@dataclass(frozen=True)
class VectorScaling(PostHoc):
    """One scale and one bias for each class."""

    as_they_are: ClassVar[bool] = True

    def identity(self, num_classes: int) -> nn.Module:
        return Vector(torch.ones(num_classes), torch.zeros(num_classes))

    def fit(self, outputs: Outputs, labels: Tensor) -> nn.Module:
        z, y = check_held_out(outputs, labels, "vs", per_class=2, each_class="bias", as_they_are=True)
        return Vector(*solve_vector(z, y))


@dataclass(frozen=True)
class MatrixScaling(PostHoc):
    """A full matrix and a bias. `penalty` None: chosen by cross-validation on the calibration set."""

    as_they_are: ClassVar[bool] = True
    penalty: Penalty = None

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Affine.identity(num_classes)

    def fit(self, outputs: Outputs, labels: Tensor) -> nn.Module:
        z, y = check_held_out(outputs, labels, "ms", per_class=3, each_class="weights", as_they_are=True)
        return Affine(*fit_affine(z, y, 1 / solve_temperature(z, y), self.penalty, "ms"))


METHODS = {
    "vs": Method(
        "vs",
        posthoc=VectorScaling(),
        about="vector scaling: a scale and a bias for each class",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training",
    ),
    "ms": Method(
        "ms",
        posthoc=MatrixScaling(),
        about="matrix scaling, its penalty chosen by cross-validation",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training, K^3",
    ),
}
