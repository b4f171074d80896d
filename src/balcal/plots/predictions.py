"""Charts of predictions: reliability, confidence when right and wrong, risk by coverage, calibration class by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.metrics.inputs import read
from balcal.metrics.metric import by_name
from balcal.metrics.verdict import verdict
from balcal.plots.numbers import class_table, confidence_table, coverage_table, reliability_table, run_of
from balcal.plots.style import (
    BAND,
    BAR,
    FEW,
    GRID,
    INK,
    OVER,
    SERIES,
    SOFT,
    UNDER,
    Figure,
    figure,
    heading,
    legend,
    one_axes,
    percent,
    tidy,
)
from balcal.runs import Run
from balcal.runtime.provenance import PredictionFile

Source = Predictions | Run | str | Path
"""a run may be given by its folder"""
MOST_CLASSES = 25


def named_predictions(
    source: Source | Mapping[str, Source] | None, probs: Any = None, log_probs: Any = None, labels: Any = None
) -> dict[str, Predictions]:
    """Predictions by name: of a source, of several under names, or of arrays; a run gives those of its test split."""
    if source is None:
        rows = read(probs, log_probs, labels)
        return {"": Predictions(rows.log_probs(), rows.labels)}
    if probs is not None or log_probs is not None or labels is not None:
        raise BalcalError("pass predictions or a run, or arrays by name, not both")
    if isinstance(source, Mapping):
        if not source:
            raise BalcalError("there is nothing to draw: the mapping is empty")
        return {name: _predictions(each) for name, each in source.items()}
    name = "" if isinstance(source, Predictions) else run_of(source).recipe.method.name
    return {name: _predictions(source)}


def _one(source: Source | None, **arrays: Any) -> Predictions:
    return next(iter(named_predictions(source, **arrays).values()))


def _predictions(source: Source) -> Predictions:
    if isinstance(source, Predictions):
        return source
    run = run_of(source)
    found = run.load_predictions(PredictionFile.TEST)
    if found is None:
        raise BalcalError(f"{run.path} has no test predictions yet: run `balcal evaluate {run.path}` first")
    return found


@by_name
def reliability_diagram(
    source: Source | Mapping[str, Source] | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    title: str = "",
    bins: int = 15,
) -> Figure:
    """Accuracy by confidence, the gap between both, the band of a perfect model, and counts; one panel per model.

    >>> drawn = reliability_diagram(probs=[[0.9, 0.1], [0.4, 0.6]] * 50, labels=[0, 1] * 40 + [1, 0] * 10)
    >>> len(drawn.axes) > 0  # drawn.save("figure.pdf") writes it
    True
    """
    models = named_predictions(source, probs, log_probs, labels)
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
    table, found, width = reliability_table(predictions, bins), verdict(predictions, bins=bins), 1 / bins
    centres = (np.arange(bins) + 0.5) * width
    tidy(upper, lower)
    for k in np.flatnonzero(table.count):
        solid, gap = 1.0 if table.count[k] >= FEW else 0.3, table.gap[k]
        upper.bar(centres[k], table.accuracy[k], width * 0.94, color=BAR, alpha=solid, gid="accuracy", zorder=2)
        look = {"color": OVER if gap > 0 else UNDER, "alpha": 0.75 * solid, "linewidth": 0, "gid": "gap"}
        upper.bar(centres[k], gap, width * 0.94, bottom=table.accuracy[k], zorder=3, **look)
        upper.vlines(
            centres[k], table.low[k], table.high[k], color=INK, linewidth=1, alpha=0.8 * solid, gid="band", zorder=5
        )
    upper.plot([0, 1], [0, 1], color=SOFT, linewidth=1, linestyle=(0, (4, 3)), zorder=4)
    for colour, label in ((OVER, "over-confident"), (UNDER, "under-confident")):
        upper.plot([], [], color=colour, linewidth=5, alpha=0.75, label=label)
    upper.plot([], [], color=INK, linewidth=1, marker="|", linestyle="", label="95 % of perfect models")
    legend(upper, fontsize=6.5, loc="lower right", frameon=True, edgecolor="none", borderaxespad=0.2)
    heading(upper, name)
    text = f"acc {found.accuracy:.1%}\nECE {found.ece:.1%}\nperfect ≤ {found.floor_high:.1%}"
    frame = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    place = {"transform": upper.transAxes, "va": "top", "zorder": 6, "bbox": frame}
    upper.text(0.04, 0.97, text, fontsize=8.5, color=INK, linespacing=1.4, **place)
    lower.bar(centres, table.count / table.count.sum(), width * 0.94, color=BAND, gid="share")
    for x, label, colour in ((found.mean_confidence, "mean confidence", OVER), (found.accuracy, "accuracy", INK)):
        lower.axvline(x, color=colour, linewidth=1.4, label=label)
    legend(lower, fontsize=6.5, loc="upper left", borderaxespad=0.2)
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    lower.grid(color=GRID)
    percent(upper.yaxis)
    percent(lower.yaxis)
    percent(lower.xaxis)


@by_name
def confidence_histogram(
    source: Source | Mapping[str, Source] | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    bins: int = 20,
) -> Figure:
    """Confidence of right answers (upwards) and of wrong ones (downwards), as shares of each; one panel per model.

    >>> drawn = confidence_histogram(probs=[[0.9, 0.1], [0.4, 0.6]] * 50, labels=[0, 1] * 40 + [1, 0] * 10)
    >>> len(drawn.axes) > 0  # drawn.save("figure.pdf") writes it
    True
    """
    models = named_predictions(source, probs, log_probs, labels)
    drawn = figure(4.2 * len(models) + 0.3, 3.4)
    for axes, (name, predictions) in zip(
        np.atleast_1d(drawn.subplots(1, len(models), sharey=True)), models.items(), strict=True
    ):
        table = confidence_table(predictions, bins)
        centres, width = (table.edges[1:] + table.edges[:-1]) / 2, 0.94 / bins
        tidy(axes)
        for which, share, colour in (("right", table.right_share, UNDER), ("wrong", -table.wrong_share, OVER)):
            axes.bar(centres, share, width, color=colour, alpha=0.8, label=which, gid=which)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set(xlim=(0, 1), xlabel="confidence")
        heading(axes, name)
        axes.yaxis.set_major_formatter(lambda y, _: f"{abs(y) * 100:g} %")
        percent(axes.xaxis)
        legend(axes, loc="upper left")
    drawn.axes[0].set_ylabel("share of right and of wrong answers")
    return drawn


@by_name
def risk_coverage(
    source: Source | Mapping[str, Source] | None = None, *, probs: Any = None, log_probs: Any = None, labels: Any = None
) -> Figure:
    """Error among the most confident answers, and (dotted) the error that their confidence claims.

    >>> drawn = risk_coverage(probs=[[0.9, 0.1], [0.4, 0.6]] * 50, labels=[0, 1] * 40 + [1, 0] * 10)
    >>> len(drawn.axes) > 0  # drawn.save("figure.pdf") writes it
    True
    """
    drawn, axes = one_axes()
    for colour, (name, predictions) in zip(
        SERIES * 9, named_predictions(source, probs, log_probs, labels).items(), strict=False
    ):
        table = coverage_table(predictions)
        axes.plot(table.coverage, table.risk, color=colour, linewidth=1.6, label=name or "error", gid="risk")
        axes.plot(table.coverage, table.claimed, color=colour, linewidth=1.2, linestyle=":", gid="claimed")
    axes.plot([], [], color=SOFT, linewidth=1.2, linestyle=":", label="error that it claims")
    axes.set(xlim=(0, 1), xlabel="share of samples answered, the surest first", ylabel="error among them")
    axes.set_ylim(bottom=0)
    percent(axes.xaxis)
    percent(axes.yaxis)
    legend(axes, loc="upper left")
    return drawn


@by_name
def class_calibration(
    source: Source | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    classes: Sequence[str] | None = None,
) -> Figure:
    """Of what is predicted as each class: mean confidence (ring) and accuracy (dot, with its 95 % interval).

    >>> drawn = class_calibration(probs=[[0.9, 0.1], [0.4, 0.6]] * 50, labels=[0, 1] * 40 + [1, 0] * 10)
    >>> len(drawn.axes) > 0  # drawn.save("figure.pdf") writes it
    True
    """
    table = class_table(_one(source, probs=probs, log_probs=log_probs, labels=labels))
    if classes is not None and len(classes) != len(table.count):
        raise BalcalError(f"there are {len(table.count)} classes, but {len(classes)} names for them")
    if classes is None and source is not None and not isinstance(source, Predictions):
        classes = registry.dataset(run_of(source).recipe.task.dataset).classes
    shown = table.worst(MOST_CLASSES)[::-1]
    drawn, axes = one_axes(5.2, 1.0 + 0.24 * len(shown))
    for y, k in enumerate(shown):
        colour = OVER if table.gap[k] > 0 else UNDER
        axes.plot([table.low[k], table.high[k]], [y, y], color=BAR, linewidth=5, solid_capstyle="butt", gid="interval")
        axes.plot([table.accuracy[k], table.confidence[k]], [y, y], color=colour, linewidth=1.6, gid="gap")
    rows = np.arange(len(shown))
    axes.plot(table.accuracy[shown], rows, "o", color=INK, markersize=4.5, label="right", gid="accuracy")
    ring = {"markerfacecolor": "white", "markeredgecolor": INK}
    axes.plot(table.confidence[shown], rows, "o", markersize=4.5, label="confidence", gid="confidence", **ring)
    axes.set_yticks(rows, [classes[k] if classes else f"class {k}" for k in shown])
    percent(axes.xaxis)
    legend(axes, loc="lower left")
    return drawn
