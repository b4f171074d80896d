"""An arena told on a page: who is best, who ties, how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.stats import rankdata

from balcal import registry
from balcal.arena.columns import FIGURES, Figure, Judgement
from balcal.arena.result import ArenaResult
from balcal.arena.tables import legend
from balcal.core import BalcalError, Predictions
from balcal.evaluation.judge import calibrated_predictions
from balcal.plots.numbers import finite, reliability_table
from balcal.report import predictions as charts
from balcal.report.page import render
from balcal.report.svg import Frame, group, pct, ticks, whole
from balcal.runs import Run
from balcal.runtime.devices import pick_device

Row = dict[str, Any]


def arena_page(result: ArenaResult, runs: Path | None = None) -> str:
    """`runs`: the folder of all runs, if it has moved since."""
    rows = result.rows()
    notes = [f"{complaint}." for complaint in result.complaints]
    pictures = []
    for row in rows:
        try:
            pictures.append(_picture(result, row, runs or Path(result.made.get("runs", "runs"))))
        except BalcalError as error:
            notes.append(f"No diagram of {row['entry']}: {error}.")
    return render(
        "arena.html",
        title=f"{result.task}: {len(result.methods)} methods, {len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}",
        result=result,
        headline=headline(result, rows),
        figures=FIGURES,
        rows=[_shown(row, result.reference) for row in rows],
        scatter=scatter(rows),
        ranks=ranks(result),
        pictures=pictures,
        legend=legend(result, str, str),
        notes=notes,
    )


def headline(result: ArenaResult, rows: Sequence[Row]) -> str:
    """Who has the lowest ECE, and how many cannot be told from it."""
    best = result.best("ece")
    if best is None:
        return "No entry has all its seeds"
    ties = sum(row["ece"]["ties_best"] for row in rows) - 1
    if len(result.seeds) == 1:
        return f"{best} has the lowest ECE; one seed cannot say whether that is chance"
    if ties == len(rows) - 1:
        return f"All {len(rows)} tie: none has an ECE that can be told from the lowest, that of {best}"
    if not ties:
        return f"{best} is better calibrated than all others"
    return f"{best} has the lowest ECE, and {ties} of {len(rows) - 1} others tie with it"


def _shown(row: Row, reference: str) -> Row:
    """A row with its cells as text, what they are sorted by, and what they tell to whoever points at them."""
    cells = [_cell(row, figure, reference) for figure in FIGURES]
    return {"entry": row["entry"], "missing": row["asked"] - row["seeds"], "cells": cells, "floor": row["floor_mean"]}


def _cell(row: Row, figure: Figure, reference: str) -> Row:
    found = row[figure.name]
    if found["mean"] is None:
        return {
            "text": "–",
            "more": "",
            "interval": "",
            "sort": "",
            "tip": "no run",
            "mark": "",
            "judgement": Judgement.NONE,
            "leads": False,
        }
    unit = "\N{NO-BREAK SPACE}%" if figure.percent else ""
    seeds = ", ".join("failed" if v is None else figure.shown(v) for v in found["values"])
    lines = [f"{row['entry']}, {figure.title} by seed: {seeds}{unit}"]
    if figure.name == "ece":
        lines.append("95 % interval of a run [" + ", ".join(figure.shown(x) for x in row["ece_interval"]) + f"]{unit}")
        lines.append(f"a perfect model: {pct(row['floor_mean'], 2)}, up to {pct(row['floor_high'], 2)}")
    told, judgement = found["against"], Judgement.NONE
    if told is not None:
        judgement = told["judgement"]
        between = ", ".join(figure.shown(told[end], "+") for end in ("low", "high"))
        value = f"{figure.shown(told['value'], '+')}{unit} [{between}]"
        lines.append(f"against {reference}: {value}, {judgement.words} (p {told['adjusted']:.2g})")
    if found["best"]:
        lines.append("the best mean")
    elif found["ties_best"]:
        lines.append("ties with the best mean")
    spread = figure.shown(found["std"]) if found["std"] is not None else ""
    bounds = f"[{', '.join(figure.shown(x) for x in row['ece_interval'])}]" if figure.name == "ece" else ""
    return {
        "text": figure.shown(found["mean"]),
        "interval": bounds,
        "more": f"± {spread}" if spread else "",
        "sort": found["mean"],
        "tip": "\n".join(lines),
        "mark": judgement.mark,
        "judgement": judgement,
        "leads": found["ties_best"] and row["asked"] > 1,
    }


def scatter(rows: Sequence[Row]) -> Markup:
    """Accuracy against ECE: right and low is good. A line leads from each method to itself after `ts`."""
    there = {row["entry"]: row for row in rows if row["accuracy"]["mean"] is not None}
    if not there:
        return Markup("")
    xs, ys = ([row[name]["mean"] for row in there.values()] for name in ("accuracy", "ece"))
    spread_x, spread_y = ([row[name]["std"] or 0.0 for row in there.values()] for name in ("accuracy", "ece"))
    low, high = min(np.subtract(xs, spread_x)), max(np.add(xs, spread_x))
    room = (high - low) * 0.12 or 0.01
    top = max(np.add(ys, spread_y)) * 1.08
    frame = Frame(760, 430, x=(low - room, high + room), y=(0, top), left=52, bottom=44, right=20)
    floor = float(np.mean(finite(row["floor_high"] for row in there.values())))
    drawn = [frame.box(frame.x, (0, min(floor, top)), "floor", f"perfect models score up to {pct(floor, 2)}")]
    for entry, row in there.items():
        if (scaled := there.get(f"{entry}+ts")) is not None:
            ends = [(r["accuracy"]["mean"], r["ece"]["mean"]) for r in (row, scaled)]
            drawn.append(frame.rule((ends[0][0], ends[1][0]), (ends[0][1], ends[1][1]), "path"))
    labels = _Labels(frame)
    for entry, row in sorted(there.items(), key=lambda item: item[1]["ece"]["mean"]):
        x, y = row["accuracy"]["mean"], row["ece"]["mean"]
        dx, dy = row["accuracy"]["std"] or 0.0, row["ece"]["std"] or 0.0
        kind = "plain" if row["posthoc"] is None else "scaled"
        tip = f"{entry}\naccuracy {pct(x, 2)} ± {dx * 100:.2f}\nECE {pct(y, 2)} ± {dy * 100:.2f}"
        shapes = [
            frame.rule((x - dx, x + dx), (y, y), "error"),
            frame.rule((x, x), (max(y - dy, 0.0), y + dy), "error"),
            frame.dot(x, y, f"entry {kind}", 6),
            labels.put(x, y, entry),
        ]
        drawn.append(group(*shapes, class_="point", data_tip=tip))
    return frame.picture(
        "Accuracy against ECE",
        frame.up(ticks(0, top), whole),
        frame.across(ticks(*frame.x, 7), whole, "accuracy"),
        *drawn,
    )


class _Labels:
    """Names beside their points, each where it covers no other; left out where there is no room."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.taken = frame, list[tuple[float, float, float, float]]()

    def put(self, x: float, y: float, name: str) -> Markup:
        left, middle, width = self.frame.px(x), self.frame.py(y), 7.0 * len(name)
        for dx, dy, anchor in ((11, 4, "start"), (-11, 4, "end"), (0, -11, "middle"), (0, 20, "middle")):
            start = left + dx - {"start": 0, "end": width, "middle": width / 2}[anchor]
            box = (start, middle + dy - 11, start + width, middle + dy + 3)
            inside = box[0] > self.frame.left and box[2] < self.frame.width and box[3] < self.frame.py(0)
            if inside and not any(_overlap(box, other) for other in self.taken):
                self.taken += [box, (left - 6, middle - 6, left + 6, middle + 6)]
                return self.frame.word(left + dx, middle + dy, name, "label", text_anchor=anchor)
        return Markup("")


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def ranks(result: ArenaResult) -> list[Row]:
    """The place of each entry in each figure, mean over the seeds; only entries that have all seeds take part."""
    whole_rows = [e for e in result.entries if all(v is not None for v in result.values(e, "ece"))]
    if not whole_rows:
        return []
    table = []
    for figure in FIGURES:
        values = np.array([result.values(entry, figure.name) for entry in whole_rows], dtype=np.float64)
        table.append(rankdata(-values if figure.higher else values, axis=0).mean(1))
    mean = np.mean(table, axis=0)
    last = max(len(whole_rows) - 1, 1)
    rows = [
        {
            "entry": entry,
            "mean": float(mean[i]),
            "cells": [{"rank": float(each[i]), "shade": 1 - (float(each[i]) - 1) / last} for each in table],
        }
        for i, entry in enumerate(whole_rows)
    ]
    return sorted(rows, key=lambda row: row["mean"])


def _picture(result: ArenaResult, row: Row, runs: Path) -> Row:
    """A small reliability diagram of the entry's first run that there is."""
    cell = next((c for seed in result.seeds if (c := result.cell(row["entry"], seed)).figures is not None), None)
    if cell is None or cell.figures is None:
        raise BalcalError("it has no run")
    run = Run.at(runs / cell.run)
    _, told, _ = calibrated_predictions(run, registry.method(cell.entry), pick_device(None))
    table = reliability_table(Predictions(told.log_probs.detach(), told.labels))
    picture = charts.reliability(table, small=True, about=f"Reliability of {cell.entry}, seed {cell.seed}")
    return {"entry": cell.entry, "seed": cell.seed, "ece": cell.figures["ece"], "svg": picture}
