"""Ni, Zhao, Gao, Guo, Zha: Balancing Two Classifiers via A Simplex ETF Structure for Model Calibration. CVPR 2025.

Beside the learnable classifier s = W z + b stands a fixed one on a simplex ETF M, behind an adapter A:

    e = beta unit(A(z)) M
    p = gamma softmax(s) + (1 - gamma) softmax(e)             (fusion of probabilities, the paper's)
    L = gamma Loss(s, y) + (1 - gamma) Loss(e, y)

After every epoch gamma solves  conf(gamma) = delta acc(gamma). With beta = 1 the ETF head is under-confident and
tempers an over-confident classifier; with beta = K it is over-confident and sharpens an under-confident one.

`balcal-logits` fuses softmax(gamma s + (1 - gamma) e), as the released code does. `balcal-auto` is ours. It fuses
logits, too. Gamma is solved on the validation split, with delta = 1, and may exceed 1. The weights in use are an
average over the steps of training, or those of the last step if they do better on the validation split. Nothing is left
to tune, whether the network is over-confident or under-confident. `balcal_trials.py` has what we tried on the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BalcalError, Classifier, Fusion, Head, HeadSpec, Outputs, Record, Split, Sums, Tally
from balcal.methods.parts import gamma_search as balance
from balcal.methods.parts.etf import Adapter, ConvAdapter, NoAdapter, VectorAdapter, adapted_width, simplex_etf
from balcal.methods.weights_in_use import OR_LAST
from balcal.recipe import Method
from balcal.runtime.values import above, at_least, check_settings, within

Beta = float | Literal["K"]
AdapterName = Literal["vector", "conv"] | None
Points = Annotated[int, at_least(2, most=100_000)]
"""number of candidates in a grid"""
ADAPTERS: dict[str, type[VectorAdapter] | type[ConvAdapter]] = {"vector": VectorAdapter, "conv": ConvAdapter}


class EtfHead(Head):
    """The fixed classifier alone. The frame, beta and delta are buffers."""

    etf: Tensor
    beta: Tensor
    delta: Tensor

    def __init__(self, fixed: Fixed, weights: tuple[float, ...] = (1.0,), fusion: Fusion = "probs") -> None:
        super().__init__(weights, fusion)
        self.adapter = fixed.adapter
        self.register_buffer("etf", fixed.etf)
        self.register_buffer("beta", torch.tensor(fixed.beta))
        self.register_buffer("delta", torch.tensor(fixed.delta))

    def etf_logits(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        return self.beta * F.normalize(self.adapter(features, feature_map), dim=1) @ self.etf

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        return self.outputs(self.etf_logits(features, feature_map))


class BalancedHead(EtfHead):
    """The learnable classifier and the fixed one, gamma between them."""

    def __init__(self, classifier: nn.Linear, fixed: Fixed, spec: Balanced) -> None:
        super().__init__(fixed, (spec.gamma, 1 - spec.gamma), spec.fusion)
        self.classifier = classifier
        self.loss_follows = spec.loss_follows

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        return self.outputs(self.classifier(features), self.etf_logits(features, feature_map))

    @property
    def gamma(self) -> float:
        return float(self.weights[0])

    def set_gamma(self, gamma: float) -> None:
        """Above 1 the fixed classifier has no share: see `balance.shares`."""
        if gamma > 1 and self.fusion == "probs":
            raise BalcalError(f"gamma = {gamma:.3g} is no share of probabilities: above 1 only logits can be fused")
        self.weights.copy_(torch.tensor(balance.shares(gamma)))
        if self.loss_follows:
            share = min(gamma, 1.0)
            self.loss_weights.copy_(torch.tensor([share, 1 - share]))


@dataclass(frozen=True, eq=False)
class Fixed:
    """The parts of the fixed classifier."""

    adapter: Adapter
    etf: Tensor
    beta: float
    delta: float


@dataclass(frozen=True)
class Etf(HeadSpec):
    """The ETF classifier in place of the learnable one."""

    beta: Annotated[Beta, above(0, "be above 0 (or K)")] = 1.0
    delta: Annotated[float, within("(0, 1]")] = 0.95
    adapter: AdapterName = None

    def __post_init__(self) -> None:
        check_settings(self, "head")

    @property
    def needs_map(self) -> bool:
        return self.adapter == "conv"

    @property
    def logit_bounds(self) -> tuple[float, ...]:
        """A unit feature times a unit column, times beta."""
        return (math.inf if self.beta == "K" else float(self.beta),)

    def fixed(self, features: int, num_classes: int, channels: int | None) -> Fixed:
        source = channels if self.needs_map and channels else features
        width = adapted_width(source, num_classes) if self.adapter else source
        etf = simplex_etf(width, num_classes)
        adapter = ADAPTERS[self.adapter](source, width) if self.adapter else NoAdapter()
        return Fixed(adapter, etf, float(num_classes if self.beta == "K" else self.beta), self.delta)

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        return EtfHead(self.fixed(features, num_classes, channels))


@dataclass(frozen=True)
class Balanced(Etf):
    """Both classifiers. `gamma` is where it starts; `loss_follows` says whether the loss uses the solved one."""

    adapter: AdapterName = "vector"
    fusion: Fusion = "probs"
    gamma: Annotated[float, within("[0, 1]")] = 0.5
    loss_follows: bool = True

    @property
    def logit_bounds(self) -> tuple[float, ...]:
        return (math.inf, *super().logit_bounds)

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        classifier = learnable or nn.Linear(features, num_classes)
        return BalancedHead(classifier, self.fixed(features, num_classes, channels), self)


H = TypeVar("H", bound=Head)


def _head(model: Classifier, kind: type[H], dial: str) -> H:
    if not isinstance(model.head, kind):
        raise BalcalError(f"only a {kind.__name__} has a {dial} to solve, this model has a {type(model.head).__name__}")
    return model.head


@dataclass(frozen=True)
class SolveGamma(Tally):
    """Re-solve gamma after every epoch, on the training batches as they were seen or on the validation split."""

    only_weights: ClassVar[bool] = True
    on: Split = "train"
    points: Points = 129
    guard: Annotated[float, at_least(0)] = 0.01

    def __post_init__(self) -> None:
        check_settings(self, "tally")

    def start(self, model: Classifier) -> Sums:
        return balance.start_sums(self.points, model.head.weights.device)

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        add = balance.add_gamma_logits if outputs.fusion == "logits" else balance.add_gamma_probs
        standard, etf = outputs.logits.detach()
        add(sums, standard, etf, labels, weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head = _head(model, BalancedHead, "gamma")
        curve = balance.Curve.of(sums, balance.gamma_grid(self.points, sums["conf"]))
        solution = balance.solve_gamma(curve, float(head.delta), self.guard)
        head.set_gamma(solution.value)
        return solution.record("gamma")


@dataclass(frozen=True)
class SolveFreely(SolveGamma):
    """The same where gamma may exceed 1, for fused logits: see `balance.solve_freely`.

    On training batches, whose accuracy is above that of other images, it aims at `seen` times that accuracy: the middle
    of what the paper recommends for delta.
    """

    seen: ClassVar[float] = 0.95
    on: Split = "val"
    points: Points = 33
    bold_points: Points = 17

    def start(self, model: Classifier) -> Sums:
        bold = balance.start_sums(self.bold_points, model.head.weights.device)
        return super().start(model) | {f"bold_{name}": values for name, values in bold.items()}

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        super().add(sums, outputs, labels, weights)
        balance.add_scale(self._bold(sums), outputs.logits[0].detach(), labels, balance.bold_grid, weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head, bold = _head(model, BalancedHead, "gamma"), self._bold(sums)
        tempered = balance.Curve.of(sums, balance.gamma_grid(self.points, sums["conf"]))
        sharpened = balance.Curve.of(bold, balance.bold_grid(self.bold_points, bold["conf"]))
        delta = float(head.delta) * (1.0 if self.on == "val" else self.seen)
        solution = balance.solve_freely(tempered, sharpened, delta, self.guard, float(sums["count"]))
        head.set_gamma(solution.value)
        return solution.record("gamma")

    @staticmethod
    def _bold(sums: Sums) -> Sums:
        return {name.removeprefix("bold_"): values for name, values in sums.items() if name.startswith("bold_")}


@dataclass(frozen=True)
class SolveBeta(Tally):
    """Re-solve beta of an ETF head after every epoch: the dynamic-beta ablation.

    It counts a factor on the epoch's beta, so it needs only logits.
    """

    moves_bounds: ClassVar[bool] = True
    on: Split = "train"
    points: Points = 129

    def __post_init__(self) -> None:
        check_settings(self, "tally")

    def start(self, model: Classifier) -> Sums:
        return balance.start_sums(self.points, model.head.weights.device)

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        balance.add_scale(sums, outputs.logits[0].detach(), labels, weights=weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head = _head(model, EtfHead, "beta")
        curve = balance.Curve.of(sums, balance.scale_grid(self.points, sums["conf"]))
        solution = balance.solve_scale(curve, float(head.delta))
        head.beta.mul_(solution.value).clamp_(1e-3, 1e4)
        return solution.record("scale") | {"beta": float(head.beta)}


_MORE = "beside the learnable classifier a fixed ETF one; gamma re-solved every epoch"
SECOND_HEAD = "a second, small head"

METHODS = {
    m.name: replace(m, paper="Ni, Zhao, Gao, Guo, Zha", venue="CVPR 2025")
    for m in (
        Method("balcal", head=Balanced(), tally=SolveGamma(), about=f"{_MORE}; probability fusion", cost=SECOND_HEAD),
        Method(
            "balcal-k",
            head=Balanced(beta="K"),
            tally=SolveGamma(),
            about=f"{_MORE}; beta = K lifts confidence",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-logits",
            head=Balanced(fusion="logits"),
            tally=SolveGamma(),
            about=f"{_MORE}; logit fusion",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-auto",
            head=Balanced(fusion="logits", delta=1.0),
            tally=SolveFreely(),
            settings=OR_LAST,
            about="ours: logit fusion, gamma solved on the validation split, averaged weights; nothing to tune",
            cost=f"{SECOND_HEAD}; an addition of the weights per step; one more validation at the end",
        ),
        Method(
            "balcal-noadapter",
            head=Balanced(adapter=None),
            tally=SolveGamma(),
            about="ablation: no adapter",
            cost=SECOND_HEAD,
        ),
        Method("balcal-fixed", head=Balanced(), about="ablation: gamma 0.5 in loss and fusion", cost=SECOND_HEAD),
        Method(
            "balcal-fixedloss",
            head=Balanced(loss_follows=False),
            tally=SolveGamma(),
            about="ablation: gamma 0.5 in the loss, solved in the fusion",
            cost=SECOND_HEAD,
        ),
        Method("balcal-beta", head=Etf(), tally=SolveBeta(), about="ablation: ETF classifier alone, beta re-solved"),
        Method("etf-1", head=Etf(), about="ablation: ETF classifier alone, beta = 1"),
        Method("etf-k", head=Etf(beta="K"), about="ablation: ETF classifier alone, beta = K"),
    )
}
