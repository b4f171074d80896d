"""Ours beside theirs: an item's result as Markdown and as JSON, with every deviation named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from balcal.paper.budget import images_to_train_on
from balcal.paper.curves import CURVES
from balcal.paper.drawing import DRAWINGS, save
from balcal.paper.items import MEASURES, Ask, Item, PaperCell
from balcal.paper.measure import Answers
from balcal.paper.tiers import Tier
from balcal.paper.words import against_baseline
from balcal.runtime.files import write_atomic

NOTHING = "–"
SWEPT = ("alpha", "beta", "delta", "epoch")
"""keys of a figure's data that name a point of its curves"""


@dataclass(frozen=True)
class CellResult:
    """Ours and the paper's number of one cell."""

    row: str
    column: str
    measure: str
    unit: str
    better: str
    ours: float | None
    spread: float | None
    values: list[float]
    """one per seed"""
    published: float | None
    published_spread: float | None
    difference: float | None
    against_baseline: str | None = None
    """accuracy or ECE against that of `vanilla+ts`: better, worse, not told apart"""

    @staticmethod
    def of(cell: PaperCell, answers: Answers) -> CellResult:
        values, printed, measure = answers.values(cell), cell.published, MEASURES[cell.measure]
        ours = mean(values) if values else None
        return CellResult(
            cell.row,
            cell.column,
            measure.label,
            measure.unit,
            measure.better,
            ours=ours,
            spread=stdev(values) if len(values) > 1 else None,
            values=values,
            published=printed.value if printed else None,
            published_spread=printed.spread if printed else None,
            difference=ours - printed.value if ours is not None and printed else None,
            against_baseline=against_baseline(cell, answers),
        )


@dataclass(frozen=True)
class MissingRuns:
    """What could have been trained and was not."""

    place: str
    method: str
    settings: list[str]
    seeds: list[int]
    command: str = ""
    """that trains the first of them"""


@dataclass(frozen=True)
class ItemResult:
    """Everything that an item's JSON file has."""

    item: str
    kind: str
    title: str
    paper_shows: str
    label: str
    tier: str
    seeds: list[int]
    cells: list[CellResult]
    """of a table"""
    data: Any
    """of a figure: what `drawing.py` draws"""
    deviations: list[str]
    notes: list[str]
    runs: list[str]
    missing: list[MissingRuns]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "cells": [vars(c) for c in self.cells], "missing": [vars(m) for m in self.missing]}

    @staticmethod
    def of(data: Mapping[str, Any]) -> ItemResult:
        """From what `as_dict` gave, also after it was written as JSON and read again."""
        cells, missing = [CellResult(**c) for c in data["cells"]], [MissingRuns(**m) for m in data["missing"]]
        return ItemResult(**{**data, "cells": cells, "missing": missing})


def answer(item: Item, answers: Answers) -> ItemResult:
    return ItemResult(
        item=item.id,
        kind=item.kind,
        title=item.title,
        paper_shows=item.shows,
        label=item.label,
        tier=answers.tier.name,
        seeds=list(answers.seeds),
        cells=[CellResult.of(cell, answers) for cell in item.cells] if item.kind == "table" else [],
        data=CURVES[item.id](item, answers) if item.kind == "figure" else None,
        deviations=deviations(item, answers),
        notes=list(item.notes),
        runs=_runs(item, answers),
        missing=[
            MissingRuns(ask.place, ask.method, list(ask.settings), seeds, _command(ask, seeds[0], answers.tier))
            for ask in item.asks(answers.tier)
            if (seeds := answers.missing(ask, item.epochs))
        ],
    )


def deviations(item: Item, answers: Answers) -> list[str]:
    """How this differs from the paper's experiment."""
    tier = answers.tier
    places = dict.fromkeys([ask.place for cell in item.cells for ask in cell.asks])
    places |= dict.fromkeys(ask.place for ask in item.series(tier).values())
    found = [f"tier `{tier.name}`: {tier.about}"]
    stands: dict[str, list[str]] = {}
    for place in places:
        stands.setdefault(_stands_for(place, tier), []).append(place)
    found += [f"{'; '.join(which)}: {what}" for what, which in stands.items()]
    seeds = f"{len(answers.seeds)} seed" + ("s" if len(answers.seeds) > 1 else ", so no spread")
    found += [seeds, *tier.deviations]
    if any(cell.measure == "seconds" for cell in item.cells):
        found.append(f"seconds are extrapolated from timed steps on {answers.device}: only ratios can be compared")
    if item.epochs and tier.keep > 1:
        found.append(f"every {tier.keep}th epoch")
    return found


def _stands_for(place: str, tier: Tier) -> str:
    """The task that is trained, in a few words."""
    stand, recipe = tier.places.get(place), Ask(place, "vanilla").recipe(tier, 0)
    if stand is None or recipe is None:
        return "nothing stands for it in this tier"
    task, plan = recipe.task, recipe.task.plan
    how = f"{plan.optimiser} {plan.lr:g}, batch {plan.batch_size}, {plan.epochs} epochs, augmentation {task.augment}"
    remark = f"; {stand.remark}" if stand.remark else ""
    return (
        f"task `{stand.task}`: {images_to_train_on(recipe):,} images of {task.dataset}, {task.backbone}, {how}{remark}"
    )


def _runs(item: Item, answers: Answers) -> list[str]:
    found = [answers.run(ask, seed) for ask in item.asks(answers.tier) for seed in answers.seeds]
    return list(dict.fromkeys(str(run.path) for run in found if run is not None))


def _command(ask: Ask, seed: int, tier: Tier) -> str:
    """The line that trains a run.

    >>> from balcal.paper.tiers import tier
    >>> _command(Ask("SVHN", "balcal", ("head.delta=0.9",)), 1, tier("fast"))
    'balcal train svhn-fast balcal --seed 1 --set head.delta=0.9'
    """
    stand = tier.places[ask.place]
    settings = "".join(f" --set {text}" for text in (*stand.settings, *ask.settings))
    return f"balcal train {stand.task} {ask.method} --seed {seed}{settings}"


def _not_run(missing: list[MissingRuns]) -> str:
    """`CIFAR-100 (seeds 0, 1): acls, ls; ...`"""
    grouped: dict[str, list[str]] = {}
    for each in missing:
        seeds = f"seed{'s' if len(each.seeds) > 1 else ''} {', '.join(map(str, each.seeds))}"
        grouped.setdefault(f"{each.place} ({seeds})", []).append(" ".join((f"`{each.method}`", *each.settings)))
    return "; ".join(f"{where}: {', '.join(what)}" for where, what in grouped.items())


def in_markdown(result: ItemResult, pictures: list[Path] | None = None) -> str:
    lines = [f"## {result.title} (`{result.item}`)", "", f"The paper: {result.paper_shows}", ""]
    if result.kind == "table":
        lines += [
            *_table(result.cells),
            "",
            "Ours, and in parentheses what the paper prints; ± is the deviation over seeds.",
            "",
            *_in_words(result.cells),
        ]
    lines += [f"![{result.title}]({picture.name})" for picture in pictures or [] if picture.suffix == ".png"]
    lines += _numbers(result.data) if result.kind == "figure" else []
    if result.missing:
        lines += ["", f"Not run, so empty here or with fewer seeds: {_not_run(result.missing)}."]
        if first := result.missing[0].command:
            lines += ["", f"`balcal paper {result.item} --tier {result.tier}` trains all of them, `{first}` the first."]
    lines += ["", "How this differs from the paper's experiment:", "", *(f"- {text}" for text in result.deviations)]
    if result.notes:
        lines += ["", "Known oddities:", "", *(f"- {text}" for text in result.notes)]
    return "\n".join([*lines, ""])


def _table(cells: list[CellResult]) -> list[str]:
    heads = {
        (c.column, c.measure): f"{c.column} {c.measure}{'↑' if c.better == 'higher' else '↓'} {c.unit}" for c in cells
    }
    found = {(c.row, c.column, c.measure): c for c in cells}
    lines = ["| | " + " | ".join(heads.values()) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in dict.fromkeys(c.row for c in cells):
        lines.append("| " + " | ".join([row, *(_shown(found[row, *column]) for column in heads)]) + " |")
    return lines


def _in_words(cells: list[CellResult]) -> list[str]:
    """For each row and place, ECE and accuracy against `vanilla+ts`."""
    found = {(c.row, c.column, c.measure): c.against_baseline for c in cells if c.against_baseline}
    if not found:
        return []
    places = list(dict.fromkeys(column for _, column, _ in found))
    measures = [measure for measure in ("ECE", "ACC") if any(measure == each for *_, each in found)]
    lines = ["| against `vanilla+ts` | " + " | ".join(places) + " |", "|---" * (len(places) + 1) + "|"]
    for row in dict.fromkeys(row for row, *_ in found):
        words = [
            "; ".join(f"{m} {found[row, place, m]}" for m in measures if (row, place, m) in found) or NOTHING
            for place in places
        ]
        lines.append(f"| {row} | {' | '.join(words)} |")
    return [*lines, "", "By 95 % intervals over seeds and test images; one seed speaks of two runs only.", ""]


def _shown(cell: CellResult) -> str:
    ours = NOTHING if cell.ours is None else f"{cell.ours:.2f}"
    spread = "" if cell.spread is None else f"±{cell.spread:.2g}"
    theirs = NOTHING if cell.published is None else f"{cell.published:.2f}"
    return f"{ours}{spread} ({theirs})"


def _numbers(data: Any) -> list[str]:
    """The numbers of a figure, where a few of them say it."""
    short = _short_courses(data)
    if short:
        steps = range(1, 1 + max(len(values) for _, values in short))
        lines = ["", f"| | {' | '.join(map(str, steps))} |", "|---" * (1 + len(steps)) + "|"]
        return [*lines, *(f"| {name} | {' | '.join(f'{value:.4g}' for value in values)} |" for name, values in short)]
    flat = _scalars(data)
    return ["", "| | |", "|---|---|", *(f"| {name} | {value:.4g} |" for name, value in flat)] if flat else []


def _short_courses(data: Any, name: str = "") -> list[tuple[str, list[float]]]:
    """Lists of a few numbers, as over five severities, by their path; none if there is anything else."""
    if isinstance(data, dict):
        within = [_short_courses(value, f"{name}, {key}" if name else str(key)) for key, value in data.items()]
        return [pair for pairs in within for pair in pairs] if all(within) else []
    few = isinstance(data, list) and len(data) <= 5 and all(isinstance(value, float) for value in data)
    return [(name, data)] if few else []


def _scalars(data: Any, name: str = "") -> list[tuple[str, float]]:
    """Numbers by their path; of records over epochs, the last. Other lists are left to the picture and the file."""
    if isinstance(data, dict):
        keyed = {k: v for k, v in data.items() if k not in SWEPT}
        return [
            pair for key, value in keyed.items() for pair in _scalars(value, f"{name}, {key}" if name else str(key))
        ]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        data = data[-1:] if "epoch" in data[0] else data
        named = [(next((f"{key} {row[key]:g}" for key in SWEPT if row.get(key) is not None), ""), row) for row in data]
        return [pair for at, row in named for pair in _scalars(row, ", ".join(filter(None, (name, at))))]
    return [(name, float(data))] if isinstance(data, float) else []


def write(item: Item, result: ItemResult, folder: Path) -> str:
    """Write ITEM.json, ITEM.md and the pictures into a folder; gives the Markdown."""
    pictures = save(DRAWINGS[item.id](result.data), folder, item.id) if result.data else []
    text = in_markdown(result, pictures)
    write_atomic(folder / f"{item.id}.md", text.encode())
    write_atomic(folder / f"{item.id}.json", (json.dumps(result.as_dict(), indent=1) + "\n").encode())
    return text
