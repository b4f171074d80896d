"""Training curves: gamma or beta, confidence beside its target, and losses, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from balcal.core import BalcalError, Record
from balcal.metrics.bins import Floats
from balcal.plots.numbers import Ints, run_of
from balcal.plots.style import INK, OVER, SERIES, SOFT, UNDER, Figure, figure, legend, one_axes, percent, tidy
from balcal.runs import Run

History = Run | str | Path | Sequence[Record]
"""a run, its folder, or the records that `balcal.fit` returned"""


@dataclass(frozen=True, eq=False)
class TrainingCurves:
    """One value per epoch; NaN where it was not recorded. None is what the method does not have."""

    epochs: Ints
    """counted from 1"""
    balance: str | None
    """the parameter that is solved for after every epoch: gamma or beta"""
    balance_values: Floats | None
    accuracy: Floats
    """on the samples that the solver looks at, as the two below"""
    confidence: Floats
    target: Floats | None
    """delta × accuracy: the mean confidence that the solver aims at"""
    loss: Floats
    val_accuracy: Floats
    val_confidence: Floats
    val_nll: Floats
    val_nll_ts: Floats | None
    """validation NLL after temperature scaling"""


def training_curves(history: Sequence[Record]) -> TrainingCurves:
    """Numbers of a history.

    >>> curves = training_curves([{"loss": 1.0, "gamma": 1.0}, {"gamma": 0.8}])
    >>> curves.balance, curves.loss.tolist(), curves.target
    ('gamma', [1.0, nan], None)
    """

    def column(name: str) -> Floats:
        return np.array([record.get(name, np.nan) for record in history], dtype=np.float64)

    last = history[-1]
    balance = next((name for name in ("gamma", "beta") if name in last), None)
    return TrainingCurves(
        epochs=np.arange(1, len(history) + 1),
        balance=balance,
        balance_values=column(balance) if balance else None,
        accuracy=column("acc"),
        confidence=column("conf"),
        target=column("conf") - column("gap") if "gap" in last else None,
        loss=column("loss"),
        val_accuracy=column("val_acc"),
        val_confidence=column("val_conf"),
        val_nll=column("val_nll"),
        val_nll_ts=column("val_nll_ts") if "val_nll_ts" in last else None,
    )


def gamma_curve(source: History) -> Figure:
    """Gamma (or beta) after every epoch, and below it mean confidence beside its target, delta × accuracy.

    >>> epochs = [{"gamma": g, "acc": 0.9, "conf": 0.86, "delta": 0.95} for g in (1.0, 0.9, 0.8)]
    >>> len(gamma_curve(epochs).axes)
    2
    """
    curves = _curves(source)
    if curves.balance is None or curves.balance_values is None:
        raise BalcalError("this history has no gamma and no beta: its method solves for neither")
    drawn = figure(5.2, 4.6)
    upper, lower = drawn.subplots(2, 1, sharex=True, height_ratios=(1, 1.4))
    tidy(upper, lower)
    dots = {"color": INK, "marker": "o", "markersize": 3, "linewidth": 1.5, "gid": curves.balance}
    upper.plot(curves.epochs, curves.balance_values, **dots)
    upper.set_ylabel(curves.balance)
    if curves.balance == "gamma":
        upper.set_ylim(-0.04, 1.04 * max(1.0, float(np.nanmax(curves.balance_values))))
    lines = {"conf": (curves.confidence, OVER, "mean confidence"), "acc": (curves.accuracy, SOFT, "accuracy")}
    for name, (values, colour, label) in lines.items():
        lower.plot(curves.epochs, values, color=colour, linewidth=1.6, label=label, gid=name)
    if curves.target is not None:
        dashed = {"color": UNDER, "linewidth": 1.4, "linestyle": (0, (4, 2))}
        lower.plot(curves.epochs, curves.target, label="target: delta × accuracy", gid="target", **dashed)
    lower.set(xlabel="epoch", ylabel="where the solver looks")
    percent(lower.yaxis)
    legend(lower, loc="best")
    return drawn


def loss_curve(source: History) -> Figure:
    """Training loss, validation NLL, and validation NLL after temperature scaling: the difference is miscalibration.

    >>> epochs = [{"loss": v, "val_nll": v + 0.1, "val_nll_ts": v} for v in (1.0, 0.7, 0.6)]
    >>> len(loss_curve(epochs).axes)
    1
    """
    curves = _curves(source)
    drawn, axes = one_axes()
    lines = {"loss": (curves.loss, "training loss"), "val_nll": (curves.val_nll, "validation NLL")}
    for colour, (name, (values, label)) in zip(SERIES, lines.items(), strict=False):
        axes.plot(curves.epochs, values, color=colour, linewidth=1.6, label=label, gid=name)
    if curves.val_nll_ts is not None:
        dashed = {"linestyle": "--", "linewidth": 1.2, "label": "after a temperature", "gid": "val_nll_ts"}
        axes.plot(curves.epochs, curves.val_nll_ts, color=SERIES[1], **dashed)
    axes.set(xlabel="epoch", ylabel="nats")
    axes.set_ylim(bottom=0)
    legend(axes)
    return drawn


def _curves(source: History) -> TrainingCurves:
    history = run_of(source).history() if isinstance(source, Run | str | Path) else list(source)
    if not history:
        raise BalcalError("there is no epoch to draw")
    return training_curves(history)
