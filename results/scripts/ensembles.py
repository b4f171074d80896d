"""What adds up: 1, 2, 3, ... members, each with and without `ts`, `tta` and `laplace`, from runs that exist.

BALCAL_DATA=../shared/data python results/scripts/ensembles.py --runs DIR [TASK ...]

DIR is the folder of runs of results/scripts/fast.py. Nothing is trained: of each method as many seeds are joined as are
finished. Writes results/data/ensembles.csv, a row per prediction: figures on the test images, the difference to one
`vanilla+ts` of the same seed with its paired 95 % interval, trainings and minutes before, forward passes per image in
use. Draws docs/results/ensembles-TASK.png from it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from folders import DATA, DOCS

from balcal import registry
from balcal.arena.entries import trainings
from balcal.build import as_method
from balcal.core import BalcalError, Predictions
from balcal.evaluation.judge import calibrated_predictions, load_chosen
from balcal.methods.joining import members
from balcal.methods.parts.average import Viewed
from balcal.metrics.comparison import compare
from balcal.metrics.summary import summary
from balcal.plots.ensembles import budget
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.training.fit import train_recipe

TASKS = ("cifar10-fast", "cifar100-fast", "svhn-fast")
METHODS = ("vanilla", "averaged", "balcal-logits", "balcal-auto")
AFTER = ("", "+ts", "+tta", "+tta+ts", "+laplace")
MEMBERS = (1, 2, 3, 5)
SEEDS = range(10)
CPU = torch.device("cpu")
COMPARED = ("accuracy", "ece", "nll")


def finished(task: str, method: str, runs: Path) -> list[int]:
    return [seed for seed in SEEDS if Run(runs, registry.recipe(task, method, seed)).finished]


def predictions(recipe: Recipe, runs: Path) -> Predictions:
    """On the test images; from runs that exist."""
    run = Run(runs, recipe)
    if members(recipe):
        train_recipe(registry.recipe(recipe.task.name, run.recipe.method.name, recipe.seed), runs, "cpu", quiet=True)
    with run.in_use():
        return calibrated_predictions(run, as_method(recipe.method), CPU)[1]


def passes(recipe: Recipe, runs: Path) -> int:
    """Forward passes per image."""
    model = load_chosen(Run(runs, recipe), as_method(recipe.method), CPU)
    networks = list(model.backbone.members) if members(recipe) else [model]
    return sum(len(each.head.weights) if isinstance(each.backbone, Viewed) else 1 for each in networks)


def rows(task: str, runs: Path) -> Iterator[dict[str, Any]]:
    """All predictions of a task that the runs allow."""
    there = {method: finished(task, method, runs) for method in METHODS}
    first = {seed: predictions(registry.recipe(task, "vanilla+ts", seed), runs) for seed in there.get("vanilla", [])}
    for method, seeds in there.items():
        for count in MEMBERS:
            for seed in [s for s in seeds if set(range(s, s + count)) <= set(seeds)]:
                for after in AFTER:
                    name = f"{count}*{method}{after}" if count > 1 else f"{method}{after}"
                    recipe = registry.recipe(task, name, seed)
                    try:
                        found = predictions(recipe, runs)
                    except BalcalError as error:  # `laplace` does not go with every head
                        print(f"{task} {name} seed {seed}: {error}")
                        continue
                    yield row(recipe, method, count, after, runs, found, first.get(seed))


def row(
    recipe: Recipe, method: str, count: int, after: str, runs: Path, found: Predictions, first: Predictions | None
) -> dict[str, Any]:
    figures = summary(log_probs=found.log_probs, labels=found.labels)
    spent = [sum(Run(runs, each).seconds()) for each in members(recipe) or (recipe,)]
    made: dict[str, Any] = {"task": recipe.task.name, "method": method, "members": count, "after": after.strip("+")}
    made |= {"seed": recipe.seed} | {name: figures[name] for name in (*COMPARED, "brier")}
    same = first is None or torch.equal(first.log_probs.double(), found.log_probs.double())
    differences = None if same else compare(first, found)
    for name in COMPARED:
        interval = getattr(differences, name, None)
        for part in ("value", "low", "high"):
            made[f"{name}_against_{part}"] = interval and getattr(interval, part)
    return made | {
        "trainings": trainings(recipe),
        "training_minutes": round(sum(spent) / 60, 3),
        "passes": passes(recipe, runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"{', '.join(TASKS)}; all that have runs, if left out")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--to", type=Path, default=DATA / "ensembles.csv")
    parser.add_argument("--pictures", type=Path, default=DOCS / "results")
    given = parser.parse_args()
    made = [each for task in given.tasks or TASKS for each in rows(task, given.runs)]
    if not made:
        raise SystemExit(f"there is no finished run of {', '.join(given.tasks or TASKS)} in {given.runs}")
    given.to.parent.mkdir(parents=True, exist_ok=True)
    with open(given.to, "w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({n: f"{v:.6g}" if isinstance(v, float) else v for n, v in each.items()} for each in made)
    given.pictures.mkdir(parents=True, exist_ok=True)
    for task in dict.fromkeys(each["task"] for each in made):
        budget([each for each in made if each["task"] == task]).save(given.pictures / f"ensembles-{task}.png")


if __name__ == "__main__":
    main()
