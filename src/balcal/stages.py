"""Trainings that start from another run: its epochs, and what of them a new model takes over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from balcal.devices import World
from balcal.model import Model, as_method
from balcal.recipe import Recipe
from balcal.runs import Run


@dataclass(frozen=True)
class ParentRun:
    """A finished run to start from. Only the first process reads files; the others are told."""

    run: Run
    world: World
    epochs: tuple[int, ...]
    chosen: int

    @staticmethod
    def of(run: Run, world: World) -> ParentRun:
        facts = None
        if world.first:
            facts = tuple(run.kept()), as_method(run.recipe.method).select(run.history())
        return ParentRun(run, world, *world.told(facts))

    def weights(self, epoch: int) -> Mapping[str, Tensor]:
        """All processes must ask for the same epochs in the same order."""
        weights: Mapping[str, Tensor] = self.world.told(self.run.load_weights(epoch) if self.world.first else None)
        return weights


def start_from(model: Model, parent: ParentRun, recipe: Recipe) -> None:
    """The body of the parent's chosen epoch; its head as well, if the recipe has the same kind of head."""
    model.parent = parent
    weights = parent.weights(parent.chosen)
    same_head = parent.run.recipe.method.head == recipe.method.head
    for name, part in (("backbone.", model.backbone), ("head.", model.head if same_head else None)):
        if part is not None:
            part.load_state_dict({k.removeprefix(name): w for k, w in weights.items() if k.startswith(name)})
