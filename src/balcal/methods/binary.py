"""Maps for two classes: logistic regression on functions of the log-odds s = log p / (1 - p) of class 1.

    platt      s' = a s + c                          Platt, ALMC 1999 (Advances in Large Margin Classifiers)
    beta       s' = a ln p - b ln(1 - p) + c         Kull, Silva Filho, Flach, AISTATS 2017; a, b >= 0
    quadratic  s' = a s + d s^2 + c                  Berta, Holzmüller, Jordan, Bach, AISTATS 2026

A few samples that look as the model says are added, as in temperature scaling (`parts/held_out.py`): they do what
Platt's smoothed targets do. `--set posthoc.prior=0` leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BalcalError, Outputs, PostHoc
from balcal.methods.parts.fitted_map import FittedMap, minimise
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out
from balcal.recipe import Method
from balcal.runtime.values import check_settings

Kind = Literal["platt", "beta", "quadratic"]
LARGEST = 1e3
"""no coefficient is further from 0"""


def features(scores: Tensor, kind: Kind) -> Tensor:
    """Scores (N, 2) -> what the new log-odds are linear in, (N, 2 or 3); the last is the constant."""
    z = scores.log_softmax(-1)
    one = torch.ones_like(z[..., :1])
    if kind == "beta":
        return torch.cat([z[..., 1:], -z[..., :1], one], -1)
    s = z[..., 1:] - z[..., :1]
    return torch.cat([s, one] if kind == "platt" else [s, s.square(), one], -1)


class LogOdds(FittedMap):
    """Log-odds that are a linear function of `features`."""

    coefficients: Tensor

    def __init__(self, kind: Kind, coefficients: Tensor, uniform: float = 0.0) -> None:
        super().__init__(uniform, coefficients=coefficients)
        self.kind: Kind = kind

    def calibrated(self, scores: Tensor) -> Tensor:
        s = features(scores, self.kind) @ self.coefficients.to(scores)
        return torch.stack([F.logsigmoid(-s), F.logsigmoid(s)], -1)


def nothing(kind: Kind) -> Tensor:
    """The coefficients that change nothing."""
    return torch.tensor({"platt": [1.0, 0.0], "beta": [1.0, 1.0, 0.0], "quadratic": [1.0, 0.0, 0.0]}[kind]).double()


def solve_log_odds(held_out: HeldOut, kind: Kind, prior: float) -> Tensor:
    """The coefficients of lowest NLL."""
    x, shares = features(held_out.scores, kind), held_out.shares
    target = held_out.targets(held_out.scores.log_softmax(1), prior)[:, 1]
    p = held_out.scores.softmax(1)[:, 1]
    h = shares * (p * (1 - p) + 1e-6)
    curvature = (x * h[:, None]).T @ x
    curvature.diagonal().mul_(1 + 1e-9)
    root = torch.linalg.cholesky(curvature if kind != "beta" else curvature.diagonal().diag())

    def natural(u: Tensor) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(root.mT, u[:, None], upper=True)
        return found[:, 0]

    def objective(u: Tensor) -> tuple[Tensor, Tensor]:
        s = x @ natural(u)
        slope = (shares * (s.sigmoid() - target)) @ x
        value = shares @ (F.softplus(s) - target * s)
        return value, torch.linalg.solve_triangular(root, slope[:, None], upper=False)[:, 0]

    start = root.mT @ nothing(kind)
    if kind != "beta":
        return natural(minimise(objective, start, kind))
    box = LARGEST * root.diagonal()
    return natural(minimise(objective, start, kind, box, low=torch.cat([torch.zeros(2).double(), -box[2:]])))


@dataclass(frozen=True)
class BinaryScaling(PostHoc):
    """Logistic regression on the log-odds of two classes. `prior` is what doing nothing weighs, in samples."""

    kind: Kind = "platt"
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        self._check(num_classes)
        return LogOdds(self.kind, nothing(self.kind))

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        self._check(outputs.log_probs().shape[-1])
        held_out = check_held_out(outputs, labels, self.kind, weights, groups)
        return LogOdds(self.kind, solve_log_odds(held_out, self.kind, self.prior), held_out.uniform(self.prior))

    def _check(self, classes: int) -> None:
        if classes != 2:
            raise BalcalError(f"`{self.kind}` is for two classes, and these are {classes}: use `svs`, `sms` or `ts`")


def _method(kind: Kind, about: str, when: str, paper: str, venue: str) -> Method:
    cost = "one fit after training"
    return Method(kind, posthoc=BinaryScaling(kind), about=about, when=when, paper=paper, venue=venue, cost=cost)


METHODS = {
    "platt": _method(
        "platt",
        "two classes: slope and offset of log-odds",
        "Two classes and few held-out samples.",
        "Platt",
        "ALMC 1999",
    ),
    "beta": _method(
        "beta",
        "two classes: a slope for each side",
        "Two classes, and errors that differ between low and high probabilities.",
        "Kull, Silva Filho, Flach",
        "AISTATS 2017",
    ),
    "quadratic": _method(
        "quadratic",
        "two classes: a parabola of log-odds",
        "Two classes, and a thousand held-out samples or more.",
        "Berta, Holzmüller, Jordan, Bach",
        "AISTATS 2026",
    ),
}
