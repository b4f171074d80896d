"""What an item would take: runs, hours, disk; from a few timed steps of each network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from balcal import registry
from balcal.core import BalcalError
from balcal.paper.running import Training
from balcal.paper.timing import Timed, time_steps
from balcal.recipe import Recipe

PASSES = {"mit": 2.0, "tst": 1 / 3, "vtst": 1 / 3}
"""work per image in passes forward and back: two mixtures; forward only, through a frozen body"""
CLEAN_PASS = 1 / 3
"""gamma under mixup looks at the clean batch, forward only"""
STATES = 2
"""that stay on disk, each with the optimiser's own numbers"""


@dataclass(frozen=True)
class Budget:
    runs: int
    """needed altogether"""
    missing: int
    hours: float
    """to train the missing ones, one after the other, on this machine"""
    gigabytes: float
    timed: tuple[dict[str, Any], ...]
    """what was timed: network, side, images per step"""
    untimed: tuple[str, ...] = ()
    """networks that cannot be built here, and why; their runs are in no sum"""

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "timed": list(self.timed), "untimed": list(self.untimed)}

    def sentences(self) -> list[str]:
        told = [
            f"{self.runs} runs, {self.missing} of them missing: about {_hours(self.hours)} on this machine alone, one "
            f"after the other, and {self.gigabytes:.1f} GB on disk"
        ]
        for t in self.timed:
            scaled = f"; {t['batch_size']} in the recipe, taken in proportion" if t["batch"] != t["batch_size"] else ""
            told.append(
                f"timed: {t['backbone']} at {t['side']} x {t['side']}, {t['batch']} images a step{scaled}: "
                f"{t['seconds_per_image'] * 1000:.3g} ms an image, {t['epoch_seconds']:.3g} s an epoch"
            )
        told += [f"not counted: {text}" for text in self.untimed]
        return [*told, "evaluation, corruptions and outside sets come on top"]


def _hours(hours: float) -> str:
    if hours < 0.02:
        return f"{hours * 3600:.0f} seconds"
    if hours < 1:
        return f"{hours * 60:.0f} minutes"
    years = hours / 24 / 365
    return f"{hours:,.1f} hours" if years < 1 else f"{hours:,.0f} hours ({years:,.0f} years)"


def estimate(
    needed: Sequence[Training], out: Path, device: torch.device, say: Callable[[str], None] = lambda text: None
) -> Budget:
    """Each network is timed once, with plain training; what a method does on top is counted in passes."""
    timed: dict[tuple[Any, ...], Timed | None] = {}
    untimed: list[str] = []
    missing = [training for training in needed if training.missing(out)]
    seconds = size = 0.0
    for training in missing:
        recipe = training.recipe
        key = network_of(recipe)
        if key not in timed:
            say(f"timing {key[0]} at {key[1]} x {key[1]}")
            try:
                timed[key] = time_steps(registry.recipe(recipe.task.name, "vanilla", 0, plain_settings(recipe)), device)
            except BalcalError as error:  # a network of a package that is not there
                timed[key] = None
                untimed.append(f"{recipe.task.name}: {error}")
        told = timed[key]
        if told:
            seconds += told.seconds_per_epoch * recipe.task.plan.epochs * passes(recipe)
            size += disk_bytes(training, told.weight_bytes)
    lines = tuple(
        {
            "backbone": key[0],
            "side": key[1],
            "dataset": key[2],
            "batch": told.batch,
            "batch_size": told.batch_size,
            "seconds_per_image": told.seconds_per_image,
            "epoch_seconds": told.seconds_per_epoch,
        }
        for key, told in timed.items()
        if told
    )
    return Budget(len(needed), len(missing), seconds / 3600, size / 1e9, lines, tuple(untimed))


def network_of(recipe: Recipe) -> tuple[Any, ...]:
    dataset = registry.dataset(recipe.task.dataset)
    return recipe.task.backbone, recipe.task.side or dataset.side, dataset.name, recipe.task.plan.batch_size


def plain_settings(recipe: Recipe) -> list[str]:
    """Those of task and plan, which a plain run has as well."""
    return [text for text in recipe.overrides if text.split(".")[0] in ("task", "plan")]


def passes(recipe: Recipe) -> float:
    parts = recipe.method.name.split("+")
    clean = CLEAN_PASS if "mixup" in parts and recipe.method.tally else 0.0
    return math.prod(PASSES.get(part, 1.0) for part in parts) + clean


def disk_bytes(training: Training, weight_bytes: int) -> float:
    """States (weights and what the optimiser remembers), chosen weights, kept epochs, predictions."""
    task = training.recipe.task
    dataset = registry.dataset(task.dataset)
    remembered = 1 if task.plan.optimiser == "sgd" else 2
    keep = training.keep or task.plan.keep_every
    epochs = 1 + (task.plan.epochs // keep if keep else 0)
    predictions = 4 * dataset.num_classes * (task.val_size + dataset.sizes[1])
    return weight_bytes * (STATES * (1 + remembered) + epochs) + predictions
