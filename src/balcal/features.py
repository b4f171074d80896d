"""A body that keeps still need not be asked twice: what it makes of images, computed once, in place of the images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from balcal.core import Backbone, BalcalError
from balcal.data.batches import Batch, Batches
from balcal.health import Health
from balcal.model import Model, evaluating
from balcal.randomness import generator, own_randomness


@dataclass(frozen=True, eq=False)
class FeatureBatches:
    """Features and labels in memory, as batches: shuffled when there is a seed, in order when not."""

    checked: ClassVar[bool] = True
    features: Tensor
    labels: Tensor
    batch_size: int
    seed: int | None = None
    rank: int = 0
    size: int = 1

    def __len__(self) -> int:
        if self.seed is not None and len(self.labels) >= self.batch_size:
            return len(self.labels) // self.batch_size
        return math.ceil(len(self.labels) / self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        n = len(self.labels)
        order = torch.arange(n)
        if self.seed is not None:
            order = torch.randperm(n, generator=generator(self.seed, "order", epoch))
        for step in range(start, len(self)):
            first = step * self.batch_size
            mine = order[first + self.rank : min(first + self.batch_size, n) : self.size].to(self.labels.device)
            yield self.features[mine], self.labels[mine]

    def share(self, labels: Tensor) -> float:
        return len(labels) * self.size / min(self.batch_size, len(self.labels))

    def take(self, rows: Tensor, seed: int | None) -> FeatureBatches:
        return FeatureBatches(self.features[rows], self.labels[rows], self.batch_size, seed)


@torch.no_grad()
def keep_features(model: Model, batches: Batches) -> tuple[Tensor, Tensor]:
    """What the body makes of all batches, as in use, and their labels: vectors, or maps where the head wants maps."""
    kept, labels, health = [], [], Health(model.head.weights.device, model.num_classes)
    with evaluating(model), own_randomness():
        for number, (images, true) in enumerate(batches.epoch(0), 1):
            if not batches.checked:
                health.look(images, true, f"batch {number}")
            feature_map, features = model.features(images)
            kept.append(feature_map if model.method.head.needs_map else features)
            labels.append(true)
    health.check()
    if not kept:
        raise BalcalError("there is nothing to take features of: the loader is empty")
    return torch.cat(kept), torch.cat(labels)


@contextmanager
def fed_with_features(model: Model) -> Iterator[None]:
    """While this lasts, the model takes kept features in place of images. Its state is all there as ever."""
    body = cast(Backbone, model.backbone)
    before = vars(model).pop("features", None)

    def from_map(kept: Tensor) -> tuple[Tensor, Tensor]:
        return kept, body.forward_head(kept, pre_logits=True)

    def from_vector(kept: Tensor) -> tuple[Tensor, Tensor]:
        return kept, kept

    vars(model)["features"] = from_map if model.method.head.needs_map else from_vector
    try:
        yield
    finally:
        del vars(model)["features"]
        if before is not None:
            vars(model)["features"] = before
