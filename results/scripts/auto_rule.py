"""The rule of docs/research/auto.md, applied to the rows of results/data/auto-trials.csv.

python results/scripts/auto_rule.py

NLL relative to `vanilla+ts` of the same task and seed, the mean over tasks of the mean over seeds; its standard error
over all tasks and seeds. A method that loses more than half a point of accuracy to
`vanilla` on any task is out.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np
from auto_trials import CSV, TASKS

LOST = 0.005
"""of accuracy, at most"""


@dataclass(frozen=True)
class Standing:
    training: str
    rule: str
    by_task: dict[str, float]
    """NLL, relative to the reference, less 1"""
    error: float
    lost: float
    """most accuracy lost on any task"""

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_task.values())))


def standings() -> list[Standing]:
    """Every training and rule that was tried on all tasks and seeds, the lowest mean first."""
    rows = list(csv.DictReader(CSV.open()))
    plain = {(r["task"], r["seed"]): r for r in rows if (r["training"], r["rule"]) == ("vanilla", "ts")}
    grouped: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        grouped.setdefault((row["training"], row["rule"]), []).append(row)
    found = []
    for (training, rule), tried in grouped.items():
        if {(r["task"], r["seed"]) for r in tried} >= set(plain):
            nll, accuracy = (
                {place: float(r[name]) for r in tried if (place := (r["task"], r["seed"])) in plain}
                for name in ("nll", "accuracy")
            )
            ratio = {place: value / float(plain[place]["nll"]) - 1 for place, value in nll.items()}
            lost = {place: float(plain[place]["accuracy"]) - value for place, value in accuracy.items()}
            error = float(np.std(list(ratio.values()), ddof=1) / np.sqrt(len(ratio)))
            found.append(Standing(training, rule, _by_task(ratio), error, max(_by_task(lost).values())))
    return sorted(found, key=lambda standing: standing.mean)


def _by_task(values: dict[tuple[str, str], float]) -> dict[str, float]:
    return {task: float(np.mean(of)) for task in TASKS if (of := [v for (t, _), v in values.items() if t == task])}


def main() -> None:
    found = standings()
    kept = [standing for standing in found if standing.lost <= LOST]
    bound = kept[0].mean + kept[0].error
    for standing in found:
        mark = "out" if standing.lost > LOST else "within" if standing.mean <= bound else ""
        tasks = "  ".join(f"{task} {value:+.1%}" for task, value in standing.by_task.items())
        print(
            f"{standing.mean:+.2%} ± {standing.error:.2%}  {standing.training:20s} {standing.rule:20s} {tasks}  {mark}"
        )


if __name__ == "__main__":
    main()
