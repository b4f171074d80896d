"""The numbers on `fashion` in the README and docs/decisions.md: five seeds, and the choice of delta.

python results/scripts/fashion.py            (about 25 minutes on 2 cores; finished runs are found again)
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

from folders import DATA

from balcal.registry import recipe
from balcal.runs import Run
from balcal.training.fit import train_recipe

RUNS = Path("runs")
METHODS = ("vanilla", "balcal", "balcal-logits", "balcal-val", "balcal-mean", "balcal-auto")
DELTAS = ("0.89", "0.91", "0.93", "0.95", "0.97", "0.99")


def row(method: str, seed: int, *settings: str) -> dict[str, Any]:
    """Train (or find) one run; its figures with the validation figures of the chosen epoch."""
    asked = recipe("fashion", method, seed, settings)
    figures = train_recipe(asked, RUNS, "cpu", quiet=True)
    chosen = Run(RUNS, asked).history()[figures["epoch"]]
    test = figures["test"]
    found = {"method": method, "settings": " ".join(settings), "seed": seed, "epoch": figures["epoch"] + 1}
    found |= {"gamma": figures["dials"].get("gamma", ""), "val_nll": chosen["val_nll"], "val_ece": chosen["val_ece"]}
    return found | {k: test[k] for k in ("accuracy", "ece", "nll", "brier", "mean_confidence")}


def write(name: str, rows: list[dict[str, Any]]) -> None:
    with open(DATA / name, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows({k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()} for r in rows)


def five_seeds() -> None:
    asked = [(name, ()) for method in METHODS for name in (method, f"{method}+ts")]
    asked.append(("balcal", ("head.delta=0.95",)))
    rows = [row(method, seed, *settings) for seed in range(5) for method, settings in asked]
    write("fashion-seeds.csv", rows)
    print("| method | accuracy | ECE | NLL | mean confidence |\n|---|---|---|---|---|")
    for method, settings in asked:
        mine = [r for r in rows if (r["method"], r["settings"]) == (method, " ".join(settings))]
        cells = []
        for figure, scale, digits in (
            ("accuracy", 100, 2),
            ("ece", 100, 2),
            ("nll", 1, 4),
            ("mean_confidence", 100, 2),
        ):
            values = [scale * r[figure] for r in mine]
            cells.append(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
        print(f"| `{method}` {' '.join(settings)} | " + " | ".join(cells) + " |")


def deltas() -> None:
    """On seeds that no table uses, by validation NLL."""
    rows = [
        row(method, seed, f"head.delta={delta}")
        for delta in DELTAS
        for method in ("balcal", "balcal-logits")
        for seed in (100, 101)
    ]
    write("fashion-delta.csv", rows)
    for method in ("balcal", "balcal-logits"):
        for delta in DELTAS:
            mine = [r["val_nll"] for r in rows if (r["method"], r["settings"]) == (method, f"head.delta={delta}")]
            print(f"{method:14} delta {delta}: mean validation NLL {statistics.mean(mine):.4f}")


if __name__ == "__main__":
    deltas()
    five_seeds()
