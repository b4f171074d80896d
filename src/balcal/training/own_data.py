"""The loaders that a user gives to `fit`: held out from, weighted, and read as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from balcal.core import BalcalError
from balcal.data.loaders import LoaderBatches, Reading, class_weights, counted, length_of, pairs
from balcal.data.splits import each_once, few_samples, hold_out, loader_like, same_order
from balcal.model import Model
from balcal.runtime.values import as_tensor, at_least, check_value


@dataclass(frozen=True, eq=False)
class OwnData:
    """Loaders, and how they are to be read."""

    train: Iterable[Any]
    val: Iterable[Any] | None
    target: Any = None
    ignore_index: int | None = None
    class_weight: str | Mapping[int, float] | Iterable[float] | None = None
    sample_weight: Any = None
    """one number for each sample of the training loader's data set"""
    steps_per_epoch: int | None = None

    def facts(self) -> list[str]:
        """What decides a training beside the data themselves, for its fingerprint; nothing if nothing is asked for."""
        said = (self.target, self.ignore_index, self.class_weight, self.steps_per_epoch)
        return [str(said)] if any(each is not None for each in said) else []

    def batches(
        self, model: Model, seed: int, say: Callable[[str], None]
    ) -> tuple[OwnData, LoaderBatches, LoaderBatches]:
        """The loaders in use, and the batches to train and to validate on."""
        steps = check_value("steps_per_epoch", self.steps_per_epoch, int | None, at_least(1))
        check_value("ignore_index", self.ignore_index, int | None)
        for loader in (self.train, self.val):
            if isinstance(loader, Tensor) or (isinstance(loader, tuple) and all(isinstance(x, Tensor) for x in loader)):
                raise BalcalError("one batch is no loader: pass a DataLoader, or a list of batches [(x, y), ...]")
        train, val, target = self.train, self.val, self.target
        if self.sample_weight is not None:
            train, target = with_weights(train, self.sample_weight, target), None
        rest = train
        if val is None:
            rest, val = hold_out(train, seed, say)
        device = model.head.weights.device
        reading = Reading(model.num_classes, target, self.ignore_index)
        weights = class_weights(
            self.class_weight, model.num_classes, lambda: (labels for _, labels in pairs(rest, reading, steps))
        )
        reading = replace(reading, class_weight=weights)
        checking = reading if self.val is None else replace(reading, target=self.target)
        learn = counted(LoaderBatches(rest, device, seed, reading, steps), say)
        check = counted(LoaderBatches(val, device, seed, checking), say)
        for name, batches in (("training", learn), ("validation", check)):
            if not len(batches):
                raise BalcalError(f"the {name} loader is empty")
        fitted = "posthoc" in model.method.changes or (
            model.method.tally is not None and model.method.tally.on == "val"
        )
        if fitted and (count := known_samples(val, checking)) and (sentence := few_samples(count, model.method.name)):
            say(sentence)
        return replace(self, train=rest, val=val), learn, check


def known_samples(loader: Iterable[Any], reading: Reading) -> int | None:
    """How many samples a loader has, if that is known without loading them."""
    if isinstance(loader, list | tuple):
        return sum(len(labels) for _, labels in pairs(loader, reading))
    return length_of(getattr(loader, "dataset", ()))


class WithWeights(Dataset[Any]):
    """Each sample with what it counts."""

    def __init__(self, dataset: Any, weights: Tensor) -> None:
        self.dataset, self.weights = dataset, weights

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row], self.weights[row]


@dataclass(frozen=True, eq=False)
class Collate:
    """The loader's own way of making a batch, and the weights as its third part."""

    own: Callable[[list[Any]], Any]
    target: Any

    def __call__(self, samples: list[Any]) -> Any:
        x, y, weights = Reading(target=self.target).parts(self.own([sample for sample, _ in samples]))
        if weights is not None:
            raise BalcalError("the batches have weights already: leave out sample_weight=")
        return x, y, torch.stack([weight for _, weight in samples])


def with_weights(loader: Iterable[Any], sample_weight: Any, target: Any) -> DataLoader[Any]:
    """The loader with a third part in its batches, one number for each sample of its data set."""
    if not isinstance(loader, DataLoader) or not each_once(loader) or loader.batch_size is None:
        raise BalcalError(
            "sample_weight= needs a DataLoader with an ordinary sampler: or give the weights in batches, (x, y, weight)"
        )
    weights = as_tensor(sample_weight, "sample_weight").float()
    samples = len(loader.dataset)  # type: ignore[arg-type]
    if weights.shape != (samples,):
        raise BalcalError(f"sample_weight has shape {tuple(weights.shape)}, and the data set {samples} samples")
    collate = Collate(loader.collate_fn, target)
    return loader_like(loader, WithWeights(loader.dataset, weights), collate_fn=collate, **same_order(loader))
