"""Ours (balcal): cross-validation chooses the calibrator, and prefers the simpler one when in doubt.

    K > 2:  none, ts, svs; with 20 samples for each class also sms
    K = 2:  none, ts, platt, beta, quadratic

Each is fitted on four fifths of the calibration set and its loss measured on the fifth left out, in turn. `ts` is what
others have to beat, by a margin in standard errors of the paired difference: half of one if they have a few numbers for
each class, one if they have more, two if it is doing nothing; and 15 / (wrong predictions in the set) more. Losses are
large where the model errs. Where it hardly does, a standard error says little of what other samples would bring. What
was chosen is fitted on the whole set. The margins were set on the sets of results/data/posthoc.csv: with larger ones
gains that hold are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import Outputs, PostHoc
from balcal.methods.binary import BinaryScaling, LogOdds
from balcal.methods.parts.fitted_map import mixed
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out
from balcal.methods.structured import FLAT, Structured, Tempered, solve_sms, solve_svs
from balcal.metrics.inputs import finite_scores
from balcal.recipe import Method
from balcal.runtime.values import check_settings

FOLDS = 5
DOUBT = {"none": 2.0, "svs": 0.5, "platt": 0.5, "sms": 1.0, "beta": 1.0, "quadratic": 1.0}
"""standard errors by which a candidate must beat `ts`, or the one that did so before"""
RARE = 15.0
"""more of them, shared among the wrong predictions"""
ROUGH = 1e-3
"""slope at which the fit on a fold may end: its loss is then known to about a millionth"""
MATRIX_UP_TO = 256
"""classes: above, `sms` is hardly more than `svs` and slow to cross-validate"""
PER_CLASS = 20
"""samples for each class that make `sms` a candidate: with fewer it lost to `ts`, and folds were too noisy to tell"""


@dataclass(frozen=True, eq=False)
class State:
    """What any candidate comes to: log softmax(W log softmax(scores / T) + b), with s^2 times `curve` on class 1."""

    temperature: float
    weight: Tensor
    bias: Tensor
    curve: float = 0.0

    @classmethod
    def plain(cls, k: int, temperature: float = 1.0) -> State:
        return cls(temperature, torch.eye(k).double(), torch.zeros(k).double())


CANDIDATES = ("none", "ts", "svs", "sms", "platt", "beta", "quadratic")
"""in the order of complexity, for many classes and for two; the number in the list is kept in the state of the map"""
USED = {True: ("none", "ts", "platt", "beta", "quadratic"), False: ("none", "ts", "svs", "sms")}


class Chosen(Structured):
    """The map of the candidate that was chosen."""

    curve: Tensor
    choice: Tensor

    def __init__(self, name: str, state: State, uniform: float, losses: Mapping[str, float]) -> None:
        super().__init__(state.temperature, state.weight, state.bias, uniform)
        self.register_buffer("curve", torch.tensor(state.curve, dtype=torch.float64))
        self.register_buffer("choice", torch.tensor(float(CANDIDATES.index(name)), dtype=torch.float64))
        self.losses = dict(losses)

    @property
    def chosen(self) -> str:
        return CANDIDATES[int(self.choice)]

    @property
    def why(self) -> str:
        """One sentence: what was chosen, against what."""
        if not self.losses:
            return f"`{self.chosen}` was chosen by cross-validation"
        best = min(self.losses, key=lambda name: self.losses[name])
        listed = ", ".join(f"{name} {loss:.4f}" for name, loss in self.losses.items())
        reason = "it has the lowest" if best == self.chosen else f"`{best}` is not clearly better in"
        return f"`{self.chosen}` was chosen: {reason} cross-validated NLL ({listed})"

    def calibrated(self, scores: Tensor) -> Tensor:
        if len(self.bias) != 2:
            return super().calibrated(scores)
        z = finite_scores(scores).log_softmax(-1)  # a probability of 0 has no square that 0 times it could undo
        curved = self.curve.to(z) * (z[..., 1] - z[..., 0]).square()
        return (super().calibrated(scores) + torch.stack([torch.zeros_like(curved), curved], -1)).log_softmax(-1)

    def extra_repr(self) -> str:
        return f"chosen={self.chosen}, {super().extra_repr()}"


def _binary(kind: Any, data: HeldOut, prior: float) -> State:
    fitted = BinaryScaling(kind, prior).fit(Outputs.of(data.scores), data.labels, data.weights)
    assert isinstance(fitted, LogOdds)
    c = fitted.coefficients.tolist()
    slopes = (c[1], c[0]) if kind == "beta" else (c[0], c[0])
    bias = torch.tensor([0.0, c[-1]]).double()
    return State(1.0, torch.tensor(slopes).double().diag(), bias, c[1] if kind == "quadratic" else 0.0)


def solve(name: str, data: HeldOut, prior: float, start: State | None = None) -> State:
    """Fit one candidate; `start` is its fit on a larger set, from where the optimum is near."""
    if name == "none":
        return State.plain(data.classes)
    if name in ("platt", "beta", "quadratic"):
        return _binary(name, data, prior)
    first, small = Tempered.of(data, prior), FLAT if start is None else ROUGH
    if name == "ts":
        return State.plain(data.classes, first.temperature)
    if name == "svs":
        near = None if start is None else (start.weight.diagonal().contiguous(), start.bias)
        weight, bias = solve_svs(first.held_out, "auto", near, small)
        return State(first.temperature, weight.diag(), bias)
    found = solve_sms(first.held_out, "auto", None if start is None else (start.weight, start.bias), small)
    return State(first.temperature, *found)


def sample_losses(state: State, uniform: float, data: HeldOut) -> Tensor:
    """NLL of each sample."""
    log_probs = mixed(Chosen("none", state, uniform, {}).calibrated(data.scores), torch.tensor(uniform))
    return F.nll_loss(log_probs, data.labels, reduction="none")


def choose(losses: Mapping[str, Tensor], weights: Tensor, errors: float) -> str:
    """`ts`, unless another candidate beats it by its margin; `errors`: how many samples are predicted wrongly.

    >>> even, ahead = torch.tensor([0.5, 0.3, 0.4, 0.2]), torch.tensor([0.3, 0.1, 0.1, -0.1])
    >>> [choose({"ts": even, "svs": even - ahead}, torch.ones(4), errors) for errors in (0, 5, 50)]
    ['ts', 'ts', 'svs']
    """
    if not errors:
        return "ts"
    shares = (weights / weights.sum()).double()

    def gain(name: str, over: str) -> tuple[float, float]:
        """(mean, standard error)"""
        away = (losses[over] - losses[name]).double()
        mean = shares @ away
        return float(mean), math.sqrt(float(shares.square() @ (away - mean).square()))

    found = "ts"
    for name in (each for each in losses if each != "ts"):
        mean, error = gain(name, found)
        found = name if mean > (DOUBT[name] + RARE / errors) * error else found
    return found


@dataclass(frozen=True)
class AutomaticCalibration(PostHoc):
    """Chooses by cross-validation on the calibration set. `prior`: as for `ts`."""

    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Chosen("none", State.plain(num_classes), 0.0, {})

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        data = check_held_out(outputs, labels, "auto", weights, groups)
        k, matrix = data.classes, data.classes <= MATRIX_UP_TO and data.size >= PER_CLASS * data.classes
        names = [name for name in USED[k == 2] if matrix or name != "sms"]
        whole = {name: solve(name, data, self.prior) for name in names}
        losses = {name: torch.empty(len(data.labels), dtype=torch.float64) for name in names}
        fold = data.folds(FOLDS)
        for f in range(FOLDS):
            part, left = data.at(fold != f), data.at(fold == f)
            for name in names:
                found = solve(name, part, self.prior, whole[name])
                losses[name][fold == f] = sample_losses(found, part.uniform(self.prior), left)
        errors = float(data.weights[data.scores.argmax(1) != data.labels].sum())
        name = choose(losses, data.weights, errors)
        means = {each: float(data.shares @ loss) for each, loss in losses.items()}
        return Chosen(name, whole[name], data.uniform(self.prior), means)


METHODS = {
    "auto": Method(
        "auto",
        posthoc=AutomaticCalibration(),
        about="chooses by cross-validation: none, ts, svs, sms",
        when="The model is trained, and you have a few hundred held-out samples. The default of `balcal.Calibrator`.",
        paper="Ours",
        venue="balcal",
        cost="six fits of each after training",
    )
}
