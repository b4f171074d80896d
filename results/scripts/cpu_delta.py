"""How delta was chosen on the CIFAR tasks for machines without a GPU: by validation NLL, on a seed that no table uses.

BALCAL_DATA=../shared/data python results/scripts/cpu_delta.py [TASK ...]       two processes of one thread each

`val`: gamma from the validation split with delta = 1, instead of delta on the training batches; for `balcal-logits`
that is `balcal-val`. `vanilla` and `balcal-val` are baselines.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from folders import DATA
from joblib import Parallel, delayed

from balcal.registry import recipe
from balcal.runs import Run
from balcal.training.fit import train_recipe

RUNS, SEED = Path("runs"), 100
DELTAS = {"cifar10-cpu": ("0.95", "0.85", "0.75"), "cifar100-cpu": ("0.85", "0.6")}
"""the worse a network generalises, the farther its confidence must be below its training accuracy"""
METHODS = ("balcal", "balcal-logits")


def trials_of(task: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """(task, method, name of the choice, settings)"""
    choices = {delta: (f"head.delta={delta}",) for delta in DELTAS[task]}
    choices["val"] = ("head.delta=1.0", "tally.on=val")
    plain = [(task, method, "", ()) for method in ("vanilla", "balcal-val")]
    return [*((task, method, name, settings) for name, settings in choices.items() for method in METHODS), *plain]


def row(task: str, method: str, choice: str, settings: tuple[str, ...]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    asked = recipe(task, method, SEED, settings)
    figures = train_recipe(asked, RUNS, "cpu", quiet=True)
    assert figures is not None
    history = Run(RUNS, asked).history()
    chosen = history[figures["epoch"]]
    found = {"task": task, "method": method, "delta": choice, "seed": SEED, "epoch": figures["epoch"] + 1}
    found |= {"gamma": figures["dials"].get("gamma", ""), "loss": chosen["loss"]}
    print(task, method, choice, f"val NLL {chosen['val_nll']:.4f}", file=sys.stderr, flush=True)
    return found | {name: chosen[name] for name in ("val_acc", "val_ece", "val_nll")}


def main() -> None:
    asked = [one for task in sys.argv[1:] or DELTAS for one in trials_of(task)]
    rows = Parallel(n_jobs=2, batch_size=1)(delayed(row)(*one) for one in asked)
    with open(DATA / "cpu-delta.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows({k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()} for r in rows)
    for found in sorted(rows, key=lambda found: (found["task"], found["method"], found["val_nll"])):
        print(*(f"{v:.4f}" if isinstance(v, float) else v for v in found.values()))


if __name__ == "__main__":
    main()
