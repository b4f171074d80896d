"""Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach: Beyond temperature scaling: Obtaining well-calibrated
multiclass probabilities with Dirichlet calibration. NeurIPS 2019.

    p' = softmax(W log p + b)
    minimise NLL + lambda * sum_{j != k} W_jk^2 / (K (K - 1)) + mu * sum_k b_k^2 / K      (ODIR)

Here lambda = mu = `penalty`, solved as in `parts/affine.py`, and chosen by cross-validation if none is given. A
probability below 2.2e-16, the resolution of float64, counts as that: the logarithm of less would outweigh all other
samples.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from torch import Tensor, nn

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.affine import Affine, fit_affine
from balcal.methods.parts.held_out import check_held_out
from balcal.methods.scaling import Penalty
from balcal.methods.temperature import solve_temperature
from balcal.recipe import Method
from balcal.runtime.values import check_settings

LOG_EPSILON = math.log(sys.float_info.epsilon)


class Dirichlet(Affine):
    """log softmax(W log p + b)."""

    @staticmethod
    def features(scores: Tensor) -> Tensor:
        return scores.log_softmax(-1).clamp(min=LOG_EPSILON)


@dataclass(frozen=True)
class DirichletCalibration(PostHoc):
    """A full matrix on log-probabilities. `penalty` None: chosen by cross-validation on the calibration set."""

    penalty: Penalty = None

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Dirichlet.identity(num_classes)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(outputs, labels, "dirichlet", weights, groups, per_class=3, each_class="weights")
        x = Dirichlet.features(held_out.scores)
        scale = 1 / solve_temperature(x, held_out.labels, held_out.weights)
        fitted = fit_affine(held_out.of(x), scale, self.penalty, "dirichlet")
        return Dirichlet(*fitted, held_out.uniform() if self.penalty is None else 0.0)


METHODS = {
    "dirichlet": Method(
        "dirichlet",
        posthoc=DirichletCalibration(),
        about="a matrix on log p, its penalty chosen by cross-validation",
        when="The model gives probabilities, not logits, and there are thousands of held-out samples. `sms` is safer.",
        paper="Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach",
        venue="NeurIPS 2019",
        cost="one fit after training, K^3",
    )
}
