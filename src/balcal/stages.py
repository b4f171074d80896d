"""Trainings that start from another run: its epochs, what of them a new model takes over, and what it need not redo."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from balcal.data.batches import Batches, MemoryBatches
from balcal.devices import World
from balcal.features import FeatureBatches, fed_with_features, keep_features
from balcal.files import seal
from balcal.model import Model
from balcal.recipe import Recipe
from balcal.runs import Run


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
    elif getattr(recipe.method.before_epoch, "keeps_classifier", False):
        classifier = getattr(model.head, "classifier", None)
        theirs = weights.get("head.classifier.weight")
        if classifier is not None and theirs is not None and theirs.shape == classifier.weight.shape:
            parts["head.classifier."] = classifier
    for name, part in parts.items():
        part.load_state_dict({k.removeprefix(name): w for k, w in weights.items() if k.startswith(name)})


@contextmanager
def without_detours(model: Model, train: MemoryBatches, val: MemoryBatches) -> Iterator[tuple[Batches, Batches]]:
    """If the body keeps still and images come as they are, the batches to train with are of features, computed once."""
    still = getattr(model.method.before_epoch, "still", False)
    if not still or "mix" in model.method.changes or train.pixels.augment != "none":
        yield train, val
        return
    kept = _of_features(model, train), _of_features(model, val)
    with fed_with_features(model):
        yield kept


def _of_features(model: Model, batches: MemoryBatches) -> FeatureBatches:
    features, labels = keep_features(model, replace(batches, seed=None, rank=0, size=1))
    return FeatureBatches(features, labels, batches.batch_size, batches.seed, batches.rank, batches.size)
