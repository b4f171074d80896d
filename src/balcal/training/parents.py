"""Training that starts from a finished run: take over its weights, and cache the features of a frozen backbone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from balcal.core import BalcalError
from balcal.data.batches import Batch, Batches, MemoryBatches
from balcal.data.targets import Labels, Weighted
from balcal.model import Model, evaluating
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.devices import World
from balcal.runtime.files import seal
from balcal.runtime.randomness import generator, own_randomness
from balcal.training.session import Health


@dataclass(frozen=True)
class ParentRun:
    """A finished run to start from. Only the first process reads its files, and broadcasts them."""

    run: Run
    world: World
    epochs: tuple[int, ...]
    chosen: int
    seal: str
    """of the history and the chosen weights: another one means another run"""

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
        return ParentRun(run, world, *world.broadcast(facts))

    def weights(self, epoch: int) -> Mapping[str, Tensor]:
        """The weights of an epoch, broadcast: all processes must call this for the same epochs in the same order."""
        weights: Mapping[str, Tensor] = self.world.broadcast(self.run.load_weights(epoch) if self.world.first else None)
        return weights


def start_from(model: Model, parent: ParentRun, recipe: Recipe) -> None:
    """Load the backbone of the parent's chosen epoch, and its head if the recipe has the same head.

    From another head a method may keep the classifier alone.
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
def frozen_features_cached(model: Model, train: MemoryBatches, val: MemoryBatches) -> Iterator[tuple[Batches, Batches]]:
    """Cache the features of a frozen backbone and train on those, if images are neither augmented nor mixed.

    Gives the batches to train and validate on: of features, or else `train` and `val` themselves.
    """
    still = model.method.before_epoch.still
    if not still or "mix" in model.method.changes or train.pixels.augment != "none":
        yield train, val
        return
    cached = _cached(model, train), _cached(model, val)
    with fed_with_features(model):
        yield cached


def _cached(model: Model, batches: MemoryBatches) -> FeatureBatches:
    features, labels, weights = extract_features(model, replace(batches, seed=None, rank=0, size=1))
    return FeatureBatches(features, labels, batches.batch_size, batches.seed, batches.rank, batches.size, weights)


@dataclass(frozen=True, eq=False)
class FeatureBatches:
    """Features and labels in memory, in batches: shuffled if there is a seed, else in order."""

    checked: ClassVar[bool] = True
    features: Tensor
    labels: Tensor
    """class indices (N,); with weights also soft labels (N, K)"""
    batch_size: int
    seed: int | None = None
    rank: int = 0
    size: int = 1
    weights: Tensor | None = None
    """how much each sample counts"""

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
            labels = self.labels[mine]
            yield self.features[mine], labels if self.weights is None else Weighted(labels, self.weights[mine])

    def share(self, labels: Labels) -> float:
        return len(labels) * self.size / min(self.batch_size, len(self.labels))

    def take(self, rows: Tensor, seed: int | None) -> FeatureBatches:
        weights = None if self.weights is None else self.weights[rows]
        return FeatureBatches(self.features[rows], self.labels[rows], self.batch_size, seed, weights=weights)


@torch.no_grad()
def extract_features(model: Model, batches: Batches) -> tuple[Tensor, Tensor, Tensor | None]:
    """The backbone's features of all batches, in evaluation mode, their labels, and their weights if any has one.

    Features are vectors, or feature maps if the head needs maps.
    """
    found, labels, health = [], list[Labels](), Health(model.head.weights.device, model.num_classes)
    with evaluating(model), own_randomness():
        for number, (images, true) in enumerate(batches.epoch(0), 1):
            if not batches.checked:
                health.look(images, true, f"batch {number}")
            feature_map, features = model.features(images)
            found.append(feature_map if model.method.head.needs_map else features)
            labels.append(true)
    health.check()
    if not found:
        raise BalcalError("there are no images to compute features of: the loader is empty")
    return torch.cat(found), *_joined(labels, model.num_classes)


def _joined(labels: list[Labels], num_classes: int) -> tuple[Tensor, Tensor | None]:
    """Labels of all batches, soft if some are; and their weights, if some batch has them."""
    plain = [each for each in labels if isinstance(each, Tensor)]
    if len(plain) == len(labels):
        return torch.cat(plain), None
    all_weighted = [each if isinstance(each, Weighted) else Weighted(each, torch.ones(len(each))) for each in labels]
    found = [each.labels for each in all_weighted]
    if any(each.ndim == 2 for each in found):
        found = [nn.functional.one_hot(each, num_classes).float() if each.ndim == 1 else each for each in found]
    return torch.cat(found), torch.cat([each.weights.to(found[0].device) for each in all_weighted])


@contextmanager
def fed_with_features(model: Model) -> Iterator[None]:
    """Inside the block, the model takes features in place of images. Its state_dict does not change."""
    before = vars(model).pop("features", None)

    def from_map(feature_map: Tensor) -> tuple[Tensor, Tensor]:
        return feature_map, model.pooled(feature_map)

    def from_vector(features: Tensor) -> tuple[Tensor, Tensor]:
        return features, features

    vars(model)["features"] = from_map if model.method.head.needs_map else from_vector
    try:
        yield
    finally:
        del vars(model)["features"]
        if before is not None:
            vars(model)["features"] = before
