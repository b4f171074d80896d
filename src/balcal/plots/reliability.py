"""Reliability diagrams: how often is it right when it says 80 %?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from balcal.core import Predictions
from balcal.metrics.verdict import verdict
from balcal.plots.sources import Source, named_predictions
from balcal.plots.style import (
    BAND,
    BAR,
    FEW,
    GRID,
    INK,
    OVER,
    SOFT,
    UNDER,
    Figure,
    figure,
    heading,
    legend,
    percent,
    tidy,
)
from balcal.plots.tables import reliability_table


def reliability_diagram(
    told: Source | Mapping[str, Source] | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    title: str = "",
    bins: int = 15,
) -> Figure:
    """One panel per model: accuracy by confidence, the gap between both, the band of a perfect model, and counts."""
    models = named_predictions(told, probs, log_probs, labels)
    drawn = figure(3.1 * len(models) + 0.5, 4.7)
    grid = drawn.subplots(2, len(models), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for column, (name, predictions) in enumerate(models.items()):
        _panel(grid[0][column], grid[1][column], name, predictions, bins)
    grid[0][0].set_ylabel("right")
    grid[1][0].set_ylabel("share")
    caption = f"confidence of the predicted class  (pale: fewer than {FEW} samples)"
    drawn.supxlabel(caption, color=INK, fontsize=9)
    if title:
        drawn.suptitle(title, color=INK, fontsize=12, weight="bold")
    return drawn


def _panel(upper: Any, lower: Any, name: str, predictions: Predictions, bins: int) -> None:
    table, judged, width = reliability_table(predictions, bins), verdict(predictions, bins=bins), 1 / bins
    centres = (np.arange(bins) + 0.5) * width
    tidy(upper, lower)
    for k in np.flatnonzero(table.count):
        solid, gap = 1.0 if table.count[k] >= FEW else 0.3, table.confidence[k] - table.accuracy[k]
        upper.bar(centres[k], table.accuracy[k], width * 0.94, color=BAR, alpha=solid, gid="accuracy", zorder=2)
        look = {"color": OVER if gap > 0 else UNDER, "alpha": 0.75 * solid, "linewidth": 0, "gid": "gap"}
        upper.bar(centres[k], gap, width * 0.94, bottom=table.accuracy[k], zorder=3, **look)
        upper.vlines(
            centres[k], table.low[k], table.high[k], color=INK, linewidth=1, alpha=0.8 * solid, gid="band", zorder=5
        )
    upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), zorder=4)
    for colour, label in ((OVER, "too confident"), (UNDER, "too timid")):
        upper.plot([], [], color=colour, linewidth=5, alpha=0.75, label=label)
    upper.plot([], [], color=INK, linewidth=1, marker="|", linestyle="", label="95 % of perfect models")
    legend(upper, fontsize=6.5, loc="lower right", frameon=True, edgecolor="none", borderaxespad=0.2)
    heading(upper, name)
    told = f"acc {judged.accuracy:.1%}\nECE {judged.ece:.1%}\nperfect ≤ {judged.floor_high:.1%}"
    frame = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    place = {"transform": upper.transAxes, "va": "top", "zorder": 6, "bbox": frame}
    upper.text(0.04, 0.97, told, fontsize=8.5, color=INK, linespacing=1.4, **place)
    lower.bar(centres, table.count / table.count.sum(), width * 0.94, color=BAND, gid="share")
    for x, label, colour in ((judged.mean_confidence, "mean confidence", OVER), (judged.accuracy, "accuracy", INK)):
        lower.axvline(x, color=colour, linewidth=1.4, label=label)
    legend(lower, fontsize=6.5, loc="upper left", borderaxespad=0.2)
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    lower.grid(color=GRID)
    percent(upper.yaxis)
    percent(lower.yaxis)
    percent(lower.xaxis)
