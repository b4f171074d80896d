"""Images that get worse, and images from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from balcal.core import BalcalError, Predictions
from balcal.plots.numbers import rows_of, share_of
from balcal.plots.sources import run_of, stored
from balcal.plots.style import INK, SERIES, SOFT, UNDER, Figure, figure, heading, legend, one_axes, percent, tidy
from balcal.runs import Run

Shifted = Run | str | Path | Mapping[str, Any]
"""a run that was evaluated with --shift, or what that evaluation gave"""


def shift_curve(told: Shifted | Mapping[str, Shifted]) -> Figure:
    """Accuracy and ECE by severity, mean over corruptions, with 95 % intervals; several runs under names."""
    single = not isinstance(told, Mapping) or "by_severity" in told
    models: Mapping[str, Any] = {"": told} if single else told  # type: ignore[assignment]
    drawn = figure(7.2, 3.2)
    for axes, what in zip(drawn.subplots(1, 2), ("accuracy", "ece"), strict=True):
        tidy(axes)
        for colour, (name, source) in zip(SERIES * 9, models.items(), strict=False):
            table = _shift(source)["by_severity"]
            severities, values = [row["severity"] for row in table], [row[what] for row in table]
            low, high = np.array([row[f"{what}_interval"] for row in table]).T
            axes.fill_between(severities, low, high, color=colour, alpha=0.18, linewidth=0, gid=f"{what} interval")
            axes.plot(severities, values, color=colour, marker="o", markersize=3.5, label=name, gid=what)
            if what == "ece":
                floors = [row["floor_mean"] for row in table]
                axes.plot(severities, floors, color=SOFT, linestyle=":", gid="floor")
        axes.set(xlabel="severity", xticks=severities)
        heading(axes, {"ece": "ECE"}.get(what, what))
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        if what == "ece":
            axes.plot([], [], color=SOFT, linestyle=":", label="a perfect model")
            legend(axes, loc="upper left")
    return drawn


def _shift(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    run = run_of(source)
    found = stored(run, "shift")
    if found is None:
        raise BalcalError(f"{run.path} was not evaluated under shift yet: `balcal evaluate {run.path} --shift`")
    return found


def outside_histogram(told: Run | str | Path | Mapping[str, Predictions], bins: int = 20) -> Figure:
    """Confidence of images that the model knows the like of (the first), and of others; from a run, or by name."""
    sets = dict(told) if isinstance(told, Mapping) else outside_sets(run_of(told))
    if len(sets) < 2:
        raise BalcalError("a comparison needs predictions inside and outside: `balcal evaluate RUN --ood` makes them")
    drawn, axes = one_axes()
    edges = np.linspace(0, 1, bins + 1)
    for number, (name, predictions) in enumerate(sets.items()):
        confidence = rows_of(predictions).top().conf.numpy()
        share = share_of(confidence, bins) / len(confidence)
        look: dict[str, Any] = {"color": UNDER, "fill": True, "alpha": 0.3} if not number else {"color": SERIES[number]}
        axes.stairs(share, edges, label=name, linewidth=1.6, gid=name, **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of the set")
    percent(axes.xaxis)
    percent(axes.yaxis)
    legend(axes, loc="upper left")
    return drawn


def outside_sets(run: Run) -> dict[str, Predictions]:
    """Stored predictions of the run's own test images and of each outside set, before any post-hoc map."""
    told = stored(run, "ood")
    if told is None:
        return {}
    stems = {told["inside"]: "test"} | {name: each["predictions"] for name, each in told["sets"].items()}
    found = {name: run.load_predictions(stem) for name, stem in stems.items()}
    return {name: told for name, told in found.items() if told is not None}
