"""Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.

    p = softmax(log p / T),  T = argmin of the NLL on held-out data

In t = 1/T the NLL is convex, with derivative mean_i( E_{p_t}[z] - z_y ); the root is bracketed, so it is found
wherever it lies. The usual LBFGS recipe (start 1.5, 50 steps of 0.01) stops far from it on hot logits.

A few samples that are right as often as the model says are added (`parts/held_out.py`): T stays near 1 where there is
next to no data. `--set posthoc.prior=0` leaves them out.

The paper's code picks T from 0.01, 0.02, ..., 10 by the ECE of the validation split: `--set posthoc.by=ece`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from balcal.core import BalcalError, Outputs, PostHoc, at_least_float32
from balcal.methods.parts.fitted_map import LogProbsMap, mixed
from balcal.methods.parts.held_out import FEW, Prior, check_held_out, check_weights, in_pieces, large, read_scores
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import LOWEST, TopLabels, finite_scores
from balcal.recipe import Method
from balcal.runtime.values import check_settings

COLDEST, HOTTEST = 1e-3, 1e3
"""Bounds of T. On separable data the optimum is T = 0, on worthless predictions it is infinite. Where scores differ by
hundreds, the upper bound is five times their largest difference."""
MANY = 2000
"""samples from which on a tenth of them is asked first"""
FLOAT32_FROM = 2**20
"""numbers in a table from which on T is solved for in float32: it is found to 1e-7, and kept in float32 anyway"""
ORDER = 5
"""cumulants in use: from a hundredth of T away one step arrives"""
EXACT = 1e-8
"""a step is the last if its last derivative adds less, as a share of T"""


class Temperature(LogProbsMap):
    """log-probabilities -> log softmax(log-probabilities / T)."""

    temperature: Tensor

    def __init__(self, temperature: float = 1.0, uniform: float = 0.0) -> None:
        super().__init__(uniform)
        self.register_buffer("temperature", torch.tensor(temperature))

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        scores = at_least_float32(log_probs)
        calibrated = tempered(scores, self.temperature.to(scores.dtype)).log_softmax(-1)
        return mixed(calibrated, self.uniform).to(log_probs.dtype)

    def probs(self, outputs: Outputs) -> Tensor:
        """As `forward`, without the logarithms: they take half of its time."""
        log_probs = outputs.log_probs()
        scores = at_least_float32(log_probs)
        calibrated, share = tempered(scores, self.temperature.to(scores.dtype)).softmax(-1), self.uniform.to(scores)
        return torch.lerp(calibrated, share.new_tensor(1 / scores.shape[-1]), share).to(log_probs.dtype)

    def extra_repr(self) -> str:
        return f"T={float(self.temperature):.4f}"


def tempered(scores: Tensor, temperature: Tensor) -> Tensor:
    """Scores / T. What is so far below the largest that T cannot bring it back stays there."""
    return finite_scores(scores, LOWEST * temperature.clamp(min=1)) / temperature


def solve_temperature(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None, prior: float = 0.0) -> float:
    """The T of lowest NLL; `prior` samples more are right as often as the model says.

    Two samples whose logit gap is 2, one right and one wrong, deserve even odds: T is as large as it gets.

    >>> solve_temperature(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    1000.0

    Three right and one wrong deserve odds of three to one: 2 / T = ln 3.

    >>> T = solve_temperature(torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
    >>> round(math.exp(2 / T), 6)
    3.0
    """
    return _solve(read_scores(log_probs, "ts"), labels.cpu(), check_weights(weights, len(log_probs)), prior)


def _solve(scores: Tensor, labels: Tensor, weights: Tensor, prior: float) -> float:
    narrow = scores.numel() >= FLOAT32_FROM
    z = large(len(scores), scores.shape[1], torch.float32 if narrow else torch.float64)
    for rows, out in in_pieces(scores, z):
        torch.sub(rows, rows.amax(1, keepdim=True), out=out)
    own = z.gather(1, labels[:, None])[:, 0].double()
    low, high = 1 / max(HOTTEST, -5 * float(z.min())), 1 / COLDEST
    near = 1.0
    if len(z) >= MANY:  # a tenth of the samples tells where to look
        few, some = z[::10].contiguous(), weights[::10]
        near = _root(few, some, _wanted(few, some, own[::10], prior / 10), 1.0, low, high)
    return 1 / _root(z, weights, _wanted(z, weights, own, prior), near if low < near < high else 1.0, low, high)


def _wanted(z: Tensor, w: Tensor, own: Tensor, prior: float) -> float:
    """Mean score of the labels; `prior` samples more have the mean that the model expects."""
    expected = prior * _cumulants(z, w, 1.0, 1)[0] if prior else 0.0
    return (float(w @ own) + expected) / (float(w.sum()) + prior)


def _cumulants(z: Tensor, w: Tensor, t: float, count: int = ORDER) -> list[float]:
    """Means over samples of the first cumulants of the scores z, where z_k has probability exp(t z_k).

    >>> _cumulants(torch.tensor([[0.0, -2.0]]).double(), torch.ones(1).double(), 0.0)
    [-1.0, 1.0, 0.0, -2.0, 0.0]
    """
    sums = z.new_empty(count + 1, len(z))
    room = torch.empty_like(next(in_pieces(z))[0])
    for rows, *out in in_pieces(z, *sums):
        e = torch.mul(rows, t, out=room[: len(rows)]).exp_()
        for n, each in enumerate(out):
            torch.sum(e.mul_(rows) if n else e, 1, out=each)
    moments = sums[1:].double() / sums[0]
    found = torch.empty_like(moments)
    for n in range(count):
        found[n] = moments[n] - sum(math.comb(n, i) * found[i] * moments[n - i - 1] for i in range(n))
    means: list[float] = (found @ (w / w.sum())).tolist()
    return means


def _root(z: Tensor, w: Tensor, wanted: float, t: float, low: float, high: float) -> float:
    """The t in low .. high at which the mean score is the wanted one. Its derivatives by t are the other cumulants.

    A step is taken where it stays between the points known to lie on either side, else to their geometric mean. An end
    is only tried when a step leads beyond it.
    """
    lower, upper, tried = low, high, {low: False, high: False}
    for _ in range(200):
        here = _cumulants(z, w, t)
        if here[0] == wanted:
            return t
        lower, upper = (t, upper) if here[0] < wanted else (lower, t)
        beyond = high if here[0] < wanted else low
        step, error = _step(here, wanted)
        if lower < t + step < upper:
            after = t + step
            if error <= EXACT * t:
                return after
        elif beyond in (lower, upper) and not tried[beyond]:
            tried[beyond] = True
            mean = _cumulants(z, w, beyond, 1)[0]
            if (mean <= wanted) if beyond == high else (mean >= wanted):
                return beyond
            after = math.sqrt(lower * upper)
        else:
            after = math.sqrt(lower * upper)
        if abs(after - t) <= 1e-14 * t:
            return after
        t = after
    return t


def _step(cumulants: list[float], wanted: float) -> tuple[float, float]:
    """The step to where the mean is the wanted one, and what its last derivative adds: more than what is left out.

    Halley's step, made exact by Newton's method on the Taylor polynomial where that is close.
    """
    mean, slope, bend, *_ = cumulants
    away = wanted - mean
    curve = slope + away * bend / (2 * slope) if slope > 0 else 0.0
    if curve <= 0:
        return math.copysign(math.inf, away), math.inf
    halley = step = away / curve
    for _ in range(3):
        terms = [each * step**n / math.factorial(n) for n, each in enumerate(cumulants)]
        tangent = sum(each * step**n / math.factorial(n) for n, each in enumerate(cumulants[1:]))
        if tangent <= 0:
            return halley, math.inf
        step += (wanted - sum(terms)) / tangent
    error = abs(terms[-1]) / slope
    return (step, error) if error <= abs(halley) / 10 else (halley, math.inf)


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
    """One temperature for all samples, fitted on the validation split by NLL; `by` ECE on a grid, as some papers do.

    `prior` is what doing nothing (T = 1) weighs, in samples; 0 is the fit of the paper.
    """

    by: Literal["nll", "ece"] = "nll"
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Temperature()

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(outputs, labels, "ts", weights)
        z, y = held_out.scores, held_out.labels
        if self.by == "ece":
            if weights is not None:
                raise BalcalError("the grid of temperatures by ECE takes no sample weights: fit by NLL, `by=nll`")
            return Temperature(best_on_grid(z, y))
        found = _solve(z, y, held_out.weights, self.prior)
        if found == COLDEST:
            warnings.warn(
                f"all {len(y):,} calibration samples are right, so `ts` makes the model sure of everything: "
                "hold out more data"
                if bool((z.argmax(1) == y).all())
                else f"the best temperature is below {COLDEST:g}, where `ts` stops: multiply all logits by a constant",
                stacklevel=2,
            )
        return Temperature(found, held_out.uniform(self.prior))


METHODS = {
    "ts": Method(
        "ts",
        posthoc=TemperatureScaling(),
        about="temperature scaling on the validation split",
        when="Always: the baseline that every method has to beat, and hard to beat in ECE.",
        paper="Guo, Pleiss, Sun, Weinberger",
        venue="ICML 2017",
        cost="one fit after training",
    )
}
