"""What the families share: stems, pooling, initialisation, and a line for `balcal list backbones`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Described:
    """A builder, called with the number of input channels, and what it builds in one line."""

    build: Callable[[int], nn.Module]
    about: str

    def __call__(self, channels: int) -> nn.Module:
        return self.build(channels)


@dataclass(frozen=True)
class Stem:
    """How a network is fitted to the size of its images: at the bottom, and where the last map becomes a vector."""

    large: bool
    pool: int
    about: str


STEMS = {
    "cifar": Stem(large=False, pool=1, about="32 px: 3 x 3 stem, no pooling in it"),
    "tiny": Stem(large=False, pool=2, about="64 px: 3 x 3 stem, last map pooled to 2 x 2"),
    "imagenet": Stem(large=True, pool=1, about="224 px: 7 x 7 stem and max-pooling, each of stride 2"),
}
"""`tiny` is what MbLS and those that follow it train on Tiny-ImageNet, hence the 2 x 2"""


def by_stem(name: str, build: Callable[[Stem], Callable[[int], nn.Module]], size: str) -> dict[str, Described]:
    """A network under all its names; the bare one has the stem for CIFAR."""
    found = {f"{name}-{key}": Described(build(stem), f"{stem.about}; {size}") for key, stem in STEMS.items()}
    return {name: found[f"{name}-cifar"], **found}


def pooled(feature_map: Tensor, side: int) -> Tensor:
    """(N, C, H, W) -> (N, C side^2): the mean over each cell of a grid.

    >>> import torch
    >>> pooled(torch.arange(4.0).view(1, 1, 2, 2), 1), pooled(torch.arange(4.0).view(1, 1, 2, 2), 2)
    (tensor([[1.5000]]), tensor([[0., 1., 2., 3.]]))
    """
    if side == 1:
        return feature_map.mean((2, 3))
    return F.adaptive_avg_pool2d(feature_map, side).flatten(1)


def initialise(network: nn.Module) -> None:
    """He's normal initialisation of convolutions, by outputs. Norms keep torch's: scale 1, shift 0, also the last."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
