"""Plain training: one linear classifier, cross-entropy, the epoch with the lowest validation NLL.

    L = mean_i( -log softmax(z_i)[y_i] )

`VANILLA` fills every role. Every other method fills only what it changes, and takes the rest from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from balcal.core import (
    BeforeEpoch,
    Classifier,
    Head,
    HeadSpec,
    Outputs,
    PostHoc,
    Record,
    Resolve,
    Term,
    at_least_float32,
)
from balcal.recipe import Method
from balcal.runtime.values import check_settings


@dataclass(frozen=True)
class CrossEntropy:
    """-log p(label), averaged."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(at_least_float32(logits), labels)


@dataclass(frozen=True)
class NoMix:
    """The batch as it is: one input, one term."""

    def __call__(self, images: Tensor, labels: Tensor, rng: Generator) -> tuple[Tensor, Resolve]:
        return images, lambda outputs: [Term(1.0, outputs, labels)]


class LinearHead(Head):
    """One branch with weight one."""

    def __init__(self, classifier: nn.Linear) -> None:
        super().__init__([1.0])
        self.classifier = classifier

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        return self.outputs(self.classifier(features))


@dataclass(frozen=True)
class Linear(HeadSpec):
    """One learnable linear classifier."""

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        return LinearHead(learnable or nn.Linear(features, num_classes))


@dataclass(frozen=True)
class AllTrainable(BeforeEpoch):
    """Before an epoch: nothing to do."""

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> None:
        pass


@dataclass(frozen=True)
class Lowest:
    """The epoch with the lowest value of a validation figure; the first one, if several are equal."""

    figure: Literal["val_nll", "val_ece"] = "val_nll"

    def __post_init__(self) -> None:
        check_settings(self, "select")

    def __call__(self, history: Sequence[Record]) -> int:
        return min(range(len(history)), key=lambda epoch: history[epoch][self.figure])


class Identity(nn.Module):
    """The prediction as the head fuses it."""

    def forward(self, outputs: Outputs) -> Tensor:
        return outputs.log_probs()


@dataclass(frozen=True)
class Unchanged(PostHoc):
    """No calibration after training."""

    def identity(self, num_classes: int) -> nn.Module:
        return Identity()

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        return Identity()


VANILLA = Method(
    "vanilla",
    loss=CrossEntropy(),
    mix=NoMix(),
    head=Linear(),
    before_epoch=AllTrainable(),
    select=Lowest(),
    posthoc=Unchanged(),
    origin=(),
)

METHODS = {
    "vanilla": Method("vanilla", about="nothing: cross-entropy, one classifier", when="As the baseline; add `ts`.")
}
