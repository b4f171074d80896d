"""Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    p = softmax(log p / T),  T = argmin of the NLL on held-out data

In t = 1/T the NLL is convex, with derivative mean_i( E_{p_t}[z] - z_y ); the root is bracketed, so it is found
wherever it lies. The usual LBFGS recipe (start 1.5, 50 steps of 0.01) stops far from it on hot logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from balcal.core import BalcalError
from balcal.recipe import Method

COLDEST, HOTTEST = 1e-3, 1e3
"""Bounds of T. On separable data the optimum is T = 0, on worthless predictions it is infinite."""


class Temperature(nn.Module):
    """log-probabilities -> log softmax(log-probabilities / T)."""

    temperature: Tensor

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self, log_probs: Tensor) -> Tensor:
        return (log_probs / self.temperature.to(log_probs.dtype)).log_softmax(-1)

    def extra_repr(self) -> str:
        return f"T={float(self.temperature):.4f}"


def solve_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """The T of lowest NLL.

    Two samples whose logit gap is 2, one right and one wrong, deserve even odds: T is as large as it gets.

    >>> solve_temperature(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    1000.0

    Three right and one wrong deserve odds of three to one: 2 / T = ln 3.

    >>> T = solve_temperature(torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
    >>> round(2 / T - math.log(3), 6)
    0.0
    """
    if len(labels) == 0:
        raise BalcalError("cannot fit a temperature on an empty split: hold out some validation data")
    z = log_probs.double().cpu().clamp(min=-1e4)
    if not bool(z.isfinite().all()):
        raise BalcalError("cannot fit a temperature: the predictions contain NaN or infinite values")
    z = z - z.amax(1, keepdim=True)
    z_label = z.gather(1, labels.cpu()[:, None])[:, 0].mean()

    def slope(log_t: float) -> float:
        return float(((z * math.exp(log_t)).softmax(1) * z).sum(1).mean() - z_label)

    low, high = -math.log(HOTTEST), -math.log(COLDEST)
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    return math.exp(-brentq(slope, low, high, xtol=1e-12))


@dataclass(frozen=True)
class TemperatureScaling:
    """One temperature for all samples, fitted on the validation split."""

    def identity(self, num_classes: int) -> nn.Module:
        return Temperature()

    def fit(self, log_probs: Tensor, labels: Tensor) -> nn.Module:
        return Temperature(solve_temperature(log_probs, labels))


METHODS = {
    "ts": Method(
        "ts",
        posthoc=TemperatureScaling(),
        about="temperature scaling on the validation split",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training",
    )
}
