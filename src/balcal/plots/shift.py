"""Charts beyond the test split: accuracy and ECE under corruption, confidence on out-of-distribution (OOD) images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError, Predictions
from balcal.metrics.bins import Floats
from balcal.metrics.verdict import Verdict
from balcal.plots.numbers import histogram, rows_of, run_of
from balcal.plots.style import INK, SERIES, SOFT, UNDER, Figure, figure, heading, legend, one_axes, percent, tidy
from balcal.runs import Run
from balcal.runtime.provenance import FigureFile, PredictionFile

Shifted = Run | str | Path | Mapping[str, Any]
"""a run that was evaluated with --shift, or the figures of that evaluation"""
BINS = 20


@dataclass(frozen=True, eq=False)
class Severities:
    """Accuracy or ECE at each severity, mean over corruptions, with 95 % intervals."""

    severity: Floats
    value: Floats
    low: Floats
    high: Floats
    floor: Floats
    """ECE of a perfect model"""
    sets: Floats
    """corruptions that the mean is over"""


def severity_table(
    figures: Mapping[str, Any], metric: Literal["accuracy", "ece"], clean: Verdict | None = None
) -> Severities:
    """Numbers of a shift curve; with the verdict on the clean test split as severity 0, if it is given."""
    rows = list(figures["by_severity"])
    if clean is not None:
        rows.insert(0, {**clean.as_dict(), "severity": 0})
    bounds = f"{metric}_interval"
    table = [(r["severity"], r[metric], *r[bounds], r["floor_mean"], r.get("sets", 1)) for r in rows]
    return Severities(*np.array(table, dtype=np.float64).T)


@dataclass(frozen=True, eq=False)
class OodConfidences:
    """Histograms of confidence, as shares of each set; the first set is the test split."""

    edges: Floats
    shares: dict[str, Floats]


def ood_table(sets: Mapping[str, Predictions], bins: int = BINS) -> OodConfidences:
    """Numbers of an OOD histogram."""
    confidences = {name: rows_of(each).top().conf.numpy() for name, each in sets.items()}
    shares = {name: histogram(each, bins) / len(each) for name, each in confidences.items()}
    return OodConfidences(np.linspace(0, 1, bins + 1), shares)


def stored_figures(run: Run, name: FigureFile, posthoc: str | None = None) -> dict[str, Any] | None:
    """Figures that an evaluation of the run wrote, after a post-hoc method if one is named; None if there are none."""
    method = as_method(run.recipe.method + registry.method(posthoc) if posthoc else run.recipe.method)
    epoch = method.select(run.ending().history)
    return run.read_figures(f"{name}+{posthoc}" if posthoc else name, method, epoch)


def ood_sets(run: Run) -> dict[str, Predictions]:
    """Stored predictions of the test split and of each OOD set, before any post-hoc map."""
    figures = stored_figures(run, FigureFile.OOD)
    if figures is None:
        return {}
    stems: dict[str, str] = {figures["inside"]: PredictionFile.TEST}
    stems |= {name: each["predictions"] for name, each in figures["sets"].items()}
    found = {name: run.load_predictions(stem) for name, stem in stems.items()}
    return {name: predictions for name, predictions in found.items() if predictions is not None}


def shift_curve(source: Shifted | Mapping[str, Shifted]) -> Figure:
    """Accuracy and ECE by severity, mean over corruptions, with 95 % intervals; several runs under names.

    >>> row = {"accuracy": 0.8, "accuracy_interval": (0.78, 0.82), "ece": 0.05, "ece_interval": (0.03, 0.07)}
    >>> figures = {"by_severity": [{**row, "severity": s, "floor_mean": 0.01} for s in (1, 3, 5)]}
    >>> len(shift_curve(figures).axes)  # or a run that was evaluated with --shift
    2
    """
    single = not isinstance(source, Mapping) or "by_severity" in source
    models: Mapping[str, Any] = {"": source} if single else source  # type: ignore[assignment]
    drawn = figure(7.2, 3.2)
    for axes, metric in zip(drawn.subplots(1, 2), ("accuracy", "ece"), strict=True):
        tidy(axes)
        for colour, (name, each) in zip(SERIES * 9, models.items(), strict=False):
            table = severity_table(_shift_figures(each), metric)  # type: ignore[arg-type]
            band = {"color": colour, "alpha": 0.18, "linewidth": 0, "gid": f"{metric} interval"}
            axes.fill_between(table.severity, table.low, table.high, **band)
            axes.plot(table.severity, table.value, color=colour, marker="o", markersize=3.5, label=name, gid=metric)
            if metric == "ece":
                axes.plot(table.severity, table.floor, color=SOFT, linestyle=":", gid="floor")
        axes.set(xlabel="severity", xticks=table.severity)
        heading(axes, {"ece": "ECE"}.get(metric, metric))
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        if metric == "ece":
            axes.plot([], [], color=SOFT, linestyle=":", label="a perfect model")
            legend(axes, loc="upper left")
    return drawn


def _shift_figures(source: Shifted) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    run = run_of(source)
    found = stored_figures(run, FigureFile.SHIFT)
    if found is None:
        raise BalcalError(f"{run.path} was not evaluated under shift yet: `balcal evaluate {run.path} --shift`")
    return found


def outside_histogram(source: Run | str | Path | Mapping[str, Predictions], bins: int = BINS) -> Figure:
    """Confidence on the test split (the first set) and on OOD sets; from a run, or predictions by name.

    >>> import torch
    >>> sure, unsure = (Predictions(torch.tensor([[p, 1 - p]] * 9).log(), torch.zeros(9).long()) for p in (0.9, 0.6))
    >>> len(outside_histogram({"test": sure, "others": unsure}).axes)
    1
    """
    sets = dict(source) if isinstance(source, Mapping) else ood_sets(run_of(source))
    if len(sets) < 2:
        raise BalcalError("a comparison needs predictions of OOD sets: `balcal evaluate RUN --ood` makes them")
    drawn, axes = one_axes()
    table = ood_table(sets, bins)
    for number, (name, share) in enumerate(table.shares.items()):
        look: dict[str, Any] = {"color": UNDER, "fill": True, "alpha": 0.3} if not number else {"color": SERIES[number]}
        axes.stairs(share, table.edges, label=name, linewidth=1.6, gid=name, **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of the set")
    percent(axes.xaxis)
    percent(axes.yaxis)
    legend(axes, loc="upper left")
    return drawn
