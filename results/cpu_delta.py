"""How delta was chosen on the CIFAR tasks for machines without a GPU: by validation NLL, on a seed that no table uses.

BALCAL_DATA=../shared/data python results/cpu_delta.py [TASK ...]       two processes of one thread each

`val`: gamma from the validation split with delta = 1, instead of delta on the training batches. `vanilla` and
`balcal-auto` are there to compare with.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from balcal.registry import recipe
from balcal.runs import Run
from balcal.sessions import train_recipe

HERE, RUNS, SEED = Path(__file__).parent, Path("runs"), 100
TASKS = ("cifar10-cpu", "cifar100-cpu")
DELTAS = ("0.95", "0.85", "0.75")
CHOICES: dict[str, tuple[str, ...]] = {delta: (f"head.delta={delta}",) for delta in DELTAS}
CHOICES["val"] = ("head.delta=1.0", "tally.on=val")
ASKED = [(method, name) for name in CHOICES for method in ("balcal", "balcal-logits")]


def row(task: str, method: str, choice: str) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    asked = recipe(task, method, SEED, CHOICES.get(choice, ()))
    figures = train_recipe(asked, RUNS, "cpu", quiet=True)
    assert figures is not None
    history = Run(RUNS, asked).history()
    chosen = history[figures["epoch"]]
    told = {"task": task, "method": method, "delta": choice, "seed": SEED, "epoch": figures["epoch"] + 1}
    told |= {"gamma": figures["dials"].get("gamma", ""), "loss": chosen["loss"]}
    print(task, method, choice, f"val NLL {chosen['val_nll']:.4f}", file=sys.stderr, flush=True)
    return told | {name: chosen[name] for name in ("val_acc", "val_ece", "val_nll")}


def main() -> None:
    tasks = sys.argv[1:] or TASKS
    asked = [(task, *one) for task in tasks for one in (("vanilla", ""), ("balcal-auto", ""), *ASKED)]
    rows = Parallel(n_jobs=2, batch_size=1)(delayed(row)(*one) for one in asked)
    with open(HERE / "cpu-delta.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows({k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()} for r in rows)
    for told in sorted(rows, key=lambda told: (told["task"], told["method"], told["val_nll"])):
        print(*(f"{v:.4f}" if isinstance(v, float) else v for v in told.values()))


if __name__ == "__main__":
    main()
