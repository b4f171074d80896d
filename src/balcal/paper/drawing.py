"""Draw the data that `curves.py` computes. One function per figure, from plain data to a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from balcal.analysis.features import ETF, LEARNABLE

INK, GREY = "#1f2a33", "#9aa5ad"
OURS = ("Ours", "BalCAL", "balcal-logits")


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """As PNG and as SVG."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.save(path)
    return paths


def _panels(across: int, down: int = 1, size: float = 3.2) -> tuple[Any, Any]:
    from balcal.plots import style

    figure = style.figure(size * across, 0.85 * size * down)
    grid = figure.subplots(down, across, squeeze=False)
    style.tidy(*grid.flat)
    return figure, grid


def _line(axes: Any, x: Iterable[float], y: Iterable[float], name: str, **how: Any) -> None:
    width = 2.4 if name in OURS else 1.2
    axes.plot(list(x), list(y), marker="o", markersize=3, linewidth=width, label=name, **how)


def _named(axes: Any, title: str, x: str, y: str, legend: bool = True) -> None:
    if x in ("epoch", "severity"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if legend:
        axes.legend(fontsize=6, frameon=False)


def reliability(data: Any) -> Any:
    across = min(4, len(data))
    figure, grid = _panels(across, math.ceil(len(data) / across))
    for axes in grid.flat[len(data) :]:
        axes.axis("off")
    for axes, (name, run) in zip(grid.flat, data.items(), strict=False):
        heights = [value or 0.0 for value in run["bins"]["accuracy"]]
        places = (np.arange(len(heights)) + 0.5) / len(heights)
        axes.bar(places, heights, 1 / len(heights), color="#4c78a8", edgecolor="white")
        axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1)
        title = (
            f"{name}: confidence {run['mean_confidence']:.1%},\naccuracy {run['accuracy']:.1%}, ECE {run['ece']:.1%}"
        )
        _named(axes, title, "confidence", "accuracy", legend=False)
    return figure


def betas(data: Any) -> Any:
    figure, grid = _panels(1, size=4)
    x = [row["beta"] for row in data]
    for key in ("accuracy", "confidence"):
        _line(grid[0][0], x, [row[key] for row in data], key)
    _line(grid[0][0], x, [row["largest"] for row in data], "largest confidence", color=GREY, linestyle=":")
    grid[0][0].set_xscale("log")
    _named(grid[0][0], "an ETF classifier alone", "beta", "")
    return figure


def alpha_eces(data: Any) -> Any:
    figure, grid = _panels(2, size=4)
    for axes, key, title in zip(grid[0], ("ece", "published"), ("ours", "published"), strict=True):
        for way, rows in data.items():
            if rows[0][key] is None:
                continue
            if rows[0]["alpha"] is None:
                axes.axhline(rows[0][key], color=GREY, linestyle=":", label=way)
            else:
                _line(axes, [row["alpha"] for row in rows], [row[key] for row in rows], way)
        _named(axes, title, "alpha", "ECE")
    return figure


def shifts(data: Any) -> Any:
    figure, grid = _panels(len(data), size=4.2)
    colours = _many_colours()
    for axes, (place, methods) in zip(grid[0], data.items(), strict=True):
        for (name, eces), colour in zip(methods.items(), colours, strict=False):
            _line(axes, range(1, len(eces) + 1), eces, name, color=colour)
        _named(axes, place, "severity", "ECE", legend=False)
    figure.legend(*grid[0][0].get_legend_handles_labels(), fontsize=7, frameon=False, loc="outside right center")
    return figure


def _many_colours() -> list[Any]:
    """Thirteen methods need more than ten."""
    from matplotlib import colormaps

    return [colormaps["tab20"](number) for number in range(20)]


def deltas(data: Any) -> Any:
    figure, grid = _panels(1 + len(data), size=4)
    for axes, (method, rows) in zip(grid[0][1:], data.items(), strict=True):
        _line(grid[0][0], [row["delta"] for row in rows], [row["ece"] for row in rows], method)
        for row in rows:
            epochs = range(1, len(row["gamma"]) + 1)
            axes.plot(list(epochs), row["gamma"], linewidth=1.2, label=f"delta {row['delta']:g}")
        _named(axes, method, "epoch", "gamma")
    _named(grid[0][0], "", "delta", "ECE")
    return figure


def embeddings(data: Any) -> Any:
    across = min(5, len(data))
    figure, grid = _panels(across, math.ceil(len(data) / across), size=2.6)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (name, run) in zip(grid.flat, data.items(), strict=False):
        x, y = np.array(run["points"]).T
        axes.scatter(x, y, c=run["labels"], cmap="tab10", s=3, linewidths=0)
        axes.set_title(f"{name}, silhouette {run['silhouette']:.2f}", fontsize=8)
    return figure


def maps(data: Any) -> Any:
    """The images, and under them the maps of each run's two classifiers."""
    first = next(iter(data.values()))
    images = np.array(first["images"], dtype=np.uint8)
    rows = [(title, run, name) for title, run in data.items() for name in (LEARNABLE, ETF)]
    figure, grid = _panels(len(images), 1 + len(rows), size=1.5)
    for axes in grid.flat:
        axes.axis("off")
    for column, (image, label) in enumerate(zip(images, first["labels"], strict=True)):
        grid[0][column].imshow(image.squeeze(), cmap="gray")
        grid[0][column].set_title(label, fontsize=7)
        for line, (_, run, name) in zip(grid[1:], rows, strict=True):
            side = image.shape[0]
            line[column].imshow(image.squeeze(), cmap="gray", extent=(0, side, side, 0))
            place = {"alpha": 0.55, "extent": (0, side, side, 0), "interpolation": "bilinear"}
            line[column].imshow(np.array(run[name][column]), cmap="jet", **place)
    for line, (title, run, name) in zip(grid[1:], rows, strict=True):
        shares = f"breadth {run['breadth'][name]:.2f}, {run['empty'][name]:.0%} of {run['looked_at']} empty"
        line[0].set_title(f"{title}, {name}: {shares}", fontsize=7, loc="left")
    return figure


def alpha_confidences(data: Any) -> Any:
    figure, grid = _panels(len(data))
    for axes, (place, rows) in zip(grid[0], data.items(), strict=True):
        for key, name in (("mean_confidence", "confidence"), ("accuracy", "accuracy")):
            _line(axes, [row["alpha"] for row in rows], [row[key] for row in rows], name)
        _named(axes, place, "alpha", "")
    return figure


def prototypes(data: Any) -> Any:
    figure, grid = _panels(len(data), 2)
    for column, (place, rows) in enumerate(data.items()):
        for axes, key in zip(grid[:, column], ("cosine", "l2"), strict=True):
            _line(axes, [row["epoch"] for row in rows], [row[key] for row in rows], key)
            _named(axes, place if key == "cosine" else "", "epoch", f"{key} distance", legend=False)
    return figure


def collapses(data: Any) -> Any:
    names = {"nc1": "NC1 variability", "nc2_angles": "NC2 angles", "nc3": "NC3 duality", "nc4": "NC4 nearest mean"}
    figure, grid = _panels(len(names))
    for axes, (key, title) in zip(grid[0], names.items(), strict=True):
        for method, branches in data.items():
            for branch, rows in branches.items():
                _line(axes, [row["epoch"] for row in rows], [row[key] for row in rows], f"{method}, {branch}")
        if key == "nc1":
            axes.set_yscale("log")
        _named(axes, title, "epoch", "")
    return figure


DRAWINGS: dict[str, Callable[[Any], Any]] = {
    "motivation": reliability,
    "beta": betas,
    "alpha-ece": alpha_eces,
    "shift": shifts,
    "delta": deltas,
    "tsne": embeddings,
    "tsne-more": embeddings,
    "cam": maps,
    "alpha-confidence": alpha_confidences,
    "distance": prototypes,
    "collapse": collapses,
}
