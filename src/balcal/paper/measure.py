"""From items to runs, and from runs to numbers.

`trainings` lists the runs that items need, each once. `Answers` gives each measure of the paper, seed by seed: read
from a finished run, or computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from balcal.arena.entries import lineage
from balcal.arena.schedule import Training
from balcal.build import as_method
from balcal.data.published_corruptions import SHIFTS
from balcal.evaluation.judge import added_by, calibrated_predictions, evaluate
from balcal.evaluation.ood import OodFigures, evaluate_ood
from balcal.evaluation.other_images import RunPredictor
from balcal.evaluation.shift import ShiftFigures, evaluate_shift
from balcal.methods.temperature import TemperatureScaling
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import read
from balcal.paper.budget import seconds_per_epoch
from balcal.paper.items import MEASURES, Ask, Item, PaperCell
from balcal.paper.tiers import Tier
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.devices import pick_device


def trainings(items: Iterable[Item], tier: Tier, seeds: Sequence[int]) -> list[Training]:
    """Every run that these items need, each once; parents included, and first."""
    needed: dict[str, Training] = {}
    for item in items:
        over_epochs = set(item.series(tier).values()) if item.epochs else set()
        for ask in item.asks(tier):
            for recipe in filter(None, (ask.recipe(tier, seed) for seed in seeds)):
                *parents, last = lineage(recipe)
                for parent in parents:
                    needed.setdefault(parent.address(), Training(parent))
                known = needed.get(last.address(), Training(last))
                needed[last.address()] = replace(known, keep=tier.keep if ask in over_epochs else known.keep)
    return list(needed.values())


@dataclass
class Answers:
    """The numbers of a folder of finished runs, for one tier."""

    tier: Tier
    seeds: Sequence[int]
    out: Path
    device_name: str | None = None
    only_found: bool = False
    """leave out runs that are not there; otherwise all must be there"""
    _known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def device(self) -> torch.device:
        return pick_device(self.device_name)

    def recipe(self, ask: Ask, seed: int) -> Recipe | None:
        """None where the tier has nothing for the place, or where the run is missing and may be."""
        recipe = ask.recipe(self.tier, seed)
        return None if recipe and self.only_found and not Run(self.out, recipe).finished else recipe

    def recipes(self, ask: Ask) -> list[Recipe]:
        return [recipe for seed in self.seeds if (recipe := self.recipe(ask, seed))]

    def missing(self, ask: Ask, epochs: bool = False) -> list[int]:
        """Seeds whose run is missing. With `epochs`, the first seed's run must have kept the weights of its epochs."""
        asked = {seed: ask.recipe(self.tier, seed) for seed in self.seeds}
        keep = {self.seeds[0]: self.tier.keep} if epochs else {}
        return [s for s, recipe in asked.items() if recipe and Training(recipe, keep.get(s)).missing(self.out)]

    def run(self, ask: Ask, seed: int | None = None) -> Run | None:
        """Its run; that of the first seed, if none is given."""
        recipe = self.recipe(ask, self.seeds[0] if seed is None else seed)
        return Run(self.out, recipe) if recipe else None

    def values(self, cell: PaperCell) -> list[float]:
        """One number per seed, as the paper would print it; none where the tier has nothing for a place."""
        look = self.recipe if cell.measure != "seconds" else lambda ask, seed: ask.recipe(self.tier, seed)
        recipes = [[look(ask, seed) for ask in cell.asks] for seed in self.seeds]
        times = MEASURES[cell.measure].times
        return [
            times * float(np.mean([self._value(recipe, cell) for recipe in row if recipe]))
            for row in recipes
            if None not in row
        ]

    def figures(self, recipe: Recipe) -> dict[str, float]:
        """Every metric of the test split."""
        run, method = Run(self.out, recipe), as_method(recipe.method)
        name, epoch = f"metrics{added_by(run, method)}", method.select(run.ending().history)
        found = run.read_figures(name, method, epoch) or evaluate(run, method, self.device)
        metrics: dict[str, float] = found["metrics"]
        return metrics

    def mean(self, ask: Ask, figure: str) -> float | None:
        """A metric of the test split, averaged over seeds."""
        values = [self.figures(recipe)[figure] for recipe in self.recipes(ask)]
        return float(np.mean(values)) if values else None

    def _value(self, recipe: Recipe, cell: PaperCell) -> float:
        if cell.measure == "seconds":
            return float(self.once(("seconds", recipe.address()), lambda: seconds_per_epoch(recipe, self.device)))
        if cell.measure in ("ts_ece", "ts_grid_ece"):
            return self._scaled(recipe, "nll" if cell.measure == "ts_ece" else "ece")
        if cell.measure in ("accuracy", "ece", "adaptive_ece"):
            return self.figures(recipe)[cell.measure]
        detection = self.ood(recipe, tuple(self.tier.ood[place] for place in cell.against))
        if cell.measure in ("auroc", "fpr95"):
            return float(detection["mean"]["scores"]["confidence"][cell.measure])
        [only] = detection["sets"].values()
        return float(only[cell.measure.replace("ood", "mean")])

    def _scaled(self, recipe: Recipe, by: Literal["nll", "ece"]) -> float:
        """ECE of the same run, at the same epoch, after temperature scaling."""
        method = replace(as_method(recipe.method), posthoc=TemperatureScaling(by))

        def compute() -> float:
            _, test, _ = calibrated_predictions(Run(self.out, recipe), method, self.device)
            return float(bin_table(read(None, test.log_probs, test.labels).top(), 15).ece())

        return float(self.once((f"ts by {by}", recipe.address()), compute))

    def ood(self, recipe: Recipe, names: tuple[str, ...]) -> dict[str, Any]:
        """OOD detection against these data sets."""
        names = tuple(dict.fromkeys(names))

        def compute() -> OodFigures:
            return evaluate_ood(self._predictor(recipe), names)

        found: dict[str, Any] = self.once(("ood", recipe.method.name, recipe.address(), names), compute)
        return found

    def shift(self, recipe: Recipe) -> dict[str, Any]:
        files = next((shift for shift in SHIFTS.values() if shift.of == recipe.task.dataset), None)

        def compute() -> ShiftFigures:
            published = files is not None and files.stored.find() is not None
            return evaluate_shift(self._predictor(recipe), self.tier.corruptions, published)

        found: dict[str, Any] = self.once(("shift", recipe.method.name, recipe.address()), compute)
        return found

    def _predictor(self, recipe: Recipe) -> RunPredictor:
        return RunPredictor(Run(self.out, recipe), recipe.method, self.device)

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, computed once per key."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]
