"""All entries of an arena minus the reference, in one figure."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from balcal.arena.columns import COLUMNS, Judgement
from balcal.arena.result import ArenaResult
from balcal.core import BalcalError
from balcal.plots.style import INK, SOFT, Figure, figure, heading, tidy
from balcal.runtime.names import unknown

ORDER = "nll"
"""column that entries are sorted by"""
BETTER, WORSE, TIE = "#009e73", "#d55e00", "#9aa5ad"
COLOURS = {
    Judgement.BETTER: BETTER,
    Judgement.BETTER_HERE: BETTER,
    Judgement.WORSE: WORSE,
    Judgement.WORSE_HERE: WORSE,
}


def differences(arena: ArenaResult | str | Path, columns: tuple[str, ...] = ("accuracy", "ece", "nll")) -> Figure:
    """Every entry minus the reference, with 95 % intervals: green better, orange worse, grey a tie; lowest NLL on top.

    Colours are those of the table's marks, after Holm's correction; so an interval may just miss 0 and still be grey.

    >>> from balcal import arena
    >>> import tempfile
    >>> found = arena.run("digits", ["vanilla"], 1, settings=["plan.epochs=1"], runs=tempfile.mkdtemp(), quiet=True)
    >>> len(differences(found.save(Path(tempfile.mkdtemp()) / "result.json")).axes)
    3
    """
    result = arena if isinstance(arena, ArenaResult) else ArenaResult.load(arena)
    for name in columns:
        if name not in COLUMNS:
            raise BalcalError(unknown("column", name, COLUMNS))
        if COLUMNS[name] not in result.compared:
            raise BalcalError(f"entries are not compared in the column `{name}`: there is no interval to draw")
    against = result.against(result.reference)
    found = {entry: d for entry, d in against.items() if d[ORDER].judgement != Judgement.NONE}
    if not found:
        raise BalcalError(f"there is nothing to compare with `{result.reference}` in this arena")
    order = sorted(found, key=lambda entry: -found[entry][ORDER].value)
    drawn = figure(1.6 + 2.6 * len(columns), 1.0 + 0.21 * len(order))
    grid = drawn.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    tidy(*grid)
    for axes, name in zip(grid, columns, strict=True):
        times = 100 if COLUMNS[name].percent else 1
        axes.axvline(0, color=INK, linewidth=1)
        edge = _edge([times * max(abs(found[entry][name].low), abs(found[entry][name].high)) for entry in order])
        for place, entry in enumerate(order):
            d = found[entry][name]
            colour = COLOURS.get(d.judgement, TIE)
            value, low, high = times * d.value, times * d.low, times * d.high
            axes.plot([low, high], [place, place], color=colour, linewidth=1.6, gid=f"{name} {entry}")
            if abs(value) <= edge:
                axes.plot([value], [place], marker="o", markersize=4, color=colour)
            else:
                text, side = (f"{value:+.3g} ▸", "right") if value > 0 else (f"◂ {value:+.3g}", "left")
                at = edge if value > 0 else -edge
                axes.text(at, place, text, ha=side, va="center", fontsize=7, color=colour, backgroundcolor="white")
        axes.set_xlim(-edge, edge)
        heading(axes, COLUMNS[name].title + (", points" if COLUMNS[name].percent else ""))
        axes.set_xlabel("higher is better" if COLUMNS[name].higher else "lower is better", fontsize=8, color=SOFT)
    grid[0].set_yticks(range(len(order)), order, fontsize=8)
    grid[0].set_ylim(-0.7, len(order) - 0.3)
    title = f"{result.task}: minus {result.reference}; colours after Holm's correction"
    drawn.suptitle(title, fontsize=10, color=INK)
    return drawn


def _edge(reaches: list[float]) -> float:
    """Where the axis ends. A value far beyond the usual ones is written as a number instead."""
    return min(max(reaches), 3 * median(reaches)) * 1.05 or 1.0
