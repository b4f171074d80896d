"""Use a user's network as a backbone: its features are the input of its classifier, its blocks its children."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from balcal.backbones.classifiers import as_it_was, as_linear, call, leaves, not_at_the_end, used_again


class Tap(nn.Module):
    """Takes the classifier's place and passes its input through. A map is pooled to a vector, and passed as a map."""

    takes_a_classifiers_place: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None
        self.again = False
        """whether it was reached more than once in a pass"""

    def begin(self) -> None:
        """A new pass begins."""
        self.seen, self.again = None, False

    def forward(self, features: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.again = self.seen is not None
        self.seen = features
        return features


class TappedNetwork(nn.Module):
    """A user's network without its classifier, as a backbone."""

    map_channels: ClassVar[None] = None  # nothing is known of what comes before its features

    def __init__(self, network: nn.Module, path: str) -> None:
        super().__init__()
        self.path = path
        self.classifier = [network.get_submodule(path)]  # in a list: it is no part of the backbone
        self.on_maps = not isinstance(self.classifier[0], nn.Linear)
        own: Any = self.classifier[0]
        self.num_features: int = own.in_channels if self.on_maps else own.in_features
        self.tap = Tap()
        self.network = network
        self.checked = not self.on_maps

    def take_over(self) -> None:
        """From now on the network ends in the tap."""
        self._put(self.tap)

    def give_back(self) -> None:
        """The network is again as it was."""
        self._put(self.classifier[0])

    def _put(self, layer: nn.Module) -> None:
        parent, _, name = self.path.rpartition(".")
        self.network.get_submodule(parent).register_module(name, layer)

    def forward_features(self, x: Any) -> Tensor:
        given = self._pass(x)
        features, self.tap.seen = self.tap.seen, None
        if features is None:
            raise not_at_the_end(self.path)
        if torch.compiler.is_compiling():
            return _vector(features) if self.on_maps else features
        if self.on_maps:
            return self._pooled(features, x)
        if not any(_is_view(each, features) for each in leaves(given)):
            raise not_at_the_end(self.path)
        return features

    def _pass(self, x: Any) -> Any:
        """What the network gives, with the tap in the classifier's place."""
        if torch.compiler.is_compiling():
            return call(self.network, x)
        self.tap.begin()
        try:
            given = call(self.network, x)
        except Exception as error:
            if self.tap.seen is None:
                raise  # an error of the network's own
            self.tap.seen = None
            raise not_at_the_end(self.path) from error
        if self.tap.again:
            self.tap.seen = None
            raise used_again(self.path)
        return given

    def _pooled(self, features: Tensor, x: Any) -> Tensor:
        """A convolution of one pixel and a mean over pixels may change places, unless something stands in between.

        Features are often positive, so that a ReLU in between does not show: the first batch is passed negated, too.
        """
        if not self.checked:
            hook = self.tap.register_forward_hook(lambda _module, _x, out: -out)
            try:
                with torch.no_grad(), as_it_was(self.network):
                    given = next(leaves(call(self.network, x)), None)
                    negated = _vector(cast(Tensor, self.tap.seen))
            finally:
                hook.remove()
                self.tap.seen = None
            shown = (
                None if given is None else given.reshape(negated.shape) if given.numel() == negated.numel() else None
            )
            if shown is None or not torch.allclose(shown, -negated, rtol=1e-3, atol=1e-4):
                raise not_at_the_end(self.path)
            self.checked = True
        return _vector(features)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Any) -> Tensor:
        return self.forward_features(x)


def _vector(features: Tensor) -> Tensor:
    """(N, D, ...) -> (N, D)."""
    return features.flatten(2).mean(2) if features.ndim > 2 else features


def _is_view(given: Tensor, features: Tensor) -> bool:
    """Whether a network's output is what the tap passed on, reshaped at most."""
    return given is features or (given.numel() == features.numel() and given.data_ptr() == features.data_ptr())


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
    return as_linear(own, num_classes)
