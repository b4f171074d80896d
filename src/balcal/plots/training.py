"""What happened while it trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from balcal.core import BalcalError, Record
from balcal.plots.numbers import column
from balcal.plots.sources import history_of
from balcal.plots.style import INK, OVER, SERIES, SOFT, UNDER, Figure, figure, legend, one_axes, percent, tidy
from balcal.runs import Run

History = Run | str | Path | Sequence[Record]


def solver_target(history: Sequence[Record]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The confidence that the solver aims at after each epoch, delta times accuracy: what it found less the gap."""
    return column(history, "conf") - column(history, "gap")


def gamma_curve(told: History) -> Figure:
    """The dial after every epoch (gamma, or beta), and below it mean confidence beside its target, delta × accuracy."""
    history = history_of(told)
    dial = next((name for name in ("gamma", "beta") if name in history[-1]), None)
    if dial is None:
        raise BalcalError("this history has no gamma and no beta: its method solves for neither")
    epochs = np.arange(1, len(history) + 1)
    drawn = figure(5.2, 4.6)
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=(1, 1.4))
    tidy(upper, lower)
    upper.plot(epochs, column(history, dial), color=INK, marker="o", markersize=3, linewidth=1.5, gid=dial)
    upper.set_ylabel(dial)
    if dial == "gamma":
        upper.set_ylim(-0.04, 1.04 * max(1.0, float(np.nanmax(column(history, dial)))))
    for name, colour, label in (("conf", OVER, "mean confidence"), ("acc", SOFT, "accuracy")):
        lower.plot(epochs, column(history, name), color=colour, linewidth=1.6, label=label, gid=name)
    target = {"color": UNDER, "linewidth": 1.4, "linestyle": (0, (4, 2))}
    lower.plot(epochs, solver_target(history), label="target: delta × accuracy", gid="target", **target)
    lower.set(xlabel="epoch", ylabel="where the solver looks")
    percent(lower.yaxis)
    legend(lower, loc="best")
    return drawn


def loss_curve(told: History) -> Figure:
    """Training loss, validation NLL, and what a temperature would leave of that: the rest is miscalibration."""
    history = history_of(told)
    epochs = np.arange(1, len(history) + 1)
    drawn, axes = one_axes()
    for colour, name, label in ((SERIES[0], "loss", "training loss"), (SERIES[1], "val_nll", "validation NLL")):
        axes.plot(epochs, column(history, name), color=colour, linewidth=1.6, label=label, gid=name)
    if "val_nll_ts" in history[-1]:
        how = {"linestyle": "--", "linewidth": 1.2, "label": "after a temperature", "gid": "val_nll_ts"}
        axes.plot(epochs, column(history, "val_nll_ts"), color=SERIES[1], **how)
    axes.set(xlabel="epoch", ylabel="nats")
    axes.set_ylim(bottom=0)
    legend(axes)
    return drawn
