"""Make models: `wrap` from any network, `build` from a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from balcal import registry
from balcal.backbones.tapped import CustomFeatures, TappedNetwork, find_classifier, own_classifier
from balcal.core import Backbone, BalcalError
from balcal.methods.vanilla import VANILLA
from balcal.model import Model, evaluating
from balcal.recipe import Method, Recipe
from balcal.runtime.randomness import own_randomness


def as_method(method: Method | str) -> Method:
    return registry.method(method) if isinstance(method, str) else method.filled(VANILLA)


def wrap(
    network: nn.Module,
    num_classes: int,
    method: Method | str = "balcal-auto",
    features: Callable[[Tensor], Tensor] | None = None,
    num_features: int | None = None,
) -> Model:
    """Make a calibrated model of any network; by default with `balcal-auto`, which has nothing to tune.

    - A backbone with timm's interface (`num_features`, `forward_features`, `forward_head`) is used as it is.
    - Otherwise the last `nn.Linear` is found and its input tapped. If it already has `num_classes` outputs it stays the
      learnable classifier, weights and all.
    - Otherwise pass `features=`, a function from images to a matrix (N, D), and `num_features=` D.

    The network is not copied: it becomes a part of the model.

    >>> wrap(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), num_classes=10).head.fusion
    'logits'
    """
    chosen = as_method(method)
    if features is not None:
        if num_features is None:
            num_features = getattr(network, "num_features", None)
        if num_features is None:
            raise BalcalError("wrap cannot know how wide features(x) is: pass num_features= as well")
        return _placed(Model(CustomFeatures(network, features, num_features), num_classes, chosen), network)
    if isinstance(network, Backbone):
        model = Model(cast(nn.Module, network), num_classes, chosen, own_classifier(network, num_classes))
        leave = getattr(network, "reset_classifier", None)
        if leave is not None:
            leave(0)
        return _placed(model, model.backbone)
    path = find_classifier(network)
    classifier = cast(nn.Linear, network.get_submodule(path))
    tapped = TappedNetwork(network, path, classifier)
    model = Model(tapped, num_classes, chosen, classifier if classifier.out_features == num_classes else None)
    tapped.take_over()
    return _placed(model, network)


def _placed(model: Model, network: nn.Module) -> Model:
    """Move the new parts to the network's device."""
    first = next(network.parameters(), None)
    if first is not None:
        model.head.to(first.device)
        model.posthoc.to(first.device)
    return model


def build(recipe: Recipe, weights: bool = True) -> Model:
    """The recipe's model with fresh weights, drawn from torch's generator as it stands.

    `weights=False`: pretrained weights are not loaded, since others will replace them.
    """
    dataset = registry.dataset(recipe.task.dataset)
    backbone = registry.backbone(recipe.task.backbone, dataset.channels, weights)
    model = Model(backbone, dataset.num_classes, as_method(recipe.method))
    if weights:
        _try_out(model, (dataset.channels, *2 * (recipe.task.side or dataset.side,)), recipe.task.backbone)
    return cast(Model, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


@torch.no_grad()
def _try_out(model: Model, shape: tuple[int, ...], backbone: str) -> None:
    """Pass one blank image through a new network, so that a size that does not fit is found before there is a run."""
    try:
        with evaluating(model), own_randomness():
            model(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BalcalError(
            f"images of {shape[-2]} x {shape[-1]} pixels do not go through `{backbone}` ({reason}): "
            "choose another task.side or task.backbone"
        ) from None
