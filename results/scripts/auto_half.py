"""The follow-up's rule, docs/research/auto.md: is half of the loss for each classifier better, on validation images?

python results/scripts/auto_half.py --runs runs       reads finished runs, writes results/data/auto-half.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from auto import FINALS, SEEDS
from folders import DATA
from scipy import stats

from balcal import registry
from balcal.runs import Run

CSV = DATA / "auto-half.csv"
LOST = 0.005
"""of accuracy, at most, on any task"""


def chosen(runs: Path, task: str, method: str, seed: int) -> tuple[float, float]:
    """NLL and accuracy on validation images in the chosen epoch."""
    recipe = registry.recipe(FINALS[task].task, method, seed, FINALS[task].settings)
    history = Run(runs, recipe).history()
    record = history[recipe.method.select(history)]
    return float(record["val_nll"]), float(record["val_acc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    runs = parser.parse_args().runs
    rows = []
    for task, asked in FINALS.items():
        for seed in range(SEEDS):
            (nll, accuracy), (half_nll, half_accuracy) = (
                chosen(runs, task, method, seed) for method in (asked.winner, asked.trial)
            )
            rows.append((task, seed, nll, half_nll, accuracy, half_accuracy))
    with CSV.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("task", "seed", "nll", "half_nll", "accuracy", "half_accuracy"))
        table.writerows((task, seed, *(round(x, 5) for x in figures)) for task, seed, *figures in rows)
    ratio = np.array([half / nll - 1 for _, _, nll, half, _, _ in rows])
    gained = {task: np.mean([row[5] - row[4] for row in rows if row[0] == task]) for task in FINALS}
    for task, gain in gained.items():
        mine = ratio[[row[0] == task for row in rows]]
        print(f"{task:10s} NLL {mine.mean():+.2%} ({', '.join(f'{x:+.1%}' for x in mine)}), accuracy {gain:+.2%}")
    p = float(stats.ttest_1samp(ratio, 0).pvalue)
    better = ratio.mean() < 0 and p < 0.05 and min(gained.values()) >= -LOST
    print(f"mean {ratio.mean():+.2%}, p = {p:.2g}: {'it becomes' if better else 'it does not become'} balcal-auto")


if __name__ == "__main__":
    main()
