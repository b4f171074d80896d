"""docs/results-ensembles.md, from results/data/ensembles.csv alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import product
from statistics import mean
from typing import Any

from ensembles import AFTER, MEMBERS, METHODS
from fast_tables import NOTHING, TITLES
from folders import DATA

FILE = DATA / "ensembles.csv"
FIGURES = ("accuracy", "ece", "nll")
TOP = """# Ensembles, views and Laplace

What lowers NLL, and what it costs: members joined from the runs of [the `-fast` tasks](results.md), each with and
without a temperature, views of an image (`tta`) and a last-layer Laplace approximation. Figures are of the chosen
epoch, on all test images. Made by `python results/scripts/write.py` from `results/data/ensembles.csv`. How to do the
same: [the guide](ensembles.md).

*Against `vanilla+ts`*: difference in NLL to one run with a temperature of the same first seed, mean over the rows'
seeds, and how many of them have a paired 95 % interval below 0 (better), around 0 (even), above 0 (worse). Joined runs
of neighbouring seeds share members.
"""


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(FILE.read_text().splitlines())) if FILE.exists() else []


def table(task: str, found: list[dict[str, str]]) -> list[str]:
    heads = ("", "first seeds", "accuracy %", "ECE %", "NLL", "NLL against `vanilla+ts`", "trainings, passes")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for method, count, after in product(METHODS, MEMBERS, AFTER):
        wanted = {"task": task, "method": method, "members": str(count), "after": after.strip("+")}
        these = [each for each in found if all(each[key] == value for key, value in wanted.items())]
        if these:
            name = f"{count}*{method}{after}" if count > 1 else f"{method}{after}"
            lines.append(_row([f"`{name}`", ", ".join(each["seed"] for each in these), *_figures(these)]))
    return lines


def _figures(these: list[dict[str, str]]) -> list[str]:
    accuracy, ece, nll = (mean(float(each[name]) for each in these) for name in FIGURES)
    cost = f"{these[0]['trainings']}, {these[0]['passes']}"
    return [f"{100 * accuracy:.2f}", f"{100 * ece:.2f}", f"{nll:.4f}", _against(these), cost]


def _against(these: list[dict[str, str]]) -> str:
    known = [each for each in these if each["nll_against_value"]]
    if not known:
        return NOTHING
    words = [_word(float(each["nll_against_low"]), float(each["nll_against_high"])) for each in known]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("better", "even", "worse") if word in words)
    return f"{mean(float(each['nll_against_value']) for each in known):+.4f} ({counts})"


def _word(low: float, high: float) -> str:
    return "better" if high < 0 else "worse" if low > 0 else "even"


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(cells)} |"


def page() -> str:
    parts, found = [TOP], rows()
    for task, title in TITLES.items():
        if any(each["task"] == task for each in found):
            picture = f"![NLL against trainings and against passes](results/ensembles-{task}.png)"
            parts.append("\n".join([f"## {title}", "", picture, "", *table(task, found), ""]))
    missing = [title for task, title in TITLES.items() if not any(each["task"] == task for each in found)]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)
