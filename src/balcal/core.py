"""The vocabulary: what a network returns, what a method may change, and the seven roles that do the changing.

Shape letters, here and everywhere: N samples, K classes, D features, B branches.

One line trains everything:

    loss = sum_t weight_t * sum_b loss_weight_b * Loss(logits[b, t], labels_t) + penalty

where t runs over the terms that a `Mix` makes of a batch and b over the branches that a `Head` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Fusion = Literal["probs", "logits"]
Split = Literal["train", "val"]
Sums = dict[str, Tensor]
"""What a tally remembers of an epoch: a few tensors that add up over batches and over processes."""

Record = dict[str, Any]
"""One line of a history: the numbers of one epoch."""


class BalcalError(Exception):
    """A mistake that the person at the keyboard can mend; the message says how, in one sentence."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a head says of a batch: logits of B branches, and how they weigh in the prediction and in the loss."""

    logits: Tensor
    """(B, N, K)"""
    weights: Tensor
    """(B,): the branch's share of the prediction; they sum to one, or to more where logits are fused and sharpened"""
    loss_weights: Tensor
    """(B,), sum to one: the branch's share of the training loss"""
    fusion: Fusion = "probs"
    penalty: Tensor | float = 0.0

    def log_probs(self) -> Tensor:
        """The one prediction (N, K), as log-probabilities: valid logits for whatever comes next.

        >>> z = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]])
        >>> half = torch.tensor([0.5, 0.5])
        >>> Outputs(z, half, half, "probs").log_probs().exp()
        tensor([[0.6904, 0.3096]])
        >>> Outputs(z, half, half, "logits").log_probs().exp()
        tensor([[0.7311, 0.2689]])
        """
        if self.fusion == "logits":
            return torch.einsum("b,bnk->nk", self.weights, self.logits).log_softmax(-1)
        return (self.weights.log()[:, None, None] + self.logits.log_softmax(-1)).logsumexp(0)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a trained model says of a data set, and what was true. Metrics are functions of this."""

    log_probs: Tensor
    """(N, K)"""
    labels: Tensor
    """(N,) class indices"""
    role: str | None = None
    """which part of the data these are, where it is known: nothing may be fitted on `test`"""

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    def __len__(self) -> int:
        return len(self.labels)

    def for_fitting(self) -> Predictions:
        """These predictions, unless they are what everything is to be judged by."""
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
    """whether outputs and labels belong together closely enough for a tally to count them; if no term does, the batch
    is counted as it came, by a forward pass of its own"""


Resolve = Callable[[Outputs], Sequence[Term]]


class Head(nn.Module):
    """Features in, weighted branches out. Never sees labels.

    Everything that decides a prediction is a buffer, so it travels in `state_dict`: the weights of the branches and
    the way they are fused. What is not in `state_dict` does not exist.
    """

    weights: Tensor
    loss_weights: Tensor
    fuse_logits: Tensor

    def __init__(self, weights: Sequence[float], fusion: Fusion = "probs") -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("loss_weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("fuse_logits", torch.tensor(int(fusion == "logits"), dtype=torch.uint8))
        self._fusion: Fusion = fusion

    @property
    def fusion(self) -> Fusion:
        return self._fusion

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._fusion = "logits" if bool(self.fuse_logits) else "probs"

    def outputs(self, *logits: Tensor) -> Outputs:
        """Pack the branches' logits, at least in float32 whatever the network computed in."""
        return Outputs(at_least_float32(torch.stack(logits)), self.weights, self.loss_weights, self.fusion)

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        """`features` (N, D); `feature_map` (N, C, H, W) where the backbone has one, for heads that look at places."""
        raise NotImplementedError


@runtime_checkable
class Backbone(Protocol):
    """timm's contract: any timm model is a backbone as it is."""

    num_features: int

    def forward_features(self, x: Tensor) -> Tensor: ...
    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor: ...


class Parent(Protocol):
    """The finished run that a training starts from."""

    @property
    def epochs(self) -> Sequence[int]:
        """those whose weights were kept, the last of all among them"""
        ...

    @property
    def chosen(self) -> int: ...
    def weights(self, epoch: int) -> Mapping[str, Tensor]: ...


class Classifier(Protocol):
    """As much of the model as a role may touch."""

    num_classes: int
    head: Head
    backbone: nn.Module
    parent: Parent | None

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


# The seven roles. Each is a single call or a small value; a Method fills those that it changes.


class Loss(Protocol):
    """(logits (N, K), labels (N,)) -> mean over samples, a scalar; in float32 at least."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...


class Mix(Protocol):
    """(images, labels, rng) -> inputs for the network, and how to read its outputs."""

    def __call__(self, images: Tensor, labels: Tensor, rng: Generator) -> tuple[Tensor, Resolve]: ...


class HeadSpec(Protocol):
    """(features D, classes K) -> a head.

    `learnable`, if given, is a trained classifier that must be kept; `channels` are those of the feature map.
    """

    @property
    def needs_map(self) -> bool:
        """whether the head looks at the backbone's feature map"""
        ...

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head: ...


class BeforeEpoch(Protocol):
    """(model, epoch, of how many): freeze what is not to be trained in the coming epoch, or begin it with new weights.

    The model is in training mode; a part that is put into eval mode here stays so for the epoch. Torch's generator is
    set from (seed, epoch). Called before each epoch and again on resuming, so it must follow from its arguments alone.
    What it freezes is free again when training ends. True: weights were set anew, so the optimiser starts afresh.
    """

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> bool | None: ...


class Tally(Protocol):
    """Counts over an epoch, then sets the head's dials. `on` says which batches it is fed.

    One that sets nothing but the weights of the prediction may say so by `only_weights = True`: then the logits that it
    was fed are used once more where it was fed the validation split, and the network is not asked a second time.
    """

    @property
    def on(self) -> Split: ...

    def start(self, model: Classifier) -> Sums: ...
    def add(self, sums: Sums, outputs: Outputs, labels: Tensor) -> None: ...
    def finish(self, sums: Sums, model: Classifier) -> Record: ...


class Select(Protocol):
    """Which epoch becomes the model: its index in the history."""

    def __call__(self, history: Sequence[Record]) -> int: ...


class PostHoc(Protocol):
    """Fitted on held-out predictions, never part of training. A map takes log-probabilities to log-probabilities."""

    def identity(self, num_classes: int) -> nn.Module: ...
    def fit(self, log_probs: Tensor, labels: Tensor) -> nn.Module: ...


# What a role may say of itself, so that a combination without effect can be pointed out (`Method.remarks`).


@runtime_checkable
class IdleWithin(Protocol):
    """A loss that is plain cross-entropy as long as every logit lies in [-idle_within, idle_within]."""

    @property
    def idle_within(self) -> float: ...


@runtime_checkable
class Bounded(Protocol):
    """A head that can say how large the logits of each of its branches can get; infinity where there is no bound."""

    @property
    def logit_bounds(self) -> tuple[float, ...]: ...


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a loss; what is finer than float32 stays.

    >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.zeros(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@runtime_checkable
class ReadsOutputs(Protocol):
    """A post-hoc role that must see the branches, not only the prediction that they make together."""

    def fit_outputs(self, outputs: Outputs, labels: Tensor) -> OutputsMap: ...


class OutputsMap(nn.Module):
    """What such a role fits: outputs in, log-probabilities (N, K) out."""

    def forward(self, outputs: Outputs) -> Tensor:
        raise NotImplementedError


def check_batch(images: Tensor, labels: Tensor, where: str) -> None:
    """Labels must be a list of whole numbers, one for each image.

    >>> check_batch(torch.zeros(3, 8), torch.tensor([0, 1]), "batch 1")
    Traceback (most recent call last):
    balcal.core.BalcalError: batch 1 has 3 images and 2 labels: each image needs one label
    """
    if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1:
        raise BalcalError(
            f"labels in {where} must be a list of class indices, not {labels.dtype} {tuple(labels.shape)}"
        )
    count = len(images) if images.ndim else 0
    if count != len(labels):
        raise BalcalError(f"{where} has {count} images and {len(labels)} labels: each image needs one label")


def check_labels(labels: Tensor, num_classes: int, where: str) -> None:
    """Labels must be whole numbers from 0 to K-1."""
    check_batch(labels, labels, where)
    whole = labels.long()
    low, high = (int(x) for x in whole.aminmax()) if len(labels) else (0, 0)
    if not 0 <= low <= high < num_classes:
        bad = int(whole[(whole < 0) | (whole >= num_classes)][0])
        bad += 2**64 if bad < 0 and labels.dtype == torch.uint64 else 0
        raise BalcalError(
            f"label {bad} in {where} is out of range: with {num_classes} classes labels run from 0 to {num_classes - 1}"
        )


def sum_dtype(device: torch.device) -> torch.dtype:
    """Sums are kept in float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64
