"""Zhang, Kailkhura, Han: Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration in Deep Learning.
ICML 2020. Ensemble temperature scaling:

    p = w1 softmax(z / T) + w2 softmax(z) + w3 / K,    w >= 0, w1 + w2 + w3 = 1

First T, then w, each of lowest NLL on held-out data; the original takes the squared error for both (`loss=mse`) and T
within 0.05 to 5. All three parts rank the classes alike, so the predicted class stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.fitted_map import FittedMap, keep_top
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out
from balcal.methods.parts.newton import Objective
from balcal.methods.temperature import solve_temperature, tempered
from balcal.metrics.inputs import finite_scores
from balcal.recipe import Method
from balcal.runtime.values import check_settings


class TemperatureEnsemble(FittedMap):
    """log( w1 softmax(scores / T) + w2 softmax(scores) + w3 / K )."""

    temperature: Tensor
    weights: Tensor

    def __init__(self, temperature: Tensor, weights: Tensor, uniform: float = 0.0) -> None:
        super().__init__(uniform, temperature=temperature, weights=weights)

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        return keep_top(super().of_log_probs(log_probs), log_probs)

    def lifted(self, scores: Tensor) -> Tensor:
        return scores

    def calibrated(self, scores: Tensor) -> Tensor:
        log_w = self.weights.to(scores).log()[:, None, None]
        return (log_w + three_parts(scores, self.temperature.to(scores))).logsumexp(0)


def three_parts(z: Tensor, temperature: Tensor) -> Tensor:
    """(3, N, K): log-probabilities with temperature, without, and uniform."""
    plain = finite_scores(z).log_softmax(-1)
    return torch.stack([tempered(z, temperature).log_softmax(-1), plain, torch.zeros_like(plain).log_softmax(-1)])


def solve_temperature_by_squares(held_out: HeldOut) -> float:
    """The T in 0.05 .. 5 of lowest squared error. It may have several valleys: the lowest on a grid is searched."""
    z, shares = held_out.scores, held_out.shares
    right = F.one_hot(held_out.labels, held_out.classes)

    def error(t: float) -> float:
        return float(shares @ ((z / t).softmax(1) - right).square().mean(1))

    grid = torch.logspace(-1.30103, 0.69897, 41, dtype=z.dtype).clamp(0.05, 5).tolist()
    low = min(range(41), key=lambda i: error(grid[i]))
    around = (grid[max(low - 1, 0)], grid[min(low + 1, 40)])
    found = minimize_scalar(error, bounds=around, method="bounded", options={"xatol": 1e-9})
    best: float = min(grid[low], float(found.x), key=error)
    return best


def solve_weights(objective: Objective) -> Tensor:
    """The three weights of lowest value; the objective is convex, and no corner is lower."""

    def smooth(w: Any) -> tuple[float, Any]:
        value, slope = objective(torch.as_tensor(w).clamp(min=1e-12))
        return float(value), slope.numpy()

    found = minimize(
        smooth,
        torch.full((3,), 1 / 3, dtype=torch.float64).numpy(),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: w * 0 + 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    inner = torch.as_tensor(found.x).clamp(min=0)
    corners = torch.eye(3, dtype=torch.float64)
    best: Tensor = min([inner / inner.sum(), *corners], key=lambda w: float(objective(w)[0]))
    return best


def nll_of_weights(parts: Tensor, held_out: HeldOut) -> Objective:
    of_labels, shares = parts[:, torch.arange(parts.shape[1]), held_out.labels], held_out.shares

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        log_p = (w.log()[:, None] + of_labels).logsumexp(0)
        return -(shares @ log_p), -((of_labels - log_p).exp() @ shares)

    return objective


def error_of_weights(parts: Tensor, held_out: HeldOut) -> Objective:
    k = held_out.classes
    p, right = parts.exp().flatten(1), F.one_hot(held_out.labels, k).to(parts).flatten()
    each = held_out.shares.repeat_interleave(k) / k

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        miss = w @ p - right
        return each @ miss.square(), 2 * p @ (each * miss)

    return objective


@dataclass(frozen=True)
class EnsembleTemperatureScaling(PostHoc):
    """A temperature, and the weights of three predictions: with it, without it, and uniform. `prior`: as for `ts`."""

    loss: Literal["nll", "mse"] = "nll"
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return TemperatureEnsemble(torch.tensor(1.0), torch.tensor([0.0, 1.0, 0.0]))

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(outputs, labels, "ets", weights, groups)
        z, nll = held_out.scores, self.loss == "nll"
        t = (
            solve_temperature(z, held_out.labels, held_out.weights, self.prior)
            if nll
            else solve_temperature_by_squares(held_out)
        )
        parts = three_parts(z, torch.tensor(t, dtype=z.dtype))
        w = solve_weights((nll_of_weights if nll else error_of_weights)(parts, held_out))
        return TemperatureEnsemble(torch.tensor(t, dtype=torch.float64), w, held_out.uniform(self.prior))


METHODS = {
    "ets": Method(
        "ets",
        posthoc=EnsembleTemperatureScaling(),
        about="temperature, plain and uniform predictions mixed",
        when="Temperature scaling leaves errors at the ends, and the predicted class must stay.",
        paper="Zhang, Kailkhura, Han",
        venue="ICML 2020",
        cost="one fit after training",
    )
}
