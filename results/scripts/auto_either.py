"""The second follow-up's rule, docs/research/auto.md: is choosing average or last step by validation never worse?

python results/scripts/auto_either.py --runs runs    also writes results/data/auto-either.csv, from finished runs
python results/scripts/auto_either.py                applies the rule to results/data/auto alone
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from auto import ALL, FOLDER, FRESH, SEEDS, recorded
from folders import DATA

from balcal import registry
from balcal.runs import Run

CSV = DATA / "auto-either.csv"
TRIED = "balcal-auto"
"""called `balcal-either` at the time"""
LOST = 0.003
"""of accuracy under mixing, at most, in the mean over tasks"""


def choices(runs: Path) -> list[tuple[object, ...]]:
    """For each finished run: average or last step in the last epoch, and the chosen epoch."""
    rows: list[tuple[object, ...]] = []
    for task, asked in ALL.items():
        method = TRIED if asked.plain == "vanilla" else f"{TRIED}+{asked.plain}"
        for seed in range(SEEDS):
            recipe = registry.recipe(asked.task, method, seed, asked.settings)
            run = Run(runs, recipe)
            if run.finished:
                history = run.history()
                rows.append((task, seed, history[-1]["weights"], recipe.method.select(history) + 1, len(history)))
    return rows


def rule() -> dict[str, bool]:
    """The plan's conditions, and whether each holds."""
    found = {name: recorded(FOLDER / f"{name}.json") for name in FRESH}
    against = {
        (name, whom, figure): found[name].compare(getattr(asked, whom), asked.trial)[figure]
        for name, asked in FRESH.items()
        for whom, figure in (("plain", "accuracy"), ("reference", "nll"), ("reference", "ece"))
    }
    mixing = [name for name, asked in FRESH.items() if asked.plain == "mixup"]
    accuracy = [against[name, "plain", "accuracy"] for name in mixing]
    lost = -float(np.mean([each.value for each in accuracy]))
    return {
        "accuracy, no task significantly below mixup": all(each.judgement != "worse" for each in accuracy),
        f"accuracy, mean not below mixup by more than 0.3 ({-100 * lost:+.2f})": lost <= LOST,
        "NLL, nowhere significantly above": all(against[n, "reference", "nll"].judgement != "worse" for n in FRESH),
        "ECE, nowhere significantly above": all(against[n, "reference", "ece"].judgement != "worse" for n in FRESH),
        "NLL, with noisy labels significantly below": against["noisy-split", "reference", "nll"].judgement == "better",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    runs = parser.parse_args().runs
    if runs:
        with CSV.open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("task", "seed", "weights", "chosen", "epochs"))
            table.writerows(choices(runs))
    conditions = rule()
    for what, holds in conditions.items():
        print(f"{'holds' if holds else 'FAILS':6s} {what}")
    print("it becomes balcal-auto" if all(conditions.values()) else "it does not become balcal-auto")


if __name__ == "__main__":
    main()
