"""Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    p = softmax(log p / T),  T = argmin of the NLL on held-out data

In t = 1/T the NLL is convex, with derivative mean_i( E_{p_t}[z] - z_y ); the root is bracketed, so it is found
wherever it lies. The usual LBFGS recipe (start 1.5, 50 steps of 0.01) stops far from it on hot logits.

The paper's code picks T from 0.01, 0.02, ..., 10 by the ECE of the validation split: `--set posthoc.by=ece`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from balcal.core import Outputs, PostHoc, at_least_float32
from balcal.methods.parts.fitted_map import LogProbsMap, check_held_out, read_scores
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import LOWEST, TopLabels, finite_scores
from balcal.recipe import Method
from balcal.runtime.values import check_settings

COLDEST, HOTTEST = 1e-3, 1e3
"""Bounds of T. On separable data the optimum is T = 0, on worthless predictions it is infinite. Where scores differ by
hundreds, the upper bound is five times their largest difference."""


class Temperature(LogProbsMap):
    """log-probabilities -> log softmax(log-probabilities / T)."""

    temperature: Tensor

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("temperature", torch.tensor(temperature))

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        scores = at_least_float32(log_probs)
        return tempered(scores, self.temperature.to(scores.dtype)).log_softmax(-1).to(log_probs.dtype)

    def extra_repr(self) -> str:
        return f"T={float(self.temperature):.4f}"


def tempered(scores: Tensor, temperature: Tensor) -> Tensor:
    """Scores / T. What is so far below the largest that T cannot bring it back stays there."""
    return finite_scores(scores, LOWEST * temperature.clamp(min=1)) / temperature


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
    z = read_scores(log_probs, "ts")
    z = z - z.amax(1, keepdim=True)
    z_label = z.gather(1, labels.cpu()[:, None])[:, 0].mean()

    def slope(log_t: float) -> float:
        return float(((z * math.exp(log_t)).softmax(1) * z).sum(1).mean() - z_label)

    hottest = max(HOTTEST, -5 * float(z.min()))
    low, high = -math.log(hottest), -math.log(COLDEST)
    if slope(low) >= 0:
        return hottest
    if slope(high) <= 0:
        return COLDEST
    return math.exp(-brentq(slope, low, high, xtol=1e-12))


def best_on_grid(log_probs: Tensor, labels: Tensor) -> float:
    """The T of 0.01, 0.02, ..., 10 with the lowest ECE (15 bins) on the set itself; the first, of equal ones."""
    z = read_scores(log_probs, "ts")
    pick = z.argmax(1)
    gaps = (z - z.gather(1, pick[:, None])).clamp(max=0)
    right = pick == labels.cpu()
    grid = [step / 100 for step in range(1, 1001)]
    return min(grid, key=lambda t: bin_table(TopLabels((gaps / t).exp().sum(1).reciprocal(), right), 15).ece())


@dataclass(frozen=True)
class TemperatureScaling(PostHoc):
    """One temperature for all samples, fitted on the validation split by NLL; `by` ECE on a grid, as some papers do."""

    by: Literal["nll", "ece"] = "nll"

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Temperature()

    def fit(self, outputs: Outputs, labels: Tensor) -> nn.Module:
        held_out = check_held_out(outputs, labels, "ts")
        if self.by == "ece":
            return Temperature(best_on_grid(*held_out))
        found = solve_temperature(*held_out)
        if found == COLDEST:
            z, y = held_out
            warnings.warn(
                f"all {len(labels):,} calibration samples are right, so `ts` makes the model sure of everything: "
                "hold out more data"
                if bool((z.argmax(1) == y).all())
                else f"the best temperature is below {COLDEST:g}, where `ts` stops: multiply all logits by a constant",
                stacklevel=2,
            )
        return Temperature(found)


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
