"""Wang, Zhang: Calibration Bottleneck: Over-compressed Representations are Less Calibratable. ICML 2024.

Progressively layer-peeled training. The network is L groups of layers, bottom to top, the head being the last:

    stage k = 0 .. L-1 trains the lowest L - k groups;  it starts at epoch floor((k/L)^gamma E), for k >= 1 not before 1

The classifier is frozen first, the stem never. gamma > 1 begins earlier. Frozen means: no step, no weight decay, no
moving momentum. BatchNorm statistics of frozen layers keep moving. Everything is free again when training ends. The
aim is a network that post-hoc methods calibrate better: use `plp+ts`.

Groups are the backbone's `blocks()`. For other networks they are its children in the order of their registration,
with containers opened. Layers that hold vectors only (a norm) go with the block below them, weights outside of any
block with the lowest. BalCAL's classifiers and adapter are one group, the head. Which stage it is follows from epoch
and epochs alone; in a loop of your own, call `model.method.before_epoch(model, epoch, epochs)` before each epoch.

Paper and released code differ: the authors' code compares epochs for equality and stays at stage 0 for good if two
stages start together, which with L = 11 and gamma = 1.25 is every run of up to 20 epochs; here such a run skips
stages. Their ResNets split the last block by convolutions; here blocks are whole. They use gamma = 1; the BalCAL
paper has 1.25, and its code parses that setting but does nothing with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from balcal.backbones.tapped import blocks_of
from balcal.core import BalcalError, BeforeEpoch, Classifier
from balcal.recipe import Method
from balcal.runtime.values import above, check_settings


@dataclass(frozen=True)
class Peel(BeforeEpoch):
    """Freeze the network from the top while training goes on."""

    gamma: Annotated[float, above(0)] = 1.25

    def __post_init__(self) -> None:
        check_settings(self, "before_epoch")

    def stage(self, groups: int, epoch: int, epochs: int) -> int:
        """How many groups are frozen.

        >>> [Peel(gamma=1.0).stage(4, epoch, 8) for epoch in range(8)]
        [0, 0, 1, 1, 2, 2, 3, 3]
        >>> [Peel(gamma=1.0).stage(4, epoch, 2) for epoch in range(2)]
        [0, 3]
        """
        starts = [max(1, int((k / groups) ** self.gamma * epochs)) for k in range(1, groups)]
        return sum(start <= epoch for start in starts)

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> None:
        found = groups(model)
        frozen = self.stage(len(found), epoch, epochs)
        trained, peeled = found[: len(found) - frozen], found[len(found) - frozen :]
        for weight in (weight for group in peeled for weight in group):
            weight.requires_grad_(False)
            weight.grad = None  # an optimiser would go on with it: momentum and weight decay move what has a gradient
        if not any(weight.requires_grad for group in trained for weight in group):
            raise BalcalError(
                "plp freezes layers from the top, but the lowest ones are frozen already: free some of them"
            )


def groups(model: Classifier) -> list[list[nn.Parameter]]:
    """The weights of the network in order, bottom to top; each once."""
    found: list[list[nn.Parameter]] = []
    seen: set[int] = set()
    for block in (*blocks_of(model.backbone), model.head):
        weights = [weight for weight in block.parameters() if id(weight) not in seen]
        seen |= {id(weight) for weight in weights}
        if found and block is not model.head and all(weight.ndim < 2 for weight in weights):
            found[-1] += weights
        elif weights:
            found.append(weights)
    loose = [weight for weight in model.backbone.parameters() if id(weight) not in seen]
    if loose:
        found[0] = loose + found[0]
    return found


METHODS = {
    "plp": Method(
        "plp",
        before_epoch=Peel(),
        about="schedule: layers frozen from the top",
        when="A post-hoc method follows: `plp+ts`.",
        paper="Wang, Zhang",
        venue="ICML 2024",
        cost="none",
    )
}
