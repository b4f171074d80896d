"""Make models: `wrap` from any network, `build` from a recipe; post-hoc methods by their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from balcal import registry
from balcal.backbones.classifiers import as_linear, classifier_of, outputs_of
from balcal.backbones.from_timm import as_wide_as_its_head
from balcal.backbones.tapped import CustomFeatures, TappedNetwork, own_classifier
from balcal.core import Backbone, BalcalError, PostHoc
from balcal.methods.joining import maps_networks, parts
from balcal.methods.parts.average import Average, Members, Viewed
from balcal.methods.parts.etf import VectorAdapter
from balcal.methods.vanilla import VANILLA
from balcal.model import Model, as_taken_by, evaluating
from balcal.recipe import Method, Recipe
from balcal.runtime.names import unknown
from balcal.runtime.randomness import own_randomness
from balcal.runtime.values import at_least, check_value

LARGEST_SHARE = 0.05
"""of the network's parameters that the adapter of a wrapped model may add"""
LEAST_WIDTH = 32
"""hidden units that it has in any case, if half as many as there are features are not fewer"""


def as_method(method: Method | str) -> Method:
    if isinstance(method, str):
        return registry.method(method)
    if not isinstance(method, Method):
        raise BalcalError(f'a method is given by its name, such as "balcal-auto", not by {type(method).__name__}')
    return method.filled(VANILLA)


def wrap(
    network: nn.Module,
    num_classes: int,
    method: Method | str = "balcal-auto",
    classifier: str | None = None,
    features: Callable[..., Tensor] | None = None,
    num_features: int | None = None,
    sample: Any = None,
    width: int | None = None,
    quiet: bool = False,
) -> Model:
    """Make a calibrated model of any network; by default with `balcal-auto`, which has nothing to tune.

    A backbone with timm's interface (`num_features`, `forward_features`, `forward_head`) is used as it is. Of any other
    network the layer is found that gives the logits: a linear layer, or a 1x1 convolution. If it has `num_classes`
    outputs it stays the learnable classifier, weights and all; so does one with a single logit for two classes.

    Parameters
    ----------
    network
        Any `nn.Module`. It is not copied: it becomes a part of the model. If it cannot be wrapped, it stays as it was.
    num_classes
        How many classes there are; 2 for a network with one logit.
    method
        The name of a method, or several joined by `+`: see `balcal list methods`.
    classifier
        The path of the classifier, such as `"head.fc"`, where another layer is found than you mean.
    features, num_features
        A function from inputs to a matrix (N, D), and D: for networks that do not end in a classifier.
    sample
        A batch of inputs. With it the network is run once, so that what does not fit is found here, not at the first
        batch; it also settles which of several layers gives the logits, and the sizes of lazy layers.
    width
        Hidden units of BalCAL's adapter. By default half as many as there are features, but no more than add 5 % to
        the network's parameters, and 32 at least.
    quiet
        Do not say how many parameters are added.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> wrap(network, num_classes=10, quiet=True).head.fusion
    'logits'
    """
    check_value("width", width, int | None, at_least(1))
    num_classes = check_value("num_classes", num_classes, int)
    if width is not None and getattr(as_method(method).head, "adapter", None) != "vector":
        raise BalcalError(f"width= is for BalCAL's adapter, and `{as_method(method)}` has none: leave it out")
    model = _wrapped(network, num_classes, method, classifier, features, num_features, sample)
    before = _parameters(model.backbone) + _parameters(getattr(model.head, "classifier", None))
    fit_adapter(model, before, width)
    model = _placed(model, model.backbone)
    added = _parameters(model) - before
    if added > 0 and not quiet:
        share = f" ({added / before:.1%} of the network's {before:,})" if before else ""
        print(f"balcal: `{model.method.name}` adds {added:,} parameters{share}", file=sys.stderr)
    return model


def _parameters(module: nn.Module | None) -> int:
    return sum(weight.numel() for weight in module.parameters()) if module is not None else 0


def fit_adapter(model: Model, parameters: int, width: int | None) -> None:
    """Make the adapter of a wrapped model as wide as asked, or as the network's size allows."""
    adapter = getattr(model.head, "adapter", None)
    if not isinstance(adapter, VectorAdapter):
        return
    first, last = cast(nn.Linear, adapter.branch[0]), cast(nn.Linear, adapter.branch[-1])
    usual, each = first.out_features, first.in_features + last.out_features + 3  # parameters per hidden unit
    wanted = width or min(usual, max(LEAST_WIDTH, int(LARGEST_SHARE * parameters / each)))
    if wanted != usual:
        model.head.adapter = VectorAdapter(first.in_features, last.out_features, wanted)
        model.head_width = wanted


def _wrapped(
    network: nn.Module,
    num_classes: int,
    method: Method | str,
    classifier: str | None,
    features: Callable[..., Tensor] | None,
    num_features: int | None,
    sample: Any,
) -> Model:
    chosen, inner = as_method(method), _unwrapped(network)
    if chosen.join is not None or chosen.views is not None:
        raise BalcalError(f"`{chosen}` is the mean of several predictions: use balcal.join([model, ...]) or balcal.tta")
    sample = as_taken_by(inner, sample)
    if features is not None:
        if classifier is not None:
            raise BalcalError("classifier= and features= exclude each other: pass one of them")
        if not callable(features):
            raise BalcalError(
                f"features= takes a function from inputs to a matrix (N, D), not {type(features).__name__}"
            )
        width = num_features if num_features is not None else getattr(inner, "num_features", None)
        if width is None:
            raise BalcalError("wrap cannot know how wide features(x) is: pass num_features= as well")
        width = check_value("num_features", width, int, at_least(1))
        return _tried(_placed(Model(CustomFeatures(inner, features, width), num_classes, chosen), inner), sample)
    if num_features is not None:
        raise BalcalError("num_features= goes with features=: pass both, or neither")
    if isinstance(inner, Backbone) and classifier is None:
        before = as_wide_as_its_head(inner)
        try:
            model = Model(cast(nn.Module, inner), num_classes, chosen, own_classifier(inner, num_classes))
        except BaseException:
            vars(inner).update(before)
            raise
        leave = getattr(inner, "reset_classifier", None)
        if leave is not None and getattr(inner, "num_classes", None) != 0:
            vars(inner).update(before)
            leave(0)
            as_wide_as_its_head(inner)
        return _placed(model, model.backbone)
    model = _tapped(inner, num_classes, chosen, classifier, sample)
    if hasattr(network, "_orig_mod"):  # compiled by the user: the backbone is compiled in the same manner
        model.features = getattr(network, "dynamo_ctx", torch.compile)(model.features)  # type: ignore[method-assign]
    return model


def _tapped(network: nn.Module, num_classes: int, method: Method, classifier: str | None, sample: Any) -> Model:
    """A model of a network whose classifier is found, or named."""
    if outputs_of(network):  # the network is a classifier, and takes the features themselves
        network = nn.Sequential(network)
    tapped = TappedNetwork(network, classifier_of(network, num_classes, classifier, sample))
    model = Model(tapped, num_classes, method, as_linear(tapped.classifier[0], num_classes))
    tapped.take_over()
    try:
        return _tried(_placed(model, network), sample)
    except BaseException:
        tapped.give_back()
        raise


def _unwrapped(network: nn.Module) -> nn.Module:
    """The network itself, if it can be wrapped; a compiled one is compiled again as a backbone."""
    if isinstance(network, Model):
        raise BalcalError("this is a model of balcal.wrap already: use it as it is, or wrap another network")
    if not isinstance(network, nn.Module):
        raise BalcalError(f"wrap takes an nn.Module, not a {type(network).__name__}")
    if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise BalcalError("wrap the network itself, network.module; balcal.fit exchanges gradients under torchrun")
    inner = getattr(network, "_orig_mod", network)
    for module in inner.modules():
        if getattr(module, "takes_a_classifiers_place", False):
            raise BalcalError(
                "this network is wrapped already, and its classifier is in that model: use that, or a fresh network"
            )
    return cast(nn.Module, inner)


def _tried(model: Model, sample: Any) -> Model:
    """Pass a user's sample through the new model."""
    if sample is not None:
        with evaluating(model), own_randomness(), torch.no_grad():
            model(sample)
    return model


def _placed(model: Model, network: nn.Module) -> Model:
    """Move the new parts to the network's device; the head has the network's precision, float32 at least."""
    first = next((weight for weight in network.parameters() if weight.is_floating_point()), None)
    if first is not None:
        model.head.to(first.device, torch.promote_types(first.dtype, torch.float32))
        model.posthoc.to(first.device)
    return model


def assemble(recipe: Recipe, method: Method, network: Callable[[Recipe, Method], Model]) -> Model:
    """The recipe's model under a method: one network, or the mean over members and views, each made by `network`."""
    method = as_method(method)
    if joined := parts(recipe, method):
        models = [assemble(*part, network) for part in joined]
        return average(Members(models, models[0].num_classes), models[0].num_classes, method)
    if method.views is None:
        return network(recipe, method)
    inner = method.without("views", *(() if maps_networks(method) else ("posthoc",)))
    model = assemble(recipe, inner, network)
    flipped = "flip" in recipe.task.augment
    return average(Viewed(model, method.views, flipped, model.num_classes), model.num_classes, method)


def average(backbone: nn.Module, num_classes: int, method: Method) -> Model:
    """A model of members: the mean of their probabilities, and the post-hoc map unless each of them has its own."""
    posthoc = VANILLA.posthoc if maps_networks(method) else method.posthoc
    mean = Method(method.name, head=Average(), posthoc=posthoc, views=method.views, join=method.join)
    return _placed(Model(backbone, num_classes, mean.filled(VANILLA)), backbone)


def build(recipe: Recipe, weights: bool = True) -> Model:
    """The recipe's model with fresh weights, drawn from torch's generator as it stands.

    `weights=False`: pretrained weights are not loaded, since others will replace them.
    """
    return assemble(recipe, recipe.method, lambda each, method: _fresh(replace(each, method=method), weights))


def _fresh(recipe: Recipe, weights: bool) -> Model:
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


def calibrators() -> list[str]:
    """The names of all post-hoc methods."""
    return [name for name, each in registry.table("methods").items() if set(each.changes) == {"posthoc"}]


def spec_of(method: str, settings: Mapping[str, Any] | None = None) -> PostHoc:
    """The post-hoc role of a method by its name, with these settings."""
    if not isinstance(method, str):
        raise BalcalError(f'a post-hoc method is given by its name, such as "ts", not by {type(method).__name__}')
    if not isinstance(settings, Mapping | None):
        raise BalcalError(f"settings go by name, {{'by': 'ece'}}, not as {type(settings).__name__}")
    if method not in registry.table("methods"):
        raise BalcalError(unknown("post-hoc method", method, calibrators()))
    found = registry.method(method)
    if set(found.changes) != {"posthoc"}:
        raise BalcalError(f"`{method}` is not applied after training; these are: {', '.join(calibrators())}")
    spec = found.posthoc
    for name, value in (settings or {}).items():
        known = [f.name for f in fields(spec)]  # type: ignore[arg-type]
        if name not in known:
            raise BalcalError(unknown(f"setting of `{method}`", str(name), known))
        spec = replace(spec, **{name: value})  # type: ignore[type-var]
    return spec


def posthoc_of(spec: Any) -> dict[str, Any] | None:
    """The name and the settings of a post-hoc method; None for one that does nothing."""
    named = {name: registry.method(name).posthoc for name in calibrators()}
    alike = [name for name, each in named.items() if type(each) is type(spec)]
    equal = [name for name in alike if named[name] == spec]
    if not alike:
        return None
    return {"name": (equal or alike)[0], "settings": {f.name: getattr(spec, f.name) for f in fields(spec)}}
