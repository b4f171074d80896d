"""Ours beside theirs: an item's result as Markdown and as JSON, with every deviation named."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from balcal.paper.budget import images_to_train_on
from balcal.paper.curves import CURVES
from balcal.paper.drawing import DRAWINGS, save
from balcal.paper.items import MEASURES, Ask, Item
from balcal.paper.measure import Answers
from balcal.paper.tiers import Tier
from balcal.runtime.files import write_atomic

Told = dict[str, Any]
NOTHING = "–"


def answer(item: Item, answers: Answers) -> Told:
    """Everything there is to say of an item, as plain data."""
    return {
        "item": item.id,
        "kind": item.kind,
        "title": item.title,
        "paper_shows": item.shows,
        "label": item.label,
        "tier": answers.tier.name,
        "seeds": list(answers.seeds),
        "cells": [_cell(cell, answers) for cell in item.cells] if item.kind == "table" else [],
        "data": CURVES[item.id](item, answers) if item.kind == "figure" else None,
        "deviations": deviations(item, answers),
        "notes": list(item.notes),
        "runs": _runs(item, answers),
        "missing": _missing(item, answers),
    }


def _cell(cell: Any, answers: Answers) -> Told:
    values, printed = answers.values(cell), cell.published
    ours = mean(values) if values else None
    return {
        "row": cell.row,
        "column": cell.column,
        "measure": MEASURES[cell.measure].label,
        "unit": MEASURES[cell.measure].unit,
        "better": MEASURES[cell.measure].better,
        "ours": ours,
        "spread": stdev(values) if len(values) > 1 else None,
        "values": values,
        "published": printed.value if printed else None,
        "published_spread": printed.spread if printed else None,
        "difference": ours - printed.value if ours is not None and printed else None,
    }


def deviations(item: Item, answers: Answers) -> list[str]:
    """In what ways this is not the paper's experiment."""
    tier = answers.tier
    places = dict.fromkeys([ask.place for cell in item.cells for ask in cell.asks])
    places |= dict.fromkeys(ask.place for ask in item.series(tier).values())
    told = [f"tier `{tier.name}`: {tier.about}"]
    stands: dict[str, list[str]] = {}
    for place in places:
        stands.setdefault(_stands_for(place, tier), []).append(place)
    told += [f"{'; '.join(which)}: {what}" for what, which in stands.items()]
    seeds = f"{len(answers.seeds)} seed" + ("s" if len(answers.seeds) > 1 else ", so no spread")
    told += [seeds, *tier.deviations]
    if any(cell.measure == "seconds" for cell in item.cells):
        told.append(f"seconds are extrapolated from timed steps on {answers.device}: only ratios can be compared")
    if item.epochs and tier.keep > 1:
        told.append(f"every {tier.keep}th epoch")
    return told


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


def _missing(item: Item, answers: Answers) -> list[Told]:
    """What could have been trained and was not, a row for each thing."""
    return [
        {"place": ask.place, "method": ask.method, "settings": list(ask.settings), "seeds": seeds}
        for ask in item.asks(answers.tier)
        if (seeds := answers.missing(ask, item.epochs))
    ]


def _not_run(missing: list[Told]) -> str:
    """`CIFAR-100 (seeds 0, 1): acls, ls; ...`"""
    grouped: dict[str, list[str]] = {}
    for row in missing:
        seeds = f"seed{'s' if len(row['seeds']) > 1 else ''} {', '.join(map(str, row['seeds']))}"
        grouped.setdefault(f"{row['place']} ({seeds})", []).append(" ".join((f"`{row['method']}`", *row["settings"])))
    return "; ".join(f"{where}: {', '.join(what)}" for where, what in grouped.items())


def in_markdown(told: Told, pictures: list[Path] | None = None) -> str:
    """For people."""
    lines = [f"## {told['title']} (`{told['item']}`)", "", f"The paper: {told['paper_shows']}", ""]
    if told["kind"] == "table":
        lines += [
            *_table(told["cells"]),
            "",
            "Ours, and in parentheses what the paper prints; ± is the deviation over seeds.",
            "",
        ]
    lines += [f"![{told['title']}]({picture.name})" for picture in pictures or [] if picture.suffix == ".png"]
    lines += _numbers(told) if told["kind"] == "figure" else []
    if told["missing"]:
        lines += ["", f"Not run, so empty here or with fewer seeds: {_not_run(told['missing'])}."]
    lines += ["", "How this differs from the paper's experiment:", "", *(f"- {text}" for text in told["deviations"])]
    if told["notes"]:
        lines += ["", "Known oddities:", "", *(f"- {text}" for text in told["notes"])]
    return "\n".join([*lines, ""])


def _table(cells: list[Told]) -> list[str]:
    columns = list(dict.fromkeys((c["column"], c["measure"]) for c in cells))
    found = {(c["row"], c["column"], c["measure"]): c for c in cells}
    arrows = {(c["column"], c["measure"]): {"higher": "↑", "lower": "↓"}[c["better"]] for c in cells}
    units = {(c["column"], c["measure"]): c["unit"] for c in cells}
    heads = [f"{column} {measure}{arrows[column, measure]} {units[column, measure]}" for column, measure in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in dict.fromkeys(c["row"] for c in cells):
        lines.append("| " + " | ".join([row, *(_shown(found[row, *column]) for column in columns)]) + " |")
    return lines


def _shown(cell: Told) -> str:
    ours = NOTHING if cell["ours"] is None else f"{cell['ours']:.2f}"
    spread = "" if cell["spread"] is None else f"±{cell['spread']:.2g}"
    theirs = NOTHING if cell["published"] is None else f"{cell['published']:.2f}"
    return f"{ours}{spread} ({theirs})"


def _numbers(told: Told) -> list[str]:
    """What a figure's curves are, where a few numbers say it."""
    short = _short_courses(told["data"])
    if short:
        steps = range(1, 1 + max(len(values) for _, values in short))
        lines = ["", f"| | {' | '.join(map(str, steps))} |", "|---" * (1 + len(steps)) + "|"]
        return [*lines, *(f"| {name} | {' | '.join(f'{value:.4g}' for value in values)} |" for name, values in short)]
    flat = _scalars(told["data"])
    return ["", "| | |", "|---|---|", *(f"| {name} | {value:.4g} |" for name, value in flat)] if flat else []


def _short_courses(data: Any, name: str = "") -> list[tuple[str, list[float]]]:
    """Where all that there is are lists of a few numbers, as over five severities: those, by their path."""
    if isinstance(data, dict):
        within = [_short_courses(value, f"{name}, {key}" if name else str(key)) for key, value in data.items()]
        return [pair for pairs in within for pair in pairs] if all(within) else []
    few = isinstance(data, list) and len(data) <= 5 and all(isinstance(value, float) for value in data)
    return [(name, data)] if few else []


def _scalars(data: Any, name: str = "") -> list[tuple[str, float]]:
    """Numbers by their path, of a course over epochs the last; other lists are left to the picture and the file."""
    if isinstance(data, dict):
        keyed = {k: v for k, v in data.items() if k not in ("alpha", "beta", "delta", "epoch")}
        return [
            pair for key, value in keyed.items() for pair in _scalars(value, f"{name}, {key}" if name else str(key))
        ]
    if isinstance(data, list) and data and isinstance(data[0], dict):
        dials = ("alpha", "beta", "delta", "epoch")
        data = data[-1:] if "epoch" in data[0] else data
        dialled = [(next((f"{d} {row[d]:g}" for d in dials if row.get(d) is not None), ""), row) for row in data]
        return [pair for dial, row in dialled for pair in _scalars(row, ", ".join(filter(None, (name, dial))))]
    return [(name, float(data))] if isinstance(data, float) else []


def write(item: Item, told: Told, folder: Path) -> str:
    """ITEM.json, ITEM.md and the pictures, in a folder; gives the Markdown."""
    pictures = save(DRAWINGS[item.id](told["data"]), folder, item.id) if told["data"] else []
    text = in_markdown(told, pictures)
    write_atomic(folder / f"{item.id}.md", text.encode())
    write_atomic(folder / f"{item.id}.json", (json.dumps(told, indent=1) + "\n").encode())
    return text
