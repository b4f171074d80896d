"""docs/results/fast.png: ECE of all methods of the `-fast` tasks beside the paper's, and the course of gamma.
docs/results/fast-delta.png: both by delta, for one task, as in the paper's figure."""

from __future__ import annotations

from statistics import mean
from typing import Any

from fast_asked import DELTAS, METHODS, PARTS, USUAL, with_delta
from fast_claims import FAILS, HOLDS, lower, paired
from fast_page import printed
from fast_tables import (
    BASELINE,
    CLAIMED,
    DISMANTLED,
    TITLES,
    Runs,
    by_validation,
    last_epoch,
    titled,
    trained,
    with_fitted_delta,
)
from matplotlib import colormaps
from matplotlib.ticker import MaxNLocator

from balcal.plots.arena import BETTER, TIE, WORSE
from balcal.plots.style import INK, SERIES, SOFT, Figure, figure, heading, legend, tidy

SOLVED = ("balcal", "balcal-logits", "balcal-auto")
ROOM = 1.4
"""the axis ends at so many times our largest ECE; what the paper has beyond that is written as a number"""


def picture(found: Runs) -> Figure:
    drawn = figure(8.8, 7.2)
    above, below = drawn.subplots(2, len(TITLES), height_ratios=(2, 1))
    for place, (task, title) in enumerate(TITLES.items()):
        tidy(above[place], below[place])
        others = [name for name in METHODS[task] if name not in ("vanilla", *PARTS)]
        _eces(above[place], task, place, ["vanilla", BASELINE, *with_fitted_delta(others, task, found)], found)
        heading(above[place], title)
        _gammas(below[place], task, found)
    above[0].plot([], [], "o", color=TIE, label=f"here; green better, orange worse than {BASELINE}")
    above[0].plot([], [], "D", color=SOFT, markerfacecolor="none", label="the paper")
    drawn.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return drawn


def _eces(axes: Any, task: str, place: int, names: list[str], found: Runs) -> None:
    """One row a method: mean over seeds, mean interval, the paper's."""
    colours = {HOLDS: BETTER, FAILS: WORSE}
    ends = []
    for height, name in enumerate(reversed(names)):
        these = last_epoch(found, task, name)
        if these:
            word, _ = lower(paired(found, task, trained(name)), BASELINE)
            colour = INK if name == BASELINE else colours.get(word, TIE)
            low, high = (100 * mean(each["ece_interval"][end] for each in these) for end in (0, 1))
            axes.plot([low, high], [height, height], color=colour, linewidth=1.6)
            axes.plot([100 * mean(each["ece"] for each in these)], [height], "o", markersize=4.5, color=colour)
            ends.append(high)
    edge = ROOM * max(ends)
    for height, name in enumerate(reversed(names)):
        theirs = printed(name, place)
        if theirs and theirs[1] <= edge:
            axes.plot([theirs[1]], [height], "D", markersize=4.5, color=SOFT, markerfacecolor="none")
        elif theirs:
            axes.text(edge, height, f"◇ {theirs[1]:.1f} ▸", ha="right", va="center", fontsize=7.5, color=SOFT)
    axes.set_xlim(0, edge)
    labels = [titled(name).replace("`", "").replace("balcal-logits, ", "") for name in reversed(names)]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.set_xlabel("ECE, last epoch, %", fontsize=8)


def _gammas(axes: Any, task: str, found: Runs) -> None:
    fitted = by_validation(task, found)
    for colour, name in zip(SERIES, dict.fromkeys((*SOLVED[:2], fitted or SOLVED[1], SOLVED[2])), strict=False):
        for run in found.get((task, name), [])[:1]:
            course = run["history"]["gamma"]
            label = titled(name).replace("`", "")
            axes.plot(range(1, len(course) + 1), course, color=colour, linewidth=1.6, label=label)
    axes.axhline(1, color=SOFT, linewidth=0.8, linestyle=":")
    axes.set_xlabel("epoch, seed 0", fontsize=8)
    axes.set_ylabel("gamma", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0)
    legend(axes, fontsize=7.5, loc="lower left")


def delta_picture(found: Runs) -> Figure:
    """ECE by delta of both fusions, and gamma of fused logits for each delta: seed 0."""
    drawn = figure(8.8, 3.3)
    left, right = drawn.subplots(1, 2)
    tidy(left, right)
    asked = sorted((*DELTAS, USUAL))
    plain = found[DISMANTLED, "vanilla"][0]["figures"]
    for name, which, line in (("vanilla", "last", "--"), (BASELINE, "last+ts", ":")):
        left.axhline(100 * plain[which]["ece"], color=INK, linewidth=1.2, linestyle=line, label=name)
    for colour, name in zip(SERIES, CLAIMED, strict=False):
        runs = {delta: found.get((DISMANTLED, with_delta(name, delta)), [])[:1] for delta in asked}
        points = [(delta, run["figures"]["last"]) for delta, these in runs.items() for run in these]
        for delta, each in points:
            left.plot([delta, delta], [100 * end for end in each["ece_interval"]], color=colour, linewidth=1.6)
        eces = [100 * each["ece"] for _, each in points]
        left.plot([delta for delta, _ in points], eces, "o-", color=colour, markersize=4.5, linewidth=1, label=name)
    for shade, delta in enumerate(asked):
        for run in found.get((DISMANTLED, with_delta(CLAIMED[1], delta)), [])[:1]:
            course = run["history"]["gamma"]
            colour = colormaps["Oranges"](0.3 + 0.7 * shade / (len(asked) - 1))
            right.plot(range(1, len(course) + 1), course, color=colour, linewidth=1.6, label=f"delta = {delta:g}")
    left.set_xticks(asked)
    left.set_xlabel("delta", fontsize=8)
    left.set_ylabel("ECE, last epoch, %", fontsize=8)
    right.set_xlabel("epoch", fontsize=8)
    right.set_ylabel(f"gamma of {CLAIMED[1]}", fontsize=8)
    left.set_xlim(asked[0] - 0.005, asked[-1] + 0.005)
    left.set_ylim(0)
    right.set_ylim(0, 1.05)
    right.axhline(1, color=SOFT, linewidth=0.8, linestyle=":")
    legend(left, fontsize=7.5, loc="upper right")
    legend(right, fontsize=7.5, loc="lower left")
    heading(left, f"ECE, {TITLES[DISMANTLED]}")
    heading(right, "Gamma after each epoch")
    return drawn
