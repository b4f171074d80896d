"""A model is a backbone and a head. `balcal.build` makes one of any network or of a recipe."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from balcal.backbones.before_norm import divided
from balcal.core import Backbone, BalcalError, Outputs, Parent, Record, Sums, Tally, Term
from balcal.data.loaders import Reading, change, pairs, to_device
from balcal.data.targets import Labels, Weighted, check_targets, tally_rows, weighted_loss
from balcal.runtime.devices import World, current_world

if TYPE_CHECKING:
    from balcal.recipe import Method


HALF = (torch.float16, torch.bfloat16)


def in_float32(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What moves tensors moves them, and what makes them half precision leaves their precision as it was."""

    def moved(tensor: Tensor) -> Tensor:
        result = fn(tensor)
        return tensor.to(result.device) if result.dtype in HALF and tensor.dtype not in HALF else result

    return moved


def as_taken_by(network: nn.Module, x: Any) -> Any:
    """Inputs in the precision of a network's weights, if these are half or float64, or the inputs float64, as of numpy.

    >>> as_taken_by(nn.Linear(2, 2), torch.zeros(2, dtype=torch.float64)).dtype
    torch.float32
    """
    dtype = next((weight.dtype for weight in network.parameters() if weight.dtype.is_floating_point), None)
    if dtype is None:
        return x
    other = (torch.float16, torch.bfloat16, torch.float32) if dtype == torch.float64 else (torch.float64,)
    return change(x, lambda t: t.to(dtype) if t.dtype in other or (dtype in HALF and t.is_floating_point()) else t)


@runtime_checkable
class NamesMapChannels(Protocol):
    """A backbone whose feature map has other channels than `num_features`; None: it has no feature map."""

    map_channels: int | None


class Model(nn.Module):
    """`model(x)` gives calibrated log-probabilities (N, K), in training and in use alike.

    `model(x, branches=True)` gives the branches that the loss is made of. In a loop of your own two calls are enough:
    `model.loss(x, y)` for each batch, `model.end_epoch()` after each epoch. `balcal.wrap` makes one.

    >>> import balcal
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> model = balcal.wrap(network, num_classes=3, method="balcal-logits")
    >>> x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> model(x).exp().sum(1).allclose(torch.ones(6)), model.loss(x, y).shape
    (True, torch.Size([]))
    >>> 0 <= model.end_epoch()["gamma"] <= 1
    True
    """

    def __init__(
        self, backbone: nn.Module, num_classes: int, method: Method, learnable: nn.Linear | None = None
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise BalcalError(f"a classifier needs at least 2 classes, not {num_classes}")
        self.num_classes = num_classes
        self.method = method
        self.backbone = backbone
        features = cast(Backbone, backbone).num_features
        channels = backbone.map_channels if isinstance(backbone, NamesMapChannels) else features
        if method.head.needs_map and channels is None:
            raise BalcalError(
                f"adapter=conv or released needs a feature map, and {type(backbone).__name__} has none: use "
                "adapter=vector, or a backbone with forward_features and forward_head, as timm's convolutional "
                "networks have"
            )
        self.head = method.head(features, num_classes, learnable, channels)
        self.posthoc = method.posthoc.identity(num_classes)
        self.parent: Parent | None = None
        """the run whose weights this model starts from, while it is being trained"""
        self.solved_on: dict[str, Any] | None = None
        """the split and the number of samples that gamma or beta was solved on last"""
        self.head_width: int | None = None
        """hidden units of the adapter, where `wrap` made it narrower than usual"""
        self._sums: Sums | None = None
        self._held_out = False
        """whether the last `end_epoch` was given validation data"""

    def features(self, x: Any) -> tuple[Tensor, Tensor]:
        """The backbone's features of x: the map that the head may read, and the vector (N, D)."""
        feature_map = self.map_of(as_taken_by(self.backbone, x))
        return feature_map, self.pooled(feature_map)

    def map_of(self, x: Any) -> Tensor:
        """The map before pooling; before the last norm, if the head asks for that and the backbone has one."""
        halves = divided(self.backbone) if self.method.head.before_norm else None
        return halves[0](x) if halves else cast(Backbone, self.backbone).forward_features(x)

    def pooled(self, feature_map: Tensor) -> Tensor:
        """The vector (N, D) of what `map_of` returned."""
        halves = divided(self.backbone) if self.method.head.before_norm else None
        finished = halves[1](feature_map) if halves else feature_map
        return cast(Backbone, self.backbone).forward_head(finished, pre_logits=True)

    def forward(self, x: Any, branches: bool = False) -> Tensor | Outputs:
        feature_map, features = self.features(x)
        width = cast(Backbone, self.backbone).num_features
        if features.ndim != 2 or features.shape[1] != width:
            raise BalcalError(
                f"the backbone gave features of shape {tuple(features.shape)}, expected (N, {width}): "
                "pass features= a function from images to a matrix, and num_features= its width"
            )
        kind = features.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            dtype = self.head.weights.dtype
            features = features.to(dtype)
            outputs: Outputs = self.head(features, feature_map.to(dtype) if self.method.head.needs_map else None)
            outputs = replace(outputs, features=features)
            if branches:
                return outputs
            log_probs: Tensor = self.posthoc(outputs)
            return log_probs

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.half()` and `.bfloat16()` are for the backbone: the head and the post-hoc map stay in float32."""
        for child in self.children():
            child._apply(fn if child is self.backbone else in_float32(fn))  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        own = {name for name in self.state_dict() if name.startswith("posthoc.")}
        fitted = sorted(name for name in state_dict if name.startswith("posthoc.") and name not in own)
        if fitted:
            raise BalcalError(
                f"these weights have a fitted post-hoc map ({fitted[0]}), and this model has another one or none: use "
                "balcal.save and balcal.load, or wrap with the same method, such as `balcal-auto+ts`"
            )
        return super().load_state_dict(state_dict, *rest, **more)

    def loss(
        self,
        images: Any,
        labels: Any,
        rng: Generator | None = None,
        weight: Any = None,
        ignore_index: int | None = None,
    ) -> Tensor:
        """The training loss of a batch; in training mode it also counts the batch for the end of the epoch.

        `labels` are class indices (N,) or soft labels (N, K), `weight` says how much each sample counts (N,); samples
        labelled `ignore_index` are left out.
        """
        reading = Reading(self.num_classes, ignore_index=ignore_index)
        images, labels = reading((images, labels, weight), "this batch")
        if not len(labels):
            raise BalcalError("this batch is empty: there is no loss of nothing")
        check_targets(labels, self.num_classes, "this batch")
        rng = rng or Generator().manual_seed(int(torch.randint(2**62, ())))
        tally = self.method.tally
        if self.training and tally and not self._held_out and self._sums is None:
            self._sums = tally.start(self)
        return batch_loss(self, self.method, images, labels, rng, self._sums if self.training else None)

    def end_epoch(self, val_loader: Iterable[Any] | None = None) -> Record:
        """Let the tally set the head (gamma, beta) for the next epoch, the same in all processes; return its record.

        A method that solves on validation data needs `val_loader`. Without it, it solves on the training batches of the
        epoch, and warns.
        """
        tally = self.method.tally
        if tally is None:
            return {}
        held_out = tally.on == "val" and val_loader is not None
        if tally.on == "val" and val_loader is not None:
            self._sums = self._counted(tally, val_loader)
        elif tally.on == "val":
            tally = on_training_batches(tally)
            warnings.warn(
                f"end_epoch() without validation data: `{self.method.name}` solves on the training batches, where "
                "accuracy is higher than on other images; end_epoch(val_loader) calibrates better",
                stacklevel=2,
            )
        if self._sums is None:
            raise BalcalError(
                "nothing was counted in this epoch: call model.loss(x, y) for each batch before end_epoch()"
            )
        record = finish_tally(self, tally, self._sums, current_world(control=False))
        self._sums, self._held_out = None, held_out
        return record

    @torch.no_grad()
    def _counted(self, tally: Tally, loader: Iterable[Any]) -> Sums:
        """The sums of a tally over a loader, in eval mode."""
        sums, device, samples = tally.start(self), self.head.weights.device, 0
        with evaluating(self):
            for number, (images, labels) in enumerate(pairs(loader, Reading(self.num_classes)), 1):
                check_targets(labels, self.num_classes, f"validation batch {number}")
                tally_rows(tally, sums, self(to_device(images, device), branches=True), labels.to(device))
                samples += len(labels)
        if not samples:
            raise BalcalError("the validation loader is empty: end_epoch(val_loader) needs samples to count")
        return sums


def on_training_batches(tally: Tally) -> Tally:
    """The same tally, counting training batches."""
    record: Any = tally
    if not is_dataclass(record) or isinstance(record, type):
        raise BalcalError(f"{tally} counts on validation data: call end_epoch(val_loader)")
    return cast(Tally, replace(record, on="train"))


def batch_loss(
    network: nn.Module, method: Method, images: Any, labels: Labels, rng: Generator, sums: Sums | None
) -> Tensor:
    """The one line that trains everything (see core.py). `network` is the model, or its distributed wrapper."""
    weighted = labels if isinstance(labels, Weighted) else None
    given = weighted.numbers() if weighted else cast(Tensor, labels)
    if "mix" in method.changes and not isinstance(images, Tensor):
        raise BalcalError(f"`{method.name}` mixes images, one tensor each, not a {type(images).__name__} of inputs")
    inputs, resolve = method.mix(images, given, rng)
    try:
        outputs: Outputs = network(inputs, branches=True)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise BalcalError(
            f"BatchNorm cannot be trained on a batch of {len(labels)}: have the last batch left out "
            "(drop_last=True), or choose another batch size"
        ) from None
    terms = resolve(outputs)
    if sums is not None and method.tally is not None:
        counted = [(term.outputs, term.labels) for term in terms if term.counts]
        for seen, true in counted or [(in_eval_mode(network, images), given)]:
            tally_rows(method.tally, sums, seen, weighted.take(true) if weighted else true)
    return terms_loss(method, outputs, terms, weighted)


def terms_loss(method: Method, outputs: Outputs, terms: Sequence[Term], weighted: Weighted | None = None) -> Tensor:
    """The weighted sum over terms and branches, and the penalty. With `weighted`, labels are numbers of its samples."""
    total = torch.as_tensor(outputs.penalty)
    for term in terms:
        for share, logits in zip(term.outputs.loss_weights, term.outputs.logits, strict=True):
            if weighted:
                row, labels, weights = weighted.rows(term.labels)
                loss = weighted_loss(method.loss, logits[row], labels, weights.to(logits.dtype))
            else:
                loss = method.loss(logits, term.labels)
            total = total + (term.weight * share) * loss
    return total


def in_eval_mode(network: nn.Module, images: Any) -> Outputs:
    """The model's outputs for images as they came, without mixing; its state stays the same."""
    model = getattr(network, "module", network)  # the distributed wrapper would exchange buffers
    with evaluating(model), torch.no_grad():
        outputs: Outputs = model(images, branches=True)
    return outputs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode for a while; afterwards every part is in the mode that it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def finish_tally(model: Model, tally: Tally, sums: Sums, world: World) -> Record:
    """Add up over processes, let the tally set the head, and make sure that all processes have the same head."""
    world.sum(*sums.values())
    record = tally.finish(sums, model)
    world.share(*model.head.buffers())
    split = {"val": "validation", "train": "training"}[tally.on]
    model.solved_on = {"split": split, "samples": float(sums.get("count", torch.tensor(math.nan)))}
    return record


def compile_backbone(model: Model) -> None:
    """Compile the backbone. Parameters and their names stay as they are."""
    model.features = torch.compile(model.features)  # type: ignore[method-assign]
