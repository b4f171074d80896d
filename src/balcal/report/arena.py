"""The HTML report of an arena: the table, accuracy against ECE, reliability diagrams, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from scipy.stats import rankdata

from balcal import registry
from balcal.arena.columns import CHART, COLUMNS, Judgement
from balcal.arena.entries import SCALED
from balcal.arena.headline import headline
from balcal.arena.records import Row, Summary
from balcal.arena.result import ArenaResult
from balcal.arena.tables import TIED, legend, rows
from balcal.core import BalcalError, Predictions
from balcal.evaluation.judge import calibrated_predictions
from balcal.plots.numbers import finite, reliability_table
from balcal.report import predictions as charts
from balcal.report.page import render
from balcal.report.svg import Frame, group, pct, tag, ticks, whole
from balcal.runs import Run
from balcal.runtime.devices import pick_device


@dataclass(frozen=True)
class CellText:
    """A cell of the table as the page shows it."""

    text: str = "–"
    more: str = ""
    """standard deviation and interval"""
    sort: float | str = ""
    """what the column is sorted by"""
    tip: str = "no run"
    """shown to whoever points at it"""
    judgement: Judgement = Judgement.NONE
    leads: bool = False
    tied: str = ""
    """a sign, where it ties with the best"""


@dataclass(frozen=True)
class TableRow:
    entry: str
    missing: int
    """seeds that failed"""
    cells: list[CellText]
    """of columns, and of noise floors beside them"""
    trainings: int


@dataclass(frozen=True)
class Rank:
    rank: float
    shade: float
    """1 for the first, 0 for the last"""


@dataclass(frozen=True)
class RankRow:
    entry: str
    mean: float
    cells: list[Rank]


@dataclass(frozen=True)
class Diagram:
    """A small reliability diagram of one run."""

    entry: str
    seed: int
    ece: float
    svg: Markup


def arena_page(result: ArenaResult, runs: Path | None = None) -> str:
    """`runs`: the folder of all runs, if it has moved since."""
    table = rows(result)
    notes = [f"{complaint}." for complaint in result.complaints]
    diagrams = []
    for entry in result.entries:
        try:
            diagrams.append(_diagram(result, entry, runs or Path(result.made.get("runs", "runs"))))
        except BalcalError as error:
            notes.append(f"No diagram of {entry}: {error}.")
    return render(
        "arena.html",
        title=f"{result.task}: {len(result.methods)} methods, {len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}",
        result=result,
        headline=headline(result, table),
        rows=[_table_row(row, result.reference) for row in table],
        scatter=scatter(table),
        ranks=ranks(result),
        diagrams=diagrams,
        legend=legend(result, str, str),
        notes=notes,
    )


def _table_row(row: Row, reference: str) -> TableRow:
    cells = []
    for found in row.columns.values():
        cells.append(_cell(row, found, reference))
        if found.column.floor:
            cells.append(_floor(found))
    return TableRow(row.entry, row.asked - row.seeds, cells, row.trainings)


def _floor(found: Summary) -> CellText:
    if found.floor is None:
        return CellText()
    low, high = map(found.column.shown, found.floor)
    return CellText(more=low, text="", sort=found.floor[0], tip=f"a perfect model: {low} on average, up to {high}")


def _cell(row: Row, found: Summary, reference: str) -> CellText:
    column, judgement = found.column, Judgement.NONE
    if found.mean is None:
        return CellText()
    unit = "\N{NO-BREAK SPACE}%" if column.percent else ""
    seeds = ", ".join("failed" if v is None else column.shown(v) for v in found.values)
    tip = [f"{row.entry}, {column.title} by seed: {seeds}{unit}"]
    if found.interval:
        tip.append(f"95 % interval of a run {column.between(found.interval)}{unit}")
    if found.floor:
        mean, high = (f"{column.shown(value)}{unit}" for value in found.floor)
        tip.append(f"a perfect model: {mean}, up to {high}")
    if found.against is not None:
        judgement = found.against.judgement
        value = f"{column.shown(found.against.value, '+')}{unit}"
        between = column.between((found.against.low, found.against.high), "+")
        tip.append(f"against {reference}: {value} {between}, {judgement.words} (p {found.against.adjusted:.2g})")
    if found.best:
        tip.append("the best mean")
    elif found.ties_best:
        tip.append("ties with the best mean")
    spread = f"± {column.shown(found.std)}" if found.std is not None else ""
    return CellText(
        text=column.shown(found.mean),
        more=f"{spread} {column.between(found.interval) if found.interval else ''}",
        sort=found.mean,
        tip="\n".join(tip),
        judgement=judgement,
        leads=found.best and found.ties_best and row.asked > 1,
        tied=TIED if found.ties_best and not found.best and row.asked > 1 else "",
    )


@dataclass(frozen=True)
class Point:
    """An entry in the chart, with one standard deviation each way."""

    x: float
    y: float
    dx: float
    dy: float
    floor: float
    posthoc: bool


def scatter(table: Sequence[Row]) -> Markup:
    """Accuracy against ECE: right and low is good. A line leads from each method to itself after `ts`."""
    across, up = (COLUMNS[name] for name in CHART)
    points = {row.entry: point for row in table if (point := _point(row)) is not None}
    if not points:
        return Markup("")
    low, high = min(p.x - p.dx for p in points.values()), max(p.x + p.dx for p in points.values())
    room = (high - low) * 0.12 or 0.01
    top = max(p.y + p.dy for p in points.values()) * 1.08
    frame = Frame(760, 430, x=(low - room, high + room), y=(0, top), left=52, bottom=44, right=20)
    floor = float(np.mean(finite(p.floor for p in points.values())))
    drawn = [frame.box(frame.x, (0, min(floor, top)), "floor", f"perfect models score up to {pct(floor, 2)}")]
    for entry, p in points.items():
        if (scaled := points.get(f"{entry}+{SCALED}")) is not None:
            drawn.append(frame.rule((p.x, scaled.x), (p.y, scaled.y), "path"))
    labels, names = _Labels(frame, points.values()), list[Markup]()
    for entry, p in sorted(points.items(), key=lambda item: item[1].y):
        tip = f"{entry}\n{across.title} {pct(p.x, 2)} ± {p.dx * 100:.2f}\n{up.title} {pct(p.y, 2)} ± {p.dy * 100:.2f}"
        shapes = [
            frame.rule((p.x - p.dx, p.x + p.dx), (p.y, p.y), "error"),
            frame.rule((p.x, p.x), (max(p.y - p.dy, 0.0), p.y + p.dy), "error"),
            frame.dot(p.x, p.y, f"entry {'scaled' if p.posthoc else 'plain'}", 6),
        ]
        drawn.append(group(*shapes, class_="point", data_tip=tip))
        names.append(group(labels.put(p.x, p.y, entry), class_="point", data_tip=tip))
    return frame.picture(
        "Accuracy against ECE",
        frame.up(ticks(0, top), whole, up.title),
        frame.across(ticks(*frame.x, 7), whole, across.title),
        *drawn,
        *names,  # above all lines
    )


def _point(row: Row) -> Point | None:
    x, y = (row.columns[name] for name in CHART)
    if x.mean is None or y.mean is None or y.floor is None:
        return None
    return Point(x.mean, y.mean, x.std or 0.0, y.std or 0.0, y.floor[1], row.posthoc is not None)


class _Labels:
    """Names beside their points, or further away with a line to them, where they cover no point and no other name."""

    def __init__(self, frame: Frame, points: Iterable[Point]) -> None:
        self.frame = frame
        self.taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in ((frame.px(p.x), frame.py(p.y)) for p in points)]

    def put(self, x: float, y: float, name: str) -> Markup:
        """Empty, if there is no room."""
        left, middle, width = self.frame.px(x), self.frame.py(y), 7.6 * len(name)
        for dx, dy, anchor in _PLACES:
            start = left + dx - {"start": 0, "end": width, "middle": width / 2}[anchor]
            box = (start, middle + dy - 13, start + width, middle + dy + 5)
            across = self.frame.left < box[0] and box[2] < self.frame.width
            if (
                across
                and box[1] > 0
                and box[3] < self.frame.py(0)
                and not any(_overlap(box, other) for other in self.taken)
            ):
                self.taken.append(box)
                word = self.frame.word(left + dx, middle + dy, name, "label", text_anchor=anchor)
                if max(abs(dx), abs(dy)) <= 20:
                    return word
                end = {"x2": left + dx, "y2": middle + dy - 4}
                return tag("line", x1=left, y1=middle, **end, class_="lead-line") + word
        return Markup("")


def _places() -> Iterator[tuple[float, float, str]]:
    """Where a name may stand, from its point: the nearest first."""
    yield from ((11, 4, "start"), (-11, 4, "end"), (0, -11, "middle"), (0, 20, "middle"))
    for away in range(24, 150, 14):
        for angle in (-30, 30, -150, 150, -60, 60, -120, 120, -10, 10, -170, 170):
            dx, dy = away * math.cos(math.radians(angle)), away * math.sin(math.radians(angle))
            yield dx, dy + 4, "start" if dx > 0 else "end"


_PLACES = tuple(_places())


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def ranks(result: ArenaResult) -> list[RankRow]:
    """The place of each entry in each column, mean over the seeds; only entries that have all seeds take part."""
    complete = [e for e in result.entries if all(result.cell(e, seed).figures is not None for seed in result.seeds)]
    if not complete:
        return []
    table = []
    for column in result.columns:
        values = np.array([result.values(entry, column.name) for entry in complete], dtype=np.float64)
        table.append(rankdata(-values if column.higher else values, axis=0).mean(1))
    mean = np.mean(table, axis=0)
    last = max(len(complete) - 1, 1)
    ranked = [
        RankRow(entry, float(mean[i]), [Rank(float(each[i]), 1 - (float(each[i]) - 1) / last) for each in table])
        for i, entry in enumerate(complete)
    ]
    return sorted(ranked, key=lambda row: row.mean)


def _diagram(result: ArenaResult, entry: str, runs: Path) -> Diagram:
    """Of the entry's first run that there is."""
    cell = next((c for seed in result.seeds if (c := result.cell(entry, seed)).figures is not None), None)
    if cell is None or cell.figures is None:
        raise BalcalError("it has no run")
    run = Run.at(runs / cell.run)
    _, test, _ = calibrated_predictions(run, registry.method(cell.entry), pick_device(None))
    table = reliability_table(Predictions(test.log_probs.detach(), test.labels))
    drawn = charts.reliability(table, small=True, about=f"Reliability of {cell.entry}, seed {cell.seed}")
    return Diagram(cell.entry, cell.seed, cell.figures["ece"], drawn)
