"""Ours (balcal): cross-validation chooses the calibrator, and prefers the simpler one when in doubt.

    K > 2:  none, ts, ts-uniform, sms with 30 times its penalty, svs, sms with 10, 3, 1, 0.3 and 0.1 times, ms
    K = 2:  none, ts, platt, beta, quadratic

Each is fitted on four fifths of the calibration set and its loss measured on the fifth left out, in turn. `ts` is what
others have to beat, one after another, from strong to weak penalties. The margin is in standard errors of the paired
difference: half of one, or one for curves of two classes, or two for doing nothing; and 15 / (wrong predictions in the
set) more. Losses are large where the model errs. Where it hardly does, a standard error says little of what other
samples would bring. A matrix that falls far behind is not fitted on later fifths. What was chosen is fitted on
the whole set. Margins and penalties were set on the sets of results/data/posthoc.csv, on other splits:
docs/decisions.md.

All that come after `ts-uniform` start from it: from its temperature, with samples weighted by how likely the network
had a part in their labels; and the share of the uniform distribution is fitted anew behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.candidates import MATRICES, Part, State, States
from balcal.methods.parts.fitted_map import mixed
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out
from balcal.methods.structured import FLAT, Structured
from balcal.metrics.inputs import finite_scores
from balcal.recipe import Method
from balcal.runtime.values import check_settings

FOLDS = 5
DOUBT = {"none": 2.0, "beta": 1.0, "quadratic": 1.0} | dict.fromkeys(("ts-uniform", "svs", "platt", *MATRICES), 0.5)
"""standard errors by which a candidate must beat the one that was ahead before"""
RARE = 15.0
"""more of them, shared among the wrong predictions"""
HOPELESS = 3.0
"""standard errors behind `ts`, on the folds so far, from which on a matrix is given up"""
MATRIX_UP_TO = 256
"""classes: above, a matrix is hardly more than `svs` and slow to cross-validate"""
PER_CLASS = dict.fromkeys(MATRICES, 10) | {"sms-30": 5}
"""samples for each class that make it a candidate: with fewer, folds were too noisy to tell"""


CANDIDATES = (
    *("none", "ts", "svs", "sms", "platt", "beta", "quadratic", "sms-30", "sms-10", "sms-3"),
    *("ts-uniform", "sms-third", "sms-tenth", "ms"),
)
"""the number in the list is kept in the state of the map: add at the end"""
USED = {
    True: ("none", "ts", "platt", "beta", "quadratic"),
    False: ("none", "ts", "ts-uniform", "sms-30", "svs", "sms-10", "sms-3", "sms", "sms-third", "sms-tenth", "ms"),
}
"""for two classes, and for more: in the order in which they are compared"""


def candidates(classes: int, size: float) -> tuple[str, ...]:
    """Those that so many samples of so many classes allow.

    >>> candidates(10, 60), candidates(2, 60)
    (('none', 'ts', 'ts-uniform', 'sms-30', 'svs'), ('none', 'ts', 'platt', 'beta', 'quadratic'))
    """
    most = size / classes if classes <= MATRIX_UP_TO else 0.0
    return tuple(name for name in USED[classes == 2] if PER_CLASS.get(name, 0) <= most)


PENALTY = "; (x0.1) has a tenth of the penalty of `sms`"
"""what a reader of the losses has to know"""


def _shown(name: str) -> str:
    """As users read it.

    >>> _shown("sms-30"), _shown("sms-tenth"), _shown("ms")
    ('sms (x30)', 'sms (x0.1)', 'ms')
    """
    family, strength = MATRICES.get(name, (name, 1.0))
    return f"{family} (x{strength:g})" if family == "sms" and strength != 1 else family


class Chosen(Structured):
    """The map of the candidate that was chosen."""

    curve: Tensor
    choice: Tensor

    def __init__(self, name: str, state: State, losses: Mapping[str, float]) -> None:
        super().__init__(state.temperature, state.weight, state.bias, state.uniform)
        self.register_buffer("curve", torch.tensor(state.curve, dtype=torch.float64))
        self.register_buffer("choice", torch.tensor(float(CANDIDATES.index(name)), dtype=torch.float64))
        self.losses = dict(losses)

    @property
    def chosen(self) -> str:
        """The calibrator's name, whatever its penalty."""
        name = CANDIDATES[int(self.choice)]
        return MATRICES[name][0] if name in MATRICES else name

    @property
    def why(self) -> str:
        """One sentence: what was chosen, against what."""
        name = CANDIDATES[int(self.choice)]
        shown = f"`{_shown(name)}`"
        if not self.losses:
            return f"{shown} was chosen by cross-validation"
        best = min(self.losses, key=lambda each: self.losses[each])
        listed = ", ".join(f"{_shown(each)} {loss:.4f}" for each, loss in self.losses.items())
        reason = "it has the lowest" if best == name else f"`{_shown(best)}` is not clearly better in"
        return f"{shown} was chosen: {reason} cross-validated NLL ({listed}){PENALTY if '(x' in listed else ''}"

    def calibrated(self, scores: Tensor) -> Tensor:
        if len(self.bias) != 2:
            return super().calibrated(scores)
        z = finite_scores(scores).log_softmax(-1)  # a probability of 0 has no square that 0 times it could undo
        curved = self.curve.to(z) * (z[..., 1] - z[..., 0]).square()
        return (super().calibrated(scores) + torch.stack([torch.zeros_like(curved), curved], -1)).log_softmax(-1)

    def extra_repr(self) -> str:
        return f"chosen={self.chosen}, {super().extra_repr()}"


def sample_losses(state: State, data: HeldOut) -> Tensor:
    """NLL of each sample."""
    log_probs = mixed(Chosen("none", state, {}).calibrated(data.scores), torch.tensor(state.uniform))
    return F.nll_loss(log_probs, data.labels, reduction="none")


def paired(loss: Tensor, other: Tensor, weights: Tensor) -> tuple[float, float]:
    """How much lower the first is on average, and the standard error of that."""
    shares, away = (weights / weights.sum()).double(), (other - loss).double()
    mean = shares @ away
    return float(mean), math.sqrt(float(shares.square() @ (away - mean).square()))


def hopeful(losses: Mapping[str, Tensor], weights: Tensor) -> tuple[str, ...]:
    """All but the matrices that are far behind `ts`: these take long to fit.

    >>> even, more = torch.full((4,), 0.5), torch.tensor([0.1, 0.2, 0.2, 0.3])
    >>> hopeful({"ts": even, "svs": even + more, "sms": even - more, "ms": even + more}, torch.ones(4))
    ('ts', 'svs', 'sms')
    """

    def behind(loss: Tensor) -> bool:
        gained, error = paired(loss, losses["ts"], weights)
        return gained < -HOPELESS * error

    return tuple(name for name, loss in losses.items() if name not in MATRICES or not behind(loss))


def choose(losses: Mapping[str, Tensor], weights: Tensor, errors: float) -> str:
    """`ts`, unless others beat it by their margins; `errors`: how many samples are predicted wrongly.

    >>> even, ahead = torch.tensor([0.5, 0.3, 0.4, 0.2]), torch.tensor([0.3, 0.1, 0.1, -0.1])
    >>> [choose({"ts": even, "svs": even - ahead}, torch.ones(4), errors) for errors in (0, 5, 50)]
    ['ts', 'ts', 'svs']
    """
    if not errors:
        return "ts"
    found = "ts"
    for name in (each for each in losses if each != "ts"):
        gained, error = paired(losses[name], losses[found], weights)
        found = name if gained > (DOUBT[name] + RARE / errors) * error else found
    return found


@dataclass(frozen=True)
class AutomaticCalibration(PostHoc):
    """Chooses by cross-validation on the calibration set. `prior`: as for `ts`."""

    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Chosen("none", State.plain(num_classes), {})

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        data = check_held_out(outputs, labels, "auto", weights, groups)
        names = candidates(data.classes, data.size)
        losses = {name: torch.full_like(data.weights, torch.nan) for name in names}
        fold, found = data.folds(FOLDS), States()
        for f in range(FOLDS):
            part, left = data.at(fold != f), data.at(fold == f)
            found = Part(part, self.prior).solve(names, found)
            losses = {name: losses[name] for name in found}
            for name, state in found.items():
                losses[name][fold == f] = sample_losses(state, left)
            names = hopeful({name: loss[fold <= f] for name, loss in losses.items()}, data.weights[fold <= f])
        losses = {name: losses[name] for name in names}
        errors = float(data.weights[data.scores.argmax(1) != data.labels].sum())
        name = choose(losses, data.weights, errors)
        means = {each: float(data.shares @ loss) for each, loss in losses.items()}
        return Chosen(name, Part(data, self.prior).solve([name], found, FLAT)[name], means)


METHODS = {
    "auto": Method(
        "auto",
        posthoc=AutomaticCalibration(),
        about="chooses by cross-validation: none, ts, ts-uniform, svs, sms, ms",
        when="The model is trained, and you have a few hundred held-out samples. The default of `balcal.Calibrator`.",
        paper="Ours",
        venue="balcal",
        cost="five fits of each candidate after training",
    )
}
