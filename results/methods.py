"""Every method of the paper and each of them under BalCAL, on `fashion`: accuracy, ECE and NLL, with and without `ts`.

python results/methods.py               two processes of one thread each; finished runs are found again
python results/methods.py --methods vanilla,tst --seeds 2 --set plan.epochs=1 --out /tmp/runs --csv /tmp/methods.csv
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from joblib import Parallel, delayed

from balcal.recipe import Recipe
from balcal.registry import recipe
from balcal.sessions import train_recipe

LOSSES = ("ls", "fl", "flsd", "dualfocal", "mmce", "mmce-w", "acls", "cpc", "mbls", "ecp", "mdca", "esd")
METHODS = (
    *("vanilla", *LOSSES, "mixup", "mit", "plp", "tst", "vtst", "pcs"),
    *("balcal", "balcal-k", "balcal-logits", "balcal-auto", "balcal-beta", "balcal-noadapter"),
    *("balcal-fixed", "balcal-fixedloss", "etf-1", "etf-k"),
    *(f"balcal+{name}" for name in ("ls", "fl", "flsd", "acls", "cpc", "mmce-w", "mbls", "dualfocal")),
    *("balcal-k+mixup", "balcal+mit", "balcal+plp", "balcal+pcs"),
)
Row = dict[str, Any]


def trained(asked: Recipe, out: str) -> dict[str, Any]:
    """The figures of a recipe, trained by this process with one thread, or found."""
    import torch

    torch.set_num_threads(1)
    figures = train_recipe(asked, out, "cpu", quiet=True)
    assert figures is not None
    print(f"{asked.task.name} {asked.method} seed {asked.seed}: {figures['run']}", file=sys.stderr, flush=True)
    return figures


def rows(method: str, seed: int, settings: tuple[str, ...], out: str) -> list[Row]:
    """One run, as it is and with a temperature."""
    told = []
    for name, ts in ((method, False), (f"{method}+ts", True)):
        figures = trained(recipe("fashion", name, seed, settings), out)
        test = figures["test"]
        low, high = test["ece_interval"]
        told.append(
            {"method": method, "ts": int(ts), "seed": seed, "epoch": figures["epoch"] + 1}
            | {"accuracy": test["accuracy"], "ece": test["ece"], "ece_low": low, "ece_high": high}
            | {"floor_mean": test["floor_mean"], "floor_high": test["floor_high"], "nll": test["nll"]}
        )
    return told


def parents(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Runs that others start from, each once: trained first, so that no two processes want to train the same."""
    return list({asked.parent.address(): asked.parent for asked in recipes if asked.parent}.values())


def write(path: Path, table: list[Row]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in table)


def over_seeds(mine: list[Row], read: Callable[[Row], float], digits: int) -> str:
    values = [read(row) for row in mine]
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def cells(mine: list[Row]) -> list[str]:
    low, high = (100 * mean(row[end] for row in mine) for end in ("ece_low", "ece_high"))
    return [
        over_seeds(mine, lambda row: 100 * row["accuracy"], 2),
        f"{over_seeds(mine, lambda row: 100 * row['ece'], 2)} [{low:.2f}, {high:.2f}]",
        f"{100 * mean(row['floor_mean'] for row in mine):.2f}",
        over_seeds(mine, lambda row: row["nll"], 4),
    ]


def markdown(table: list[Row]) -> str:
    """Mean ± standard deviation over seeds; of intervals and floors the mean."""
    seeds = len({row["seed"] for row in table})
    lines = [
        f"`fashion`, {seeds} seeds: mean ± standard deviation. ECE has 15 bins; in brackets the mean of the seeds'",
        "95 % intervals (they begin at 0 where a model cannot be told from a perfect one); `floor` is the ECE that a",
        "perfect model with the same confidences scores on average. `ts`: with a temperature fitted on the validation",
        "split, which leaves the accuracy as it is.",
        "",
        "| method | accuracy % | ECE % | floor % | NLL | ECE % ts | floor % ts | NLL ts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(row["method"] for row in table):
        plain, scaled = (cells([r for r in table if (r["method"], r["ts"]) == (method, ts)]) for ts in (0, 1))
        lines.append(f"| `{method}` | {' | '.join([*plain, *scaled[1:]])} |")
    return "\n".join(lines)


def arguments() -> Namespace:
    here = Path(__file__).parent
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS), help="joined by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as for `balcal train`")
    parser.add_argument("--out", default="runs", help="folder that holds all runs")
    parser.add_argument("--csv", type=Path, default=here / "methods.csv")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    settings, methods = tuple(given.settings), given.methods.split(",")
    asked = [(method, seed) for seed in range(given.seeds) for method in methods]
    first = parents(recipe("fashion", method, seed, settings) for method, seed in asked)
    at_once = Parallel(n_jobs=given.processes)
    at_once(delayed(trained)(each, given.out) for each in first)
    found = at_once(delayed(rows)(method, seed, settings, given.out) for method, seed in asked)
    table = sorted(
        (row for each in found for row in each), key=lambda r: (methods.index(r["method"]), r["ts"], r["seed"])
    )
    write(given.csv, table)
    print(markdown(table))


if __name__ == "__main__":
    main()
