"""From items to trained runs: what is needed, each thing once; and what of it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from balcal.paper.items import Item
from balcal.paper.tiers import Tier
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.sessions import train_recipe


@dataclass(frozen=True)
class Training:
    """A run that an item needs; `keep` is set where it looks at the weights of every n-th epoch."""

    recipe: Recipe
    keep: int | None = None

    def missing(self, out: Path) -> bool:
        run, plan = Run(out, self.recipe), self.recipe.task.plan
        return not run.finished or (self.keep is not None and run.lacks(replace(plan, keep=self.keep)))


def trainings(items: Iterable[Item], tier: Tier, seeds: Sequence[int]) -> list[Training]:
    """Every run that these items need, runs that others start from included and first, by address."""
    needed: dict[str, Training] = {}
    for found in items:
        for ask in found.asks(tier):
            watched = found.epochs and ask in found.series(tier).values()
            for seed in seeds:
                recipe = ask.recipe(tier, seed)
                for asked in _line(recipe.for_training()) if recipe else []:
                    last = recipe is not None and asked.address() == recipe.address()
                    keep = tier.keep if watched and last else None
                    known = needed.get(asked.address())
                    needed[asked.address()] = Training(asked, keep or (known.keep if known else None))
    return list(needed.values())


def _line(recipe: Recipe) -> list[Recipe]:
    """A recipe and those that come before it, the first one first."""
    return [*(_line(recipe.parent) if recipe.parent else []), recipe]


def run_all(needed: Sequence[Training], out: Path, device: str | None = None, quiet: bool = False) -> None:
    """Train what is missing, one after the other; what is there is left alone."""
    missing = [training for training in needed if training.missing(out)]
    for number, training in enumerate(missing, 1):
        if not quiet:
            recipe = training.recipe
            name = f"{recipe.task.name} {recipe.method} seed {recipe.seed}"
            print(f"run {number} of {len(missing)}: {name}", file=sys.stderr)
        train_recipe(training.recipe, out, device, quiet=True, keep_epochs=training.keep)
