"""Neural collapse and disagreement of classifiers: the winner of docs/research/auto.md, BalCAL and plain training.

BALCAL_DATA=../shared/data python results/scripts/auto_look.py fashion cifar10 --runs runs

Reads finished runs. Writes results/data/auto-look.json: NC1 to NC4 of the chosen weights on training images; how often
the two classifiers disagree on test images, and which one is right then. Draws reliability diagrams of the first seed
to docs/research.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from auto import FINALS
from cpu import in_few_colours, store
from folders import DATA, DOCS

from balcal import registry
from balcal.analysis.collapse import collapse
from balcal.analysis.features import read_all
from balcal.core import Predictions
from balcal.evaluation.judge import batches_of, branch_predictions, calibrated_predictions, load_chosen, load_splits
from balcal.plots import reliability_diagram
from balcal.runs import Run

METHODS = ("vanilla", "averaged", "balcal", "balcal-logits", "balcal-auto")
SEEDS = 3
DRAWN = ("vanilla+ts", "balcal", "balcal-auto")
FOUND, PICTURES = DATA / "auto-look.json", DOCS / "research"
CPU = torch.device("cpu")


def figures_of(method: str, run: Run) -> dict[str, float]:
    """Figures of one run; collapse is that of the learnable classifier."""
    splits = load_splits(run.recipe.task)
    model = load_chosen(run, registry.method(method), CPU)
    readings, labels = read_all(model, batches_of(run, splits.train, CPU))
    measured = collapse(readings["learnable"], labels).as_dict()
    names = ("nc1", "nc2_norms", "nc2_angles", "nc3", "nc4")
    return {name: measured[name] for name in names} | disagreement(branch_predictions(run, CPU))


def disagreement(branches: list[Predictions]) -> dict[str, float]:
    if not branches:
        return {}
    labels = branches[0].labels
    first, second = (branch.log_probs.argmax(1) for branch in branches)
    differ = first != second
    return {
        "disagree": float(differ.double().mean()),
        "learnable right then": float((first == labels)[differ].double().mean()),
        "fixed right then": float((second == labels)[differ].double().mean()),
    }


def mean_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def look(task: str, runs: Path) -> list[dict[str, Any]]:
    asked = FINALS[task]
    rows = []
    for method in METHODS:
        recipes = [registry.recipe(asked.task, method, seed, asked.settings) for seed in range(SEEDS)]
        found = [Run(runs, recipe) for recipe in recipes]
        rows.append({"task": task, "method": method, **mean_of([figures_of(method, run) for run in found])})
        print(rows[-1], flush=True)
    drawn = {}
    for method in DRAWN:
        run = Run(runs, registry.recipe(asked.task, method, 0, asked.settings))
        drawn[method] = calibrated_predictions(run, registry.method(method), CPU)[1]
    picture = PICTURES / f"reliability-{task}.png"
    reliability_diagram(drawn, title=f"{asked.task}, seed 0").savefig(picture, dpi=100)
    in_few_colours(picture)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=[name for name in FINALS if name != "mixup"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    store(FOUND, {"rows": [row for task in given.tasks for row in look(task, given.runs)]})


if __name__ == "__main__":
    main()
