"""The two classifiers of BalCAL: the ETF head alone, or beside a learnable one with gamma between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BalcalError, Fusion, Head, HeadSpec, Outputs
from balcal.methods.parts.etf import (
    Adapter,
    ConvAdapter,
    NoAdapter,
    NormAdapter,
    ReleasedAdapter,
    VectorAdapter,
    adapted_width,
    simplex_etf,
)
from balcal.methods.parts.gamma_search import shares
from balcal.runtime.values import above, at_least, check_settings, within

Beta = float | Literal["K"]
AdapterName = Literal["vector", "conv", "released", "norm"] | None
ADAPTERS: dict[str, type[VectorAdapter] | type[ConvAdapter] | type[NormAdapter]] = {
    "vector": VectorAdapter,
    "conv": ConvAdapter,
    "released": ReleasedAdapter,
    "norm": NormAdapter,
}


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
        """Above 1 the fixed classifier has no share: see `shares`."""
        if gamma > 1 and self.fusion == "probs":
            raise BalcalError(f"gamma = {gamma:.3g} is no share of probabilities: above 1 only logits can be fused")
        self.weights.copy_(torch.tensor(shares(gamma)))
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
    """`vector` and `conv` are ours, `released` is the authors'; `norm` only makes features signed"""
    bottleneck: Annotated[int | None, at_least(1, "be at least 1, or none")] = None
    """width inside the adapter; none: half of the features"""

    def __post_init__(self) -> None:
        check_settings(self, "head")

    @property
    def needs_map(self) -> bool:
        return self.adapter in ("conv", "released")

    @property
    def before_norm(self) -> bool:
        return self.adapter == "released"

    @property
    def logit_bounds(self) -> tuple[float, ...]:
        """A unit feature times a unit column, times beta."""
        return (math.inf if self.beta == "K" else float(self.beta),)

    def fixed(self, features: int, num_classes: int, channels: int | None) -> Fixed:
        source = channels if self.needs_map and channels else features
        width = adapted_width(source, num_classes) if self.adapter not in (None, "norm") else source
        etf = simplex_etf(width, num_classes)
        adapter = ADAPTERS[self.adapter](source, width, self.bottleneck) if self.adapter else NoAdapter()
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
