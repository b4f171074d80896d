"""Reliability diagrams: how often is it right when it says 80 %?"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from balcal.core import Predictions
from balcal.files import write_atomic
from balcal.metrics.bins import Floats, bin_table
from balcal.metrics.inputs import read
from balcal.metrics.verdict import verdict

INK, GRID, BAR, OVER, UNDER = "#22303c", "#d9dfe4", "#4c78a8", "#e4572e", "#54a24b"
FEW = 10


def reliability_table(predictions: Predictions, bins: int = 15) -> dict[str, Floats]:
    """Per bin: how many samples, their mean confidence, their accuracy (NaN where there is none).

    >>> import torch
    >>> p = Predictions(torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log(), torch.tensor([0, 0]))
    >>> reliability_table(p, bins=5)["count"].tolist()
    [0.0, 0.0, 0.0, 1.0, 1.0]
    """
    table = bin_table(read(None, predictions.log_probs, predictions.labels).top(), bins)
    with np.errstate(invalid="ignore"):
        return {"count": table.count, "confidence": table.conf / table.count, "accuracy": table.right / table.count}


def reliability_diagram(models: Mapping[str, Predictions], path: Path, title: str = "", bins: int = 15) -> None:
    """One panel per model, saved as PNG, SVG or PDF by the path's ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * len(models) + 0.4, 4.7), layout="constrained")
    grid = figure.subplots(2, len(models), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1))
    for column, (name, predictions) in enumerate(models.items()):
        _panel(grid[0][column], grid[1][column], name, predictions, bins)
    grid[0][0].set_ylabel("accuracy in the bin", color=INK)
    grid[1][0].set_ylabel("share", color=INK)
    caption = f"confidence of the predicted class  (pale bars: fewer than {FEW} samples)"
    figure.supxlabel(caption, color=INK, fontsize=10)
    if title:
        figure.suptitle(title, color=INK, fontsize=12, weight="bold")
    buffer = BytesIO()
    figure.savefig(buffer, format=path.suffix.lstrip(".") or "png", dpi=160)
    write_atomic(path, buffer.getvalue())


def _panel(upper: Any, lower: Any, name: str, predictions: Predictions, bins: int) -> None:
    table = reliability_table(predictions, bins)
    judged, width = verdict(predictions), 1 / bins
    centres = [(k + 0.5) * width for k in range(bins)]
    for centre, count, conf, acc in zip(centres, *table.values(), strict=True):
        if count:
            solid = 1.0 if count >= FEW else 0.25
            upper.bar(centre, acc, width, color=BAR, alpha=solid, edgecolor="white", linewidth=0.6, zorder=2)
            gap = {"color": OVER if conf > acc else UNDER, "alpha": 0.55 * solid, "linewidth": 0}
            upper.bar(centre, conf - acc, width * 0.72, bottom=acc, zorder=3, **gap)
    upper.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=4)
    upper.plot([], [], color=OVER, linewidth=5, alpha=0.55, label="too confident")
    upper.plot([], [], color=UNDER, linewidth=5, alpha=0.55, label="too timid")
    upper.legend(fontsize=7, frameon=True, edgecolor="none", loc="lower right", handlelength=1.2)
    upper.set_title(name, color=INK, fontsize=11, weight="bold")
    told = f"acc {judged.accuracy:.1%}\nECE {judged.ece:.1%}\nNLL {judged.nll:.3f}"
    frame = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    place = {"transform": upper.transAxes, "va": "top", "zorder": 5, "bbox": frame}
    upper.text(0.04, 0.96, told, fontsize=9, color=INK, linespacing=1.4, **place)
    lower.bar(
        centres, table["count"] / len(predictions), width, color=INK, alpha=0.75, edgecolor="white", linewidth=0.6
    )
    for x, label, colour in ((judged.mean_confidence, "mean confidence", OVER), (judged.accuracy, "accuracy", BAR)):
        lower.axvline(x, color=colour, linewidth=1.6, label=label)
    lower.legend(fontsize=6.5, frameon=False, loc="upper left", handlelength=1.2, borderaxespad=0.2)
    for axes in (upper, lower):
        axes.set_xlim(0, 1)
        axes.grid(color=GRID, linewidth=0.6, zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
    upper.set_ylim(0, 1)
