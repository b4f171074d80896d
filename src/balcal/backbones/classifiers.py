"""Find the classifier of a user's network: a linear layer, or a convolution of one pixel, that gives the logits.

Names settle it if one layer alone has as many outputs as there are classes. Else one pass does: with hooks if there is
a sample, by symbolic tracing if not. The layer that gives the network's output is the classifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn

from balcal.core import BalcalError

USUAL_PLACES = ("fc", "classifier", "head", "heads.head", "head.fc", "heads", "linear", "output")
HELP = "pass features= a function from inputs to a matrix (N, D), and num_features= D"


def call(network: Any, x: Any) -> Any:
    """The network's output for an input that may be several: a tuple by position, a dictionary by name."""
    if isinstance(x, Mapping):
        return network(**x)
    return network(*x) if isinstance(x, list | tuple) else network(x)


def tried(network: nn.Module, sample: Any) -> Any:
    """The network's output for a user's sample; if it raises an error, a sentence says so."""
    try:
        return call(network, sample)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BalcalError(
            f"sample= does not go through the network ({reason:.200}): pass a batch of inputs as the network takes them"
        ) from None


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors of an output, however it is packed, in its order; `logits` come first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=lambda name: name != "logits"):
            yield from leaves(value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)


def outputs_of(layer: nn.Module) -> int:
    """How many outputs a layer has that may be a classifier; 0 if it cannot be one.

    >>> outputs_of(nn.Linear(8, 3)), outputs_of(nn.Conv2d(8, 5, 1)), outputs_of(nn.Conv2d(8, 5, 3))
    (3, 5, 0)
    """
    if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and layer.in_features:
        return layer.out_features if type(layer) is nn.Linear else 0
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and not isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        simple = set(layer.kernel_size) == {1} == set(layer.stride) and layer.groups == 1 and not any(layer.padding)
        return layer.out_channels if simple else 0
    return 0


def classifier_of(network: nn.Module, num_classes: int, named: str | None, sample: Any) -> str:
    """The path of the classifier, found or named; nothing that changes the logits follows it."""
    if named is None:
        path = find_classifier(network, num_classes, sample)
    else:
        path = check_classifier(network, str(named), sample)
    check_what_follows(network, path)
    return path


def find_classifier(
    network: nn.Module, num_classes: int | None = None, sample: Any = None, convolutions: bool = True
) -> str:
    """The path of the layer that gives the logits.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    settle_lazy(network, sample)
    layers = {name: outputs_of(module) for name, module in network.named_modules() if name and outputs_of(module)}
    if not convolutions:
        layers = {name: n for name, n in layers.items() if isinstance(network.get_submodule(name), nn.Linear)}
    if not layers:
        raise BalcalError(
            f"wrap found no nn.Linear in {type(network).__name__} to take the place of, nor a 1x1 convolution: {HELP}"
        )
    linear = [name for name in layers if isinstance(network.get_submodule(name), nn.Linear)]
    wanted = {num_classes, 1} if num_classes == 2 else {num_classes}
    fitting = [name for name, outputs in layers.items() if outputs in wanted]
    if sample is None and len(fitting) == 1 and fitting == (linear[-1:] or fitting):
        return str(fitting[0])
    order = hooked(network, sample) if sample is not None else traced(network)
    executed = [name for name in order if name in layers]
    giving = executed[-1] if executed and order[-1] == executed[-1] else None
    if giving is not None:
        return giving
    last = [name for name in executed if name in fitting] or ([] if executed else fitting)
    if len(last) == 1 or executed:
        return (last or executed)[-1]
    return _by_name(last or linear or list(layers))


def _by_name(layers: Sequence[str]) -> str:
    """By the usual names, or else the last one registered."""
    for place in USUAL_PLACES:
        inside = [name for name in layers if name == place or name.startswith(f"{place}.")]
        if inside:
            return inside[-1]
    return layers[-1]


def check_classifier(network: nn.Module, path: str, sample: Any = None) -> str:
    """A user's own choice of the classifier, as far as it can be checked before the first batch."""
    settle_lazy(network, sample)
    try:
        layer = network.get_submodule(path)
    except AttributeError:
        names = [name for name, module in network.named_modules() if name and outputs_of(module)]
        raise BalcalError(f"{type(network).__name__} has no layer `{path}`; it has {', '.join(names[-8:])}") from None
    if not path or not outputs_of(layer):
        raise BalcalError(
            f"classifier= names a linear layer or a 1x1 convolution, and `{path}` is a {type(layer).__name__}: {HELP}"
        )
    order = hooked(network, sample) if sample is not None else traced(network)
    if order and path not in order:
        raise BalcalError(f"the network does not use its layer `{path}`: name another one, or {HELP}")
    if order and order[-1] != path:
        raise not_at_the_end(path)
    return path


def not_at_the_end(path: str) -> BalcalError:
    return BalcalError(
        f"the network does not end with its layer `{path}` (does a softmax follow, or is it not used?): {HELP}"
    )


def used_again(path: str) -> BalcalError:
    return BalcalError(f"the network uses its layer `{path}` more than once in a pass: {HELP}")


@torch.no_grad()
def settle_lazy(network: nn.Module, sample: Any) -> None:
    """Give lazy layers their sizes by a pass of the sample."""
    lazy = [name for name, module in network.named_modules() if isinstance(module, nn.modules.lazy.LazyModuleMixin)]
    if lazy and sample is None:
        raise BalcalError(f"layer `{lazy[0]}` does not know its size before the first batch: pass sample= a batch")
    if lazy:
        modes = [(module, module.training) for module in network.modules()]
        network.eval()
        tried(network, sample)
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def hooked(network: nn.Module, sample: Any) -> list[str]:
    """The possible classifiers in the order of execution, the one that gives the output last; then "" if none does."""
    seen: list[tuple[str, Tensor]] = []
    layers = [(name, module) for name, module in network.named_modules() if name and outputs_of(module)]
    hooks = [
        module.register_forward_hook(lambda _module, _x, out, name=name: seen.append((name, out)))
        for name, module in layers
    ]
    try:
        with as_it_was(network):
            given = next(leaves(tried(network, sample)), None)
    finally:
        for hook in hooks:
            hook.remove()
    if given is None:
        return [*(name for name, _ in seen), ""]
    order = [name for name, _ in seen]
    for name, out in reversed(seen):
        same = out is given or (out.numel() == given.numel() and torch.equal(out.flatten(), given.flatten()))
        if same or (out.ndim > 2 and given.ndim == 2 and _close(out.flatten(2).mean(2), given)):
            return [*(each for each in order if each != name), name]
    return [*order, ""]


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@contextmanager
def as_it_was(network: nn.Module) -> Iterator[None]:
    """A pass in eval mode that leaves modes, buffers and attributes alone."""
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, own, buffers in before:
            vars(module).update(own)
            for name in set(vars(module)) - set(own):
                del vars(module)[name]
            module._buffers.update(buffers)


MEANS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
FUNCTIONS = {"softmax", "log_softmax", "logsigmoid", "sigmoid", "tanh", "relu", "mul", "truediv", "div", "add", "sub"}
LAYERS = tuple(f"torch.nn.modules.{kind}" for kind in ("activation", "batchnorm", "normalization", "pooling"))
"""what changes the logits if it follows the classifier; of others only a pass tells"""
TRANSPARENT = {"flatten", "squeeze", "view", "reshape", "contiguous", "float", "mean", "getitem", "identity", "dropout"}


def traced(network: nn.Module) -> list[str]:
    """The same by symbolic tracing; empty for a network that cannot be traced."""
    with suppress(Exception), as_it_was(network):
        graph = fx.Tracer().trace(network)
        calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
        order = [name for name in calls if outputs_of(network.get_submodule(name))]
        giving = _giving(network, next(node for node in graph.nodes if node.op == "output").args[0])
        return [*(name for name in order if name != giving), giving]
    return []


def _giving(network: nn.Module, node: Any) -> str:
    """The module that gives a node's value, seen through reshapes; "" if none does."""
    found = _seen_through(network, node)
    return str(found.target) if found is not None and found.op == "call_module" else ""


def _seen_through(network: nn.Module, node: Any) -> fx.Node | None:
    """The node that gives a node's value, seen through reshapes and means."""
    while not isinstance(node, fx.Node):
        if isinstance(node, Mapping) and node:
            node = node.get("logits", next(iter(node.values())))
        elif isinstance(node, list | tuple) and node:
            node = node[0]
        else:
            return None
    if node.op == "call_module":
        through = isinstance(network.get_submodule(str(node.target)), (nn.Flatten, nn.Identity, *MEANS))
    else:
        through = bool(node.args) and _name_of(node) in TRANSPARENT
    return _seen_through(network, node.args[0]) if through else node


def _name_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def check_what_follows(network: nn.Module, path: str) -> None:
    """Refuse a classifier if tracing shows that a softmax or the like follows it, or that it is used more than once.

    What cannot be traced is checked when a batch goes through.

    >>> check_what_follows(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "0")
    Traceback (most recent call last):
    balcal.core.BalcalError: the network does not end with its layer `0` (does a softmax follow, ...
    """
    uses, follows = 0, False
    with suppress(Exception), as_it_was(network):
        nodes = list(fx.Tracer().trace(network).nodes)
        uses = sum(node.op == "call_module" and node.target == path for node in nodes)
        given = nodes[-1].args[0]  # of several outputs any may be the logits
        last = _seen_through(network, given) if isinstance(given, fx.Node) else None
        if last is not None and last.op == "call_module":
            follows = type(network.get_submodule(str(last.target))).__module__ in LAYERS
        else:
            follows = last is not None and _name_of(last) in FUNCTIONS
    if uses > 1:
        raise used_again(path)
    if follows:
        raise not_at_the_end(path)


def as_linear(layer: Any, num_classes: int) -> nn.Linear | None:
    """The layer as the learnable classifier of so many classes; None if it is for others, and a new one is needed.

    A network with one logit z has p = sigmoid(z) = softmax(-z/2, z/2).

    >>> one = nn.Linear(3, 1)
    >>> x = torch.randn(4, 3)
    >>> torch.allclose(as_linear(one, 2)(x).softmax(1)[:, 1], one(x)[:, 0].sigmoid())
    True
    """
    outputs = outputs_of(layer) if isinstance(layer, nn.Module) else 0
    if not outputs or outputs not in ({num_classes, 1} if num_classes == 2 else {num_classes}):
        return None
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)  # a head does not work in half precision
    if isinstance(layer, nn.Linear) and outputs == num_classes and layer.weight.dtype == dtype:
        return layer
    weight, bias = layer.weight.detach().flatten(1), None if layer.bias is None else layer.bias.detach()
    if outputs != num_classes:
        weight, bias = torch.cat([-weight / 2, weight / 2]), None if bias is None else torch.cat([-bias / 2, bias / 2])
    made = nn.Linear(weight.shape[1], num_classes, bias is not None, weight.device, dtype)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    for parameter in made.parameters():
        parameter.requires_grad_(layer.weight.requires_grad)
    return made
