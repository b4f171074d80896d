"""Use a user's network as a backbone: its features are the input of its last linear layer, its blocks its children."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from balcal.core import BalcalError

USUAL_PLACES = ("fc", "classifier", "head", "heads.head", "head.fc", "heads", "linear", "output")


class Tap(nn.Module):
    """Takes the classifier's place and passes its input through."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        self.seen = features
        return features


class TappedNetwork(nn.Module):
    """A user's network without its last linear layer, as a backbone."""

    map_channels: ClassVar[None] = None  # nothing is known of what comes before its features

    def __init__(self, network: nn.Module, path: str, classifier: nn.Linear) -> None:
        super().__init__()
        self.num_features = classifier.in_features
        self.path = path
        self.tap = Tap()
        self.network = network

    def take_over(self) -> None:
        """From now on the network ends in the tap."""
        parent, _, name = self.path.rpartition(".")
        self.network.get_submodule(parent).register_module(name, self.tap)

    def forward_features(self, x: Tensor) -> Tensor:
        out: Any = self.network(x)
        features, self.tap.seen = self.tap.seen, None
        if features is None or out is not features:
            raise BalcalError(
                f"the network does not end with its layer `{self.path}` (does a softmax follow, or is it not used?): "
                "pass features= a function from images to a matrix (N, D), and num_features= D"
            )
        return features

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


class CustomFeatures(nn.Module):
    """A user's network and function, as a backbone."""

    map_channels: ClassVar[None] = None

    def __init__(self, network: nn.Module, features: Callable[[Tensor], Tensor], num_features: int) -> None:
        super().__init__()
        self.network = network
        self.features = features
        self.num_features = num_features

    def forward_features(self, x: Tensor) -> Tensor:
        return self.features(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


def find_classifier(network: nn.Module) -> str:
    """The path of the last linear layer: the usual names first, then the last one registered.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    linear: list[str] = [name for name, module in network.named_modules() if type(module) is nn.Linear and name]
    for place in USUAL_PLACES:
        inside = [name for name in linear if name == place or name.startswith(f"{place}.")]
        if inside:
            return inside[-1]
    if not linear:
        raise BalcalError(
            f"wrap found no nn.Linear in {type(network).__name__} to take the place of: "
            "pass features= a function from images to a matrix (N, D), and num_features= D"
        )
    return linear[-1]


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """Blocks bottom to top: what `blocks()` says, or else the children in the order in which they were registered.

    Containers are opened, and so is a network that only wraps another one.

    >>> [type(block).__name__ for block in blocks_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), Tap())))]
    ['Linear', 'ReLU', 'Tap']
    """
    own = getattr(backbone, "blocks", None)
    if inspect.ismethod(own):  # timm's vision transformers have a module by that name
        return list(own())
    blocks = [block for child in backbone.children() for block in _opened(child)]
    filled = [block for block in blocks if next(block.parameters(), None) is not None]
    if len(filled) == 1 and next(filled[0].children(), None) is not None:
        return blocks_of(filled[0])
    return blocks


def _opened(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.Sequential | nn.ModuleList):
        return [block for child in module for block in _opened(child)]
    return [module]


def own_classifier(backbone: Any, num_classes: int) -> nn.Linear | None:
    """A timm model's classifier, if it already has the right number of classes."""
    own = backbone.get_classifier() if hasattr(backbone, "get_classifier") else None
    return own if isinstance(own, nn.Linear) and own.out_features == num_classes else None
