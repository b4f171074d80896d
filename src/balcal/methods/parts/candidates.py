"""The candidates of `auto`: how each is fitted, and what comes of it, in one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import Outputs
from balcal.methods.binary import BinaryScaling, LogOdds
from balcal.methods.parts.held_out import HeldOut
from balcal.methods.parts.newton import NotSettled
from balcal.methods.structured import solve_matrix, solve_svs, tempered_log_probs
from balcal.methods.temperature import solve_temperature
from balcal.methods.ts_uniform import Mixture, label_log_probs, solve_mixture, solve_share

MATRICES = {
    "sms-30": ("sms", 30.0),
    "sms-10": ("sms", 10.0),
    "sms-3": ("sms", 3.0),
    "sms": ("sms", 1.0),
    "sms-third": ("sms", 0.3),
    "sms-tenth": ("sms", 0.1),
    "ms": ("ms", 3.0),
}
"""which penalty, and how much of it. With that of `sms`, weights between classes cost K - 1 times as much as a class's
own; with that of `ms`, K - 1 times less"""
ROUGH = 1e-3
"""slope at which the fit on a fold may end: its loss is then known to about a millionth"""


@dataclass(frozen=True, eq=False)
class State:
    """What any candidate comes to: log softmax(W log softmax(scores / T) + b), with s^2 times `curve` on class 1, and
    the share `uniform` of the uniform distribution."""

    temperature: float
    weight: Tensor
    bias: Tensor
    uniform: float
    curve: float = 0.0

    @classmethod
    def plain(cls, k: int, temperature: float = 1.0, uniform: float = 0.0) -> State:
        return cls(temperature, torch.eye(k).double(), torch.zeros(k).double(), uniform)


States = dict[str, State]


class Part:
    """A set to fit candidates on."""

    def __init__(self, data: HeldOut, prior: float) -> None:
        self.data, self.prior, self.uniform = data, prior, data.uniform(prior)

    @cached_property
    def mixture(self) -> Mixture:
        return solve_mixture(self.data, self.prior)

    @cached_property
    def tempered(self) -> HeldOut:
        """What `svs`, `sms` and `ms` are fitted on."""
        scores = tempered_log_probs(self.data.scores, self.mixture.temperature)
        return HeldOut(scores, self.data.labels, self.mixture.weights)

    def solve(self, names: Iterable[str], starts: Mapping[str, State], small: float = ROUGH) -> States:
        """Fit candidates; `starts` are their fits on similar sets, from where the optimum is near.

        One whose fit does not settle is left out.
        """
        found: States = {}
        before: State | None = None
        for name in names:
            with suppress(NotSettled):
                found[name] = self._state(name, starts.get(name, before), small)
                before = found[name] if name in MATRICES else before
        return found

    def _state(self, name: str, near: State | None, small: float) -> State:
        k, prior = self.data.classes, self.prior
        if name == "none":
            return State.plain(k, uniform=self.uniform)
        if name == "ts":
            t = solve_temperature(self.data.scores, self.data.labels, self.data.weights, prior)
            return State.plain(k, t, self.uniform)
        if name == "ts-uniform":
            return State.plain(k, self.mixture.temperature, self.mixture.share)
        if name == "svs":
            begin = None if near is None else (near.weight.diagonal().contiguous(), near.bias)
            scale, bias = solve_svs(self.tempered, "auto", begin, small)
            return self._mixed(scale.diag(), bias)
        if name in MATRICES:
            start = None if near is None else (near.weight, near.bias)
            return self._mixed(*_matrix(name, self.tempered, start, small))
        return _binary(name, self.data, prior)

    def _mixed(self, weight: Tensor, bias: Tensor) -> State:
        """With the share of the uniform distribution that is best behind them."""
        own = label_log_probs(F.linear(self.tempered.scores, weight, bias), self.data.labels, 1.0)
        share = solve_share(own, self.data.weights, self.data.classes, self.uniform)
        return State(self.mixture.temperature, weight, bias, share)


def _matrix(name: str, data: HeldOut, start: tuple[Tensor, Tensor] | None, small: float) -> tuple[Tensor, Tensor]:
    family, strength = MATRICES[name]
    one, apart = strength * data.classes / data.size, data.classes - 1
    return solve_matrix(data, one, one * apart if family == "sms" else one / apart, "auto", start, small)


def _binary(kind: Any, data: HeldOut, prior: float) -> State:
    fitted = BinaryScaling(kind, prior).fit(Outputs.of(data.scores), data.labels, data.weights)
    assert isinstance(fitted, LogOdds)
    c = fitted.coefficients.tolist()
    slopes = (c[1], c[0]) if kind == "beta" else (c[0], c[0])
    bias, curve = torch.tensor([0.0, c[-1]]).double(), c[1] if kind == "quadratic" else 0.0
    return State(1.0, torch.tensor(slopes).double().diag(), bias, data.uniform(prior), curve)
