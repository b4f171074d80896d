"""The vocabulary: what a network returns, and the nine roles that a method may fill.

Shape letters, here and everywhere: N samples, K classes, D features, B branches. One line trains everything:

    loss = sum_t weight_t * sum_b loss_weight_b * Loss(logits[b, t], labels_t) + penalty

where t runs over the terms that a `Mix` makes of a batch and b over the branches that a `Head` returns. Of the roles
loss, mix and select may be plain functions; the others inherit their defaults from the class here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Fusion = Literal["probs", "logits"]
Split = Literal["train", "val"]
Sums = dict[str, Tensor]  # of a tally over an epoch: a few tensors that add up over batches and over processes
Record = dict[str, Any]  # one line of a history: the numbers of one epoch


class BalcalError(Exception):
    """A mistake that the user can correct; the message says how, in one sentence.

    >>> raise BalcalError("label 3 is out of range: with 3 classes labels run from 0 to 2")
    Traceback (most recent call last):
    balcal.core.BalcalError: label 3 is out of range: with 3 classes labels run from 0 to 2
    """


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a head returns for a batch: logits (B, N, K) of B branches, and their shares."""

    logits: Tensor
    weights: Tensor
    """(B,): the branch's share of the prediction; they sum to one, or to more where logits are fused and sharpened"""
    loss_weights: Tensor
    """(B,), sum to one: the branch's share of the training loss"""
    fusion: Fusion | None = "probs"
    """None: there is one branch, and it is the prediction already"""
    penalty: Tensor | float = 0.0
    features: Tensor | None = None
    """(N, D) that the head read, where there is a network"""

    @staticmethod
    def of(scores: Tensor) -> Outputs:
        """Log-probabilities or logits (N, K) without a network: `log_probs` returns them as they are."""
        return Outputs(scores[None], scores.new_ones(1), scores.new_ones(1), fusion=None)

    def log_probs(self) -> Tensor:
        """The fused prediction (N, K) as log-probabilities, which are also valid logits.

        >>> z, half = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]]), torch.tensor([0.5, 0.5])
        >>> Outputs(z, half, half, "probs").log_probs().exp()
        tensor([[0.6904, 0.3096]])
        >>> Outputs(z, half, half, "logits").log_probs().exp()
        tensor([[0.7311, 0.2689]])
        """
        if self.fusion is None:
            return self.logits[0]
        if self.fusion == "logits":
            return torch.einsum("b,bnk->nk", self.weights, self.logits).log_softmax(-1)
        return (self.weights.log()[:, None, None] + self.logits.log_softmax(-1)).logsumexp(0)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Log-probabilities (N, K) of a trained model, and the true labels (N,). Metrics are functions of this.

    >>> found = Predictions(torch.tensor([[0.9, 0.1]]).log(), torch.tensor([0]))
    >>> len(found), found.probs
    (1, tensor([[0.9000, 0.1000]]))
    """

    log_probs: Tensor
    labels: Tensor
    role: str | None = None
    """which split these are of, where it is known: nothing may be fitted on `test`"""

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    def __len__(self) -> int:
        return len(self.labels)

    def for_fitting(self) -> Predictions:
        """These predictions, unless they are of the test split."""
        if self.role == "test":
            raise BalcalError("these are predictions of the test role: fit and choose on held-out data, judge on these")
        return self


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of the loss. Labels are class indices: mixing mixes losses, not labels."""

    weight: Tensor | float
    outputs: Outputs
    labels: Tensor
    counts: bool = True
    """whether a tally may count these; if it may count no term, the unmixed batch gets a forward pass of its own"""


Resolve = Callable[[Outputs], Sequence[Term]]


class Head(nn.Module):
    """Features in, weighted branches out. Never sees labels.

    Everything that decides a prediction is in `state_dict`: the weights of the branches and their fusion are buffers.
    """

    weights: Tensor
    loss_weights: Tensor
    fuse_logits: Tensor

    def __init__(self, weights: Sequence[float], fusion: Fusion = "probs") -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("loss_weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("fuse_logits", torch.tensor(int(fusion == "logits"), dtype=torch.uint8))
        self.fusion: Fusion = fusion

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.fusion = "logits" if bool(self.fuse_logits) else "probs"

    def outputs(self, *logits: Tensor) -> Outputs:
        """Pack the branches' logits, at least in float32 whatever the network computed in."""
        return Outputs(at_least_float32(torch.stack(logits)), self.weights, self.loss_weights, self.fusion)

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        """`features` (N, D); `feature_map` (N, C, H, W), or None where `HeadSpec.needs_map` is False."""
        raise NotImplementedError


@runtime_checkable
class Backbone(Protocol):
    """timm's contract: any timm model is a backbone as it is."""

    num_features: int

    def forward_features(self, x: Tensor) -> Tensor: ...
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor: ...


class Parent(Protocol):
    """The finished run that a training starts from. `epochs` are those whose weights were kept, the last included."""

    @property
    def epochs(self) -> Sequence[int]: ...
    @property
    def chosen(self) -> int: ...
    def weights(self, epoch: int) -> Mapping[str, Tensor]: ...


class Classifier(Protocol):
    """The parts of a model that a role may use."""

    num_classes: int
    head: Head
    backbone: nn.Module
    parent: Parent | None

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


class Loss(Protocol):
    """(logits (N, K), labels (N,)) -> mean over samples, a scalar; in float32 at least.

    One with an `idle_within` is plain cross-entropy where every logit lies in [-idle_within, idle_within].
    """

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


class Mix(Protocol):
    """(images, labels, rng) -> inputs for the network, and how to read its outputs."""

    def __call__(self, images: Tensor, labels: Tensor, rng: Generator) -> tuple[Tensor, Resolve]: ...


class HeadSpec(Protocol):
    """(features D, classes K) -> a head. `learnable`: a trained classifier to keep; `channels`: of the feature map."""

    @property
    def needs_map(self) -> bool:
        """whether the head reads the backbone's feature map"""
        return False

    @property
    def before_norm(self) -> bool:
        """and that before the backbone's last norm, where there is one"""
        return False

    @property
    def fusion(self) -> Fusion:
        return "probs"

    @property
    def logit_bounds(self) -> tuple[float, ...]:
        """how large the logits of each branch can get, infinity where there is no bound; empty: not known"""
        return ()

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head: ...


class BeforeEpoch(Protocol):
    """(model, epoch, of how many): freeze what is not trained in the coming epoch, or begin it with new weights.

    A part in eval mode here stays so for the epoch. Torch's generator is set from (seed, epoch). Called again on
    resuming, so follows from its arguments alone. Frozen until the end. True: weights are new, restart the optimiser.
    """

    still: ClassVar[bool] = False
    """the backbone's features of an image never change, so they may be computed once"""
    keeps_classifier: ClassVar[bool] = False
    """the parent's classifier is kept where it fits into another kind of head"""

    @property
    def parent_settings(self) -> tuple[str, ...]:
        """what the parent's run must be trained with, written as for `--set`"""
        return ()

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> bool | None: ...


class Tally(Protocol):
    """Counts over an epoch, then sets gamma, beta or the like in the head. `on` says which split it counts."""

    only_weights: ClassVar[bool] = False
    """sets nothing but the weights of the prediction: logits of the validation split need not be computed again"""
    moves_bounds: ClassVar[bool] = False
    """changes the `logit_bounds` that the head names"""

    @property
    def on(self) -> Split: ...
    def start(self, model: Classifier) -> Sums: ...
    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None: ...
    def finish(self, sums: Sums, model: Classifier) -> Record: ...
    def advice(self, history: Sequence[Record]) -> str | None:
        """a sentence after a training, if it had nothing to do in most epochs, or did too much"""


class Select(Protocol):
    """Which epoch becomes the model: its index in the history."""

    def __call__(self, history: Sequence[Record]) -> int: ...


class PostHoc(Protocol):
    """Fits a map of outputs to log-probabilities (N, K) on held-out data; samples of a group share a fold."""

    reads_branches: ClassVar[bool] = False
    """needs the branches: the fused log-probabilities are not enough"""
    as_they_are: ClassVar[bool] = False
    """a constant added to all scores of a row changes the result, so logits must not be large"""
    reads_features: ClassVar[bool] = False
    """needs the features too, and `learn` before `fit`"""

    def learn(self, head: Head, outputs: Outputs, labels: Tensor) -> PostHoc:
        """This role with what it has to know of a trained head and its training split; `fit` comes next."""
        return self

    def identity(self, num_classes: int) -> nn.Module: ...
    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module: ...


class Views(Protocol):
    """(images (N, C, H, W), whether training flipped some) -> views of them; their mean probability is predicted."""

    def __call__(self, images: Tensor, flipped: bool) -> Sequence[Tensor]: ...


class Join(Protocol):
    """Which runs are one model: those of `seeds`, of each some `epochs` (None: the one that it chooses)."""

    @property
    def posthoc(self) -> Literal["after", "before"]: ...
    @property
    def keep(self) -> int | None: ...
    def seeds(self, seed: int) -> Sequence[int]: ...
    def epochs(self, epochs: int) -> Sequence[int] | None: ...


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a loss; what is finer than float32 stays."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
