"""A body that keeps still need not be asked twice: what it makes of images, computed once, in place of the images.

Trainings that start from another run: its epochs, what of them a new model takes over, and what it need not redo.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from balcal.core import Backbone, BalcalError
from balcal.data.batches import Batch, Batches, MemoryBatches
from balcal.model import Model, evaluating
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.devices import World
from balcal.runtime.files import seal
from balcal.runtime.randomness import generator, own_randomness
from balcal.training.session import Health


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


@dataclass(frozen=True)
class ParentRun:
    """A finished run to start from. Only the first process reads files; the others are told."""

    run: Run
    world: World
    epochs: tuple[int, ...]
    chosen: int
    seal: str
    """changes when the run has other weights"""

    @staticmethod
    def of(run: Run, world: World) -> ParentRun:
        facts = None
        if world.first:
            ended = run.ending()
            facts = (
                tuple(sorted(ended.weights)),
                run.chosen,
                seal(json.dumps([ended.history, ended.weights[run.chosen]]).encode()),
            )
        return ParentRun(run, world, *world.told(facts))

    def weights(self, epoch: int) -> Mapping[str, Tensor]:
        """All processes must ask for the same epochs in the same order."""
        weights: Mapping[str, Tensor] = self.world.told(self.run.load_weights(epoch) if self.world.first else None)
        return weights


def start_from(model: Model, parent: ParentRun, recipe: Recipe) -> None:
    """The body of the parent's chosen epoch; its head as well, if the recipe has the same kind of head.

    Of another kind of head a method may ask to keep the classifier.
    """
    model.parent = parent
    weights = parent.weights(parent.chosen)
    same_head = parent.run.recipe.method.head == recipe.method.head
    parts: dict[str, nn.Module] = {"backbone.": model.backbone}
    if same_head:
        parts["head."] = model.head
    elif recipe.method.before_epoch.keeps_classifier:
        classifier = getattr(model.head, "classifier", None)
        theirs = weights.get("head.classifier.weight")
        if classifier is not None and theirs is not None and theirs.shape == classifier.weight.shape:
            parts["head.classifier."] = classifier
    for name, part in parts.items():
        part.load_state_dict({k.removeprefix(name): w for k, w in weights.items() if k.startswith(name)})


@contextmanager
def without_detours(model: Model, train: MemoryBatches, val: MemoryBatches) -> Iterator[tuple[Batches, Batches]]:
    """If the body keeps still and images come as they are, the batches to train with are of features, computed once."""
    if not model.method.before_epoch.still or "mix" in model.method.changes or train.pixels.augment != "none":
        yield train, val
        return
    kept = _of_features(model, train), _of_features(model, val)
    with fed_with_features(model):
        yield kept


def _of_features(model: Model, batches: MemoryBatches) -> FeatureBatches:
    features, labels = keep_features(model, replace(batches, seed=None, rank=0, size=1))
    return FeatureBatches(features, labels, batches.batch_size, batches.seed, batches.rank, batches.size)
