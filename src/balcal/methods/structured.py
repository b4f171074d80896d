"""Berta, Holzmüller, Jordan, Bach: Structured matrix scaling for multi-class calibration. AISTATS 2026.

    z = log softmax(scores / T)                         first a temperature
    sms:  p = softmax((I + diag(v) + M) z + b)          M has no diagonal
    svs:  p = softmax((I + diag(v)) z + b)

    minimise  mean NLL + K/n (|v|^2 + |b|^2) + K(K-1)/n |M|^2

n is the number of calibration samples, K that of classes. So many numbers are fitted as the samples support: with few
samples both are temperature scaling. The problem is convex, and solved until its slope is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BalcalError, Outputs, PostHoc
from balcal.methods.parts.affine import DiagonalProblem, MatrixProblem, prices
from balcal.methods.parts.fitted_map import FittedMap
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out, piece_by_piece
from balcal.methods.temperature import solve_temperature, tempered
from balcal.recipe import Method
from balcal.runtime.values import check_settings

MOST_CLASSES = 1000
"""for a matrix: it takes four seconds and 0.8 GB there, with 5,000 samples"""


FLAT = 1e-6
"""slope at which a fit ends: the objective is then within 1e-10 of its minimum"""


class Structured(FittedMap):
    """log softmax(W log softmax(scores / T) + b), where W is a matrix, or the vector of its diagonal."""

    temperature: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, temperature: float, weight: Tensor, bias: Tensor, uniform: float = 0.0) -> None:
        super().__init__(uniform, temperature=torch.tensor(temperature), weight=weight, bias=bias)

    def lifted(self, scores: Tensor) -> Tensor:
        return scores

    def calibrated(self, scores: Tensor) -> Tensor:
        z = tempered(scores, self.temperature.to(scores)).log_softmax(-1)
        weight, bias = self.weight.to(z), self.bias.to(z)
        return (F.linear(z, weight, bias) if weight.ndim == 2 else z * weight + bias).log_softmax(-1)

    def extra_repr(self) -> str:
        away = self.weight - (1 if self.weight.ndim == 1 else torch.eye(len(self.bias)).to(self.weight))
        return f"T={float(self.temperature):.4f}, largest change of a weight {float(away.abs().max()):.4f}"


def tempered_log_probs(scores: Tensor, temperature: float) -> Tensor:
    """log softmax(scores / T), in float64."""
    t = torch.tensor(temperature, dtype=torch.float64)
    return piece_by_piece(lambda z: tempered(z, t).log_softmax(1), scores)


def solve_svs(
    data: HeldOut, who: str = "svs", start: tuple[Tensor, Tensor] | None = None, small: float = FLAT
) -> tuple[Tensor, Tensor]:
    """(1 + v, b) on tempered log-probabilities."""
    problem = DiagonalProblem(data, 1.0)
    price = torch.full_like(problem.centre, data.classes / data.size)
    w, b = problem.solve(price, problem.centre if start is None else torch.stack(start, 1), who, small).T
    return w, b


def solve_matrix(
    data: HeldOut, one: float, off: float, who: str, start: tuple[Tensor, Tensor] | None = None, small: float = FLAT
) -> tuple[Tensor, Tensor]:
    """(I + diag(v) + M, b) on tempered log-probabilities. `one` is the price of |v|^2 and |b|^2, `off` of |M|^2."""
    k = data.classes
    centre = torch.eye(k, k + 1, dtype=torch.float64)
    begin = centre if start is None else torch.cat([start[0], start[1][:, None]], 1)
    v = MatrixProblem(data, centre).solve(prices(k, one, off, one), begin, who, small)
    return v[:, :-1], v[:, -1]


def solve_sms(data: HeldOut, who: str = "sms") -> tuple[Tensor, Tensor]:
    k = data.classes
    if k > MOST_CLASSES:
        raise BalcalError(f"`sms` fits a matrix for at most {MOST_CLASSES:,} classes, not {k:,}: use `svs`")
    return solve_matrix(data, k / data.size, k * (k - 1) / data.size, who)


@dataclass(frozen=True)
class StructuredScaling(PostHoc):
    """A temperature, then a weight for each class, or (`matrix`) for each pair of classes. `prior`: as for `ts`."""

    matrix: bool = False
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        weight = torch.eye(num_classes) if self.matrix else torch.ones(num_classes)
        return Structured(1.0, weight, torch.zeros(num_classes))

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(outputs, labels, "sms" if self.matrix else "svs", weights, groups)
        t = solve_temperature(held_out.scores, held_out.labels, held_out.weights, self.prior)
        first = held_out.of(tempered_log_probs(held_out.scores, t))
        return Structured(t, *(solve_sms if self.matrix else solve_svs)(first), held_out.uniform(self.prior))


METHODS = {
    "svs": Method(
        "svs",
        posthoc=StructuredScaling(),
        about="a temperature, then a regularised vector",
        when="The model is trained, and there are hundreds of held-out samples.",
        paper="Berta, Holzmüller, Jordan, Bach",
        venue="AISTATS 2026",
        cost="one fit after training",
    ),
    "sms": Method(
        "sms",
        posthoc=StructuredScaling(matrix=True),
        about="a temperature, then a regularised matrix",
        when="The model is trained, and there are thousands of held-out samples.",
        paper="Berta, Holzmüller, Jordan, Bach",
        venue="AISTATS 2026",
        cost="one fit after training, K^2",
    ),
}
