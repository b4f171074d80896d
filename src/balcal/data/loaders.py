"""Batches of a user's loader, of whatever kind: inputs, labels and weights are found and checked.

A batch is (x, y), (x, y, weight) or a dictionary. x may be a tensor, a tuple (passed by position) or a dictionary
(passed by name; a single entry by position). y are class indices, or soft labels: a row of probabilities for each
sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from balcal.core import BalcalError
from balcal.data.targets import Labels, Weighted, soft_labels, weights_of
from balcal.runtime.labels import check_labels
from balcal.runtime.randomness import seed_torch

LABELS = ("labels", "label", "target", "targets", "y")
WEIGHTS = ("weight", "weights", "sample_weight")
NO_TARGET = False
"""as `target=`: the loader gives inputs alone"""


@dataclass(frozen=True, eq=False)
class Reading:
    """How a user's batches are to be read."""

    num_classes: int | None = None
    target: Any = None
    """where the labels are: a key, a place in the tuple, or False if there are none"""
    ignore_index: int | None = None
    """samples with this label are left out"""
    may_be_empty: bool = False
    """whether a batch of such samples alone is an empty one; else they stay, with weight 0"""
    class_weight: Tensor | None = None
    """(K,)"""

    def __call__(self, batch: Any, where: str) -> tuple[Any, Labels]:
        x, y, weights = self.parts(batch)
        if y is None:
            raise BalcalError(
                f"{where} has no labels: the loader must give pairs (inputs, labels), or dictionaries with `labels`, "
                "or target= says where they are"
            )
        x, labels = as_inputs(x), self.labels(y, where)
        count = samples_of(x)
        if count != len(labels):
            raise BalcalError(f"{where} has {count} images and {len(labels)} labels: each image needs one label")
        soft = labels.ndim == 2
        if weights is None and self.class_weight is None and not soft and self.ignore_index is None:
            return x, labels
        found = Weighted(labels, weights_of(weights, len(labels), where))
        if self.ignore_index is not None and not soft:
            kept = (labels != self.ignore_index).nonzero()[:, 0]
            if not len(kept) and not self.may_be_empty:
                return x, found.map(torch.zeros_like)
            x, found = take(x, kept), found.map(lambda tensor: tensor[kept])
        if self.class_weight is not None:
            check_labels(found.hard(), self.num_classes, where)
            of = self.class_weight.to(found.labels.device)
            factor = found.labels.to(of.dtype) @ of if soft else of[found.labels]
            found = replace(found, weights=found.weights * factor)
        plain = weights is None and self.class_weight is None and not soft
        return x, found.labels if plain else found

    def parts(self, batch: Any) -> tuple[Any, Any, Any]:
        """(inputs, labels, weights) of a batch, None for what it lacks."""
        if self.target is NO_TARGET:
            return batch[0] if isinstance(batch, list | tuple) and len(batch) == 1 else batch, None, None
        if isinstance(batch, Mapping):
            return self._named(dict(batch))
        if not isinstance(batch, list | tuple):
            return batch, None, None
        if self.target is not None:
            if not isinstance(self.target, int) or not -len(batch) <= self.target < len(batch):
                raise BalcalError(f"a batch of {len(batch)} parts has no part target={self.target!r}")
            rest = [each for place, each in enumerate(batch) if place != self.target % len(batch)]
            return rest[0] if len(rest) == 1 else tuple(rest), batch[self.target], None
        if len(batch) > 3:
            raise BalcalError(
                f"the loader must give pairs (inputs, labels), and gives {len(batch)} parts: say where the labels are, "
                "target=-1"
            )
        return (*batch, None, None)[:3]

    def _named(self, batch: dict[str, Any]) -> tuple[Any, Any, Any]:
        if self.target is not None and self.target not in batch:
            raise BalcalError(f"the batch has no `{self.target}`; it has {', '.join(map(str, batch))}")
        key = self.target if self.target is not None else next((name for name in LABELS if name in batch), None)
        y = None if key is None else batch.pop(key)
        weights = next((batch.pop(name) for name in WEIGHTS if name in batch), None)
        if len(batch) == 1:
            return next(iter(batch.values())), y, weights
        return batch, y, weights

    def labels(self, y: Any, where: str) -> Tensor:
        """Class indices (N,), or soft labels (N, K)."""
        try:
            labels = torch.as_tensor(_array(y))
        except (TypeError, ValueError, RuntimeError):
            labels = _from_text(y, where)
        k = self.num_classes
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.is_floating_point() and labels.ndim == 1 and bool((labels == labels.round()).all()):
            labels = (
                labels.double().clamp(-(2.0**53), 2.0**53).long()
            )  # whole numbers, as tables read from CSV have them
        if k is not None and labels.ndim == 2 and labels.shape[1] == k and labels.shape[1] > 1:
            return soft_labels(labels, where)
        check_labels(labels, None, where)
        return labels.long()


PLAIN = Reading()


def _array(given: Any) -> Any:
    """The values of a pandas table or column; anything else as it is."""
    return given.to_numpy(copy=True) if hasattr(given, "iloc") else given


def _from_text(y: Any, where: str) -> Tensor:
    """Digits as text are class indices. Names are refused: only the user knows their order."""
    words = list(y) if isinstance(y, list | tuple) or hasattr(y, "tolist") else []
    if words and all(isinstance(word, Integral) for word in words):  # in an array of objects
        return torch.tensor([int(word) for word in words])
    strange = next((word for word in words if not isinstance(word, str)), None)
    if not words or strange is not None:
        raise BalcalError(f"the loader must give pairs (images, labels): the labels of {where} are no numbers")
    name = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 16)), None)
    if name is not None:
        raise BalcalError(
            f"labels in {where} must be class indices, not names like {str(name)!r:.40}: let the data set return "
            "classes.index(name), with `classes` in an order of yours"
        )
    return torch.tensor([int(word) for word in words])


def tensors_of(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def change(x: Any, how: Callable[[Tensor], Tensor]) -> Any:
    """The same inputs with every tensor changed; what is no tensor stays."""
    if isinstance(x, Tensor):
        return how(x)
    if isinstance(x, Mapping):
        return {name: change(part, how) for name, part in x.items()}
    return type(x)(change(part, how) for part in x) if type(x) in (list, tuple) else x


def take(x: Any, rows: Tensor) -> Any:
    return change(x, lambda tensor: tensor[rows.to(tensor.device)])


def as_inputs(x: Any) -> Any:
    """Inputs with arrays as tensors."""
    if isinstance(x, Tensor | Mapping | tuple):
        found = x
    else:
        try:
            found = torch.as_tensor(_array(x))
        except (TypeError, ValueError, RuntimeError):
            found = x
    if not tensors_of(found):
        raise BalcalError(
            f"the loader must give pairs (images, labels), with tensors as inputs, not {type(x).__name__}"
        )
    return found


def samples_of(x: Any) -> int:
    """How many samples a batch's inputs are; every tensor must have as many rows."""
    counts = {len(tensor) if tensor.ndim else 0 for tensor in tensors_of(x)}
    if len(counts) > 1:
        raise BalcalError(
            f"the inputs of a batch must have as many rows each, not {' and '.join(map(str, sorted(counts)))}"
        )
    return counts.pop()


@dataclass(frozen=True, eq=False)
class LoaderBatches:
    """Batches of a user's loader. Seeding torch makes its shuffling a function of (seed, epoch)."""

    checked: ClassVar[bool] = False
    loader: Iterable[Any]
    device: torch.device
    seed: int
    reading: Reading = PLAIN
    steps: int | None = None
    """so many batches are an epoch; None: all"""

    def __len__(self) -> int:
        length = length_of(self.loader)
        if length is None and self.steps is None:
            raise BalcalError("the loader has no length: pass steps_per_epoch=, how many of its batches are an epoch")
        return min(n for n in (length, self.steps) if n is not None)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        seed_torch(self.seed, "order", epoch)  # samplers draw their order from torch's generator
        for sampler in {id(each): each for each in samplers_of(self.loader)}.values():
            sampler.set_epoch(epoch)
        counts = None
        for step, (x, y) in enumerate(pairs(self.loader, self.reading, self.steps)):
            counts = bool(counts) or not isinstance(y, Weighted) or bool((y.weights > 0).any())
            if step >= start:
                yield to_device(x, self.device), y.to(self.device, non_blocking=True)
            seed_torch(self.seed, "load", epoch, step + 1)  # for draws made while loading the next one
        if counts is False:
            raise BalcalError("every sample of the loader is ignored or has weight 0: nothing is left to count")

    def share(self, labels: Labels) -> float:
        return 1.0


def to_device(x: Any, device: torch.device) -> Any:
    return change(x, lambda tensor: tensor.to(device, non_blocking=True))


@runtime_checkable
class OrderedByEpoch(Protocol):
    """A sampler whose order depends on the epoch, such as torch's DistributedSampler."""

    def set_epoch(self, epoch: int) -> None: ...


def samplers_of(loader: Any) -> Iterator[OrderedByEpoch]:
    """The samplers of a loader that want to know the epoch."""
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if isinstance(sampler, OrderedByEpoch):
            yield sampler


def length_of(loader: Iterable[Any]) -> int | None:
    """How many batches a loader has; None if it does not say."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def counted(batches: LoaderBatches, say: Callable[[str], None]) -> LoaderBatches:
    """A loader without a length is read once to count its batches, unless the user says how many are an epoch."""
    if batches.steps is not None or length_of(batches.loader) is not None:
        return batches
    if iter(batches.loader) is batches.loader:
        raise BalcalError("the loader is an iterator, which is used up after one epoch: pass a loader that begins anew")
    say("the loader has no length: it is read once to count its batches (steps_per_epoch= saves that)")
    return replace(batches, steps=sum(1 for _ in batches.loader))


def check_loader(loader: Any) -> None:
    """Refuse what is no loader: a batch, a data set, or nothing that can be gone through."""
    batch = isinstance(loader, tuple) and len(loader) > 0 and all(hasattr(part, "__array__") for part in loader)
    if batch or hasattr(loader, "__array__") or isinstance(loader, Mapping):
        raise BalcalError("one batch is no loader: pass a DataLoader, or a list of batches, [(x, y), ...]")
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise BalcalError("a data set is no loader: pass DataLoader(dataset, batch_size=64)")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise BalcalError(f"a loader is a DataLoader, or a list of batches, [(x, y), ...], not {type(loader).__name__}")


def pairs(
    loader: Iterable[Any],
    reading: Callable[[Any, str], tuple[Any, Any]] = PLAIN,
    steps: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The batches of a loader, checked and counted: with fewer than it promises, the loss would be wrong."""
    check_loader(loader)
    promised, count = length_of(loader), 0
    if steps is not None:
        promised = steps if promised is None else min(promised, steps)
    for batch in islice(loader, steps):
        if count == promised:
            raise BalcalError(
                f"the loader gives more than {promised} batches, which is its length: "
                "make len(loader) its number of batches"
            )
        count += 1
        yield reading(batch, f"batch {count}")
    if promised is not None and count < promised:
        raise BalcalError(
            f"the loader has ended after {count} of {promised} batches: make len(loader) its number of batches, and "
            "let it begin anew each time (an iterator is used up after the first)"
        )
