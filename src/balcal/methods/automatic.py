"""Ours (balcal): cross-validation chooses the calibrator, and prefers the simpler one when in doubt.

    K > 2:  none, ts, sms with 30 times its penalty, svs, sms with 10 times, 3 times and with its own
    K = 2:  none, ts, platt, beta, quadratic

Each is fitted on four fifths of the calibration set and its loss measured on the fifth left out, in turn. `ts` is what
others have to beat, one after another, from strong to weak penalties. The margin is in standard errors of the paired
difference: half of one, or one for curves of two classes, or two for doing nothing; and 15 / (wrong predictions in the
set) more. Losses are large where the model errs. Where it hardly does, a standard error says little of what other
samples would bring. What was chosen is fitted on the whole set. Margins and penalties were set on the sets of
results/data/posthoc.csv, on other splits: docs/decisions.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
STRENGTHS = {"sms-30": 30.0, "sms-10": 10.0, "sms-3": 3.0, "sms": 1.0}
"""penalties of `sms`, in multiples of its own"""
DOUBT = {"none": 2.0, "svs": 0.5, "platt": 0.5, "beta": 1.0, "quadratic": 1.0} | dict.fromkeys(STRENGTHS, 0.5)
"""standard errors by which a candidate must beat the one that was ahead before"""
RARE = 15.0
"""more of them, shared among the wrong predictions"""
ROUGH = 1e-3
"""slope at which the fit on a fold may end: its loss is then known to about a millionth"""
MATRIX_UP_TO = 256
"""classes: above, `sms` is hardly more than `svs` and slow to cross-validate"""
PER_CLASS = {"sms-30": 5} | dict.fromkeys(("sms-10", "sms-3", "sms"), 10)
"""samples for each class that make it a candidate: with fewer, folds were too noisy to tell"""


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


CANDIDATES = ("none", "ts", "svs", "sms", "platt", "beta", "quadratic", "sms-30", "sms-10", "sms-3")
"""the number in the list is kept in the state of the map"""
USED = {
    True: ("none", "ts", "platt", "beta", "quadratic"),
    False: ("none", "ts", "sms-30", "svs", "sms-10", "sms-3", "sms"),
}
"""for two classes, and for more: in the order in which they are compared"""


def candidates(classes: int, size: float) -> tuple[str, ...]:
    """Those that so many samples of so many classes allow.

    >>> candidates(10, 60), candidates(2, 60)
    (('none', 'ts', 'sms-30', 'svs'), ('none', 'ts', 'platt', 'beta', 'quadratic'))
    """
    most = size / classes if classes <= MATRIX_UP_TO else 0.0
    return tuple(name for name in USED[classes == 2] if PER_CLASS.get(name, 0) <= most)


States = dict[str, State]


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
        """The calibrator's name, whatever its penalty."""
        return CANDIDATES[int(self.choice)].partition("-")[0]

    @property
    def why(self) -> str:
        """One sentence: what was chosen, against what."""
        name = CANDIDATES[int(self.choice)]
        strength = STRENGTHS.get(name, 1.0)
        shown = f"`{self.chosen}`" + (f" with {strength:g} times its penalty" if strength > 1 else "")
        if not self.losses:
            return f"{shown} was chosen by cross-validation"
        best = min(self.losses, key=lambda each: self.losses[each])
        listed = ", ".join(f"{each} {loss:.4f}" for each, loss in self.losses.items())
        reason = "it has the lowest" if best == name else f"`{best}` is not clearly better in"
        return f"{shown} was chosen: {reason} cross-validated NLL ({listed})"

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


def solve(names: Iterable[str], data: HeldOut, prior: float, starts: Mapping[str, State] | None = None) -> States:
    """Fit candidates; `starts` are their fits on a larger set, from where the optimum is near."""
    found: States = {}
    first, small = Tempered.of(data, prior), FLAT if starts is None else ROUGH
    before: State | None = None
    for name in names:
        near = before if starts is None else starts[name]
        if name == "none":
            found[name] = State.plain(data.classes)
        elif name == "ts":
            found[name] = State.plain(data.classes, first.temperature)
        elif name == "svs":
            start = None if near is None else (near.weight.diagonal().contiguous(), near.bias)
            weight, bias = solve_svs(first.held_out, "auto", start, small)
            found[name] = State(first.temperature, weight.diag(), bias)
        elif name in STRENGTHS:
            start = None if near is None else (near.weight, near.bias)
            solved = solve_sms(first.held_out, "auto", start, small, STRENGTHS[name])
            found[name] = before = State(first.temperature, *solved)
        else:
            found[name] = _binary(name, data, prior)
    return found


def sample_losses(state: State, uniform: float, data: HeldOut) -> Tensor:
    """NLL of each sample."""
    log_probs = mixed(Chosen("none", state, uniform, {}).calibrated(data.scores), torch.tensor(uniform))
    return F.nll_loss(log_probs, data.labels, reduction="none")


def choose(losses: Mapping[str, Tensor], weights: Tensor, errors: float) -> str:
    """`ts`, unless others beat it by their margins; `errors`: how many samples are predicted wrongly.

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
        names = candidates(data.classes, data.size)
        whole = solve(names, data, self.prior)
        losses = {name: torch.empty(len(data.labels), dtype=torch.float64) for name in names}
        fold = data.folds(FOLDS)
        for f in range(FOLDS):
            part, left = data.at(fold != f), data.at(fold == f)
            for name, found in solve(names, part, self.prior, whole).items():
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
        cost="six fits of each candidate after training",
    )
}
