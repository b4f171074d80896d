"""What a lower NLL costs: in trainings before, and in forward passes in use."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from balcal.core import BalcalError
from balcal.plots.style import SERIES, SOFT, Figure, figure, heading, legend, tidy

MARKS = {"": "o", "ts": "s", "tta": "^", "tta+ts": "v", "laplace": "D"}
"""by what comes after training"""
COSTS = {"trainings": "trainings", "passes": "forward passes per image"}
NEEDED = ("method", "members", "after", "trainings", "passes")


def budget(rows: str | Path | Sequence[Mapping[str, Any]], metric: str = "nll") -> Figure:
    """A metric against compute: trainings on the left, forward passes per image on the right.

    A point is the mean over seeds of one kind of prediction; lines join those that differ in the number of members. The
    dashed line is the best that a budget buys.

    Parameters
    ----------
    rows
        `results/data/ensembles.csv`, or records with `method`, `members`, `after`, `trainings`, `passes` and a metric.
    metric
        Lower is better: `nll`, `ece` or `brier`.

    >>> row = {"method": "vanilla", "members": 1, "after": "", "trainings": 1, "passes": 1, "nll": 0.4}
    >>> drawn = budget([row, row | {"members": 3, "trainings": 3, "passes": 3, "nll": 0.3}])
    >>> [axes.get_xlabel() for axes in drawn.axes]
    ['trainings', 'forward passes per image']
    """
    points = _points(_read(rows), metric)
    drawn = figure(9.2, 4.2)
    panels = drawn.subplots(1, 2, sharey=True)
    tidy(*panels)
    methods = list(dict.fromkeys(method for method, _ in points))
    for axes, cost in zip(panels, COSTS, strict=True):
        for (method, after), line in points.items():
            xs, ys = [each[cost] for each in line], [each[metric] for each in line]
            colour = SERIES[methods.index(method) % len(SERIES)]
            label = method if cost == "trainings" and after == next(a for m, a in points if m == method) else None
            name = f"{cost} {method}+{after}".rstrip("+")
            axes.plot(xs, ys, color=colour, marker=MARKS.get(after, "x"), markersize=5, linewidth=1, alpha=0.85,
                      label=label, gid=name)  # fmt: skip
        every = sorted((each[cost], each[metric]) for line in points.values() for each in line)
        front = [(x, min(y for other, y in every if other <= x)) for x in dict.fromkeys(x for x, _ in every)]
        label = None if cost == "trainings" else "lowest for the cost"
        axes.step(*zip(*front, strict=True), where="post", color=SOFT, linestyle="--", linewidth=1, label=label,
                  gid=f"{cost} best")  # fmt: skip
        axes.set_xscale("log")
        ticks = [int(x) for x, _ in front]
        axes.set_xticks(ticks, [str(x) for x in ticks])
        axes.minorticks_off()
        axes.set_xlabel(COSTS[cost])
    panels[0].set_ylabel(metric.upper())
    for after in dict.fromkeys(after for _, after in points):
        panels[1].plot([], [], color=SOFT, marker=MARKS.get(after, "x"), linestyle="", label=after or "as trained")
    legend(panels[0])
    legend(panels[1])
    heading(panels[0], "before use")
    heading(panels[1], "in use")
    return drawn


def _read(rows: str | Path | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if isinstance(rows, str | Path):
        try:
            with open(rows, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise BalcalError(f"cannot read {rows} ({error.strerror})") from None
    if not rows:
        raise BalcalError("there is no row to draw: pass the records of results/data/ensembles.csv")
    return list(rows)


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[tuple[str, str], list[dict[str, float]]]:
    """By method and what comes after it: means over seeds, in the order of members."""
    if len({row["task"] for row in rows if "task" in row}) > 1:
        raise BalcalError("these rows are of several tasks, whose figures cannot be compared: pass those of one")
    grouped: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for row in rows:
        try:
            numbers = {name: float(row[name]) for name in ("trainings", "passes", metric)}
            key = str(row["method"]), str(row["after"]), int(row["members"])
        except (KeyError, TypeError, ValueError):
            raise BalcalError(f"each row must have {', '.join(NEEDED)} and {metric}, with numbers") from None
        if not all(map(math.isfinite, numbers.values())):
            raise BalcalError(f"{metric} of {key[2]} {key[0]} is not finite: it cannot be drawn")
        grouped.setdefault(key, []).append(numbers)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for (method, after, _), each in sorted(grouped.items(), key=lambda item: item[0][2]):
        found.setdefault((method, after), []).append({name: mean(one[name] for one in each) for name in each[0]})
    return found
