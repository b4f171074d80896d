"""The mean of several predictions as a model: of several networks (`join`), or of several views of an image (`tta`).

A head always returns weighted branches. So the mean needs no new kind of model: the backbone's features are the
log-probabilities of all members side by side, and its head makes each of them a branch of weight 1/M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from balcal.core import BalcalError, Head, HeadSpec, Outputs, Views, at_least_float32

NEAR = 1e-4
"""rows that are not below 0 and sum to 1 up to this are probabilities, which a softmax would spoil"""


class AverageHead(Head):
    """Log-probabilities (N, M * K) of M members in; M branches of equal weight out, fused as probabilities."""

    def __init__(self, members: int) -> None:
        super().__init__([1 / members] * members)

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        return self.outputs(*features.chunk(len(self.weights), dim=1))


@dataclass(frozen=True)
class Average(HeadSpec):
    """The mean of probabilities."""

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        return AverageHead(features // num_classes)


class Members(nn.Module):
    """Classifiers of the same classes as a backbone; its features are their log-probabilities (N, M * K)."""

    map_channels: ClassVar[None] = None

    def __init__(self, models: Sequence[nn.Module], num_classes: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)
        self.num_classes, self.num_features = num_classes, len(models) * num_classes

    def forward_features(self, x: Any) -> Tensor:
        return torch.cat([log_probs_of(model, x, self.num_classes) for model in self.members], dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x


class Viewed(nn.Module):
    """One classifier that looks at several views of each image, as a backbone."""

    map_channels: ClassVar[None] = None

    def __init__(self, model: nn.Module, views: Views, flipped: bool, num_classes: int) -> None:
        super().__init__()
        self.model, self.views, self.flipped, self.num_classes = model, views, flipped, num_classes
        self.num_features = len(views(torch.zeros(1, 1, 8, 8), flipped)) * num_classes

    def forward_features(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise BalcalError("`tta` looks at flipped and shifted images (N, C, H, W): other inputs have no such views")
        seen = [log_probs_of(self.model, view, self.num_classes) for view in self.views(x, self.flipped)]
        return torch.cat(seen, dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x


def log_probs_of(model: nn.Module, x: Any, num_classes: int) -> Tensor:
    """Log-probabilities (N, K) of a model that returns them, or logits."""
    given = model(**x) if isinstance(x, dict) and not hasattr(model, "posthoc") else model(x)
    scores = getattr(given, "logits", given)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] != num_classes:
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise BalcalError(
            f"a member gave {shape} in place of logits (N, {num_classes}): pass num_classes= as it has it"
        )
    scores = at_least_float32(scores)
    if not torch.compiler.is_compiling() and bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < NEAR).all()):
        raise BalcalError("a member gives probabilities: have it give logits or log-probabilities")
    return scores.log_softmax(1)
