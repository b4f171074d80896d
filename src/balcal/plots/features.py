"""Charts of features: a t-SNE of the test images, and class activation maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balcal import registry
from balcal.analysis import features as embedding
from balcal.analysis.features import fused_maps
from balcal.core import BalcalError
from balcal.evaluation.judge import batches_of, load_chosen, load_splits
from balcal.metrics.bins import Floats
from balcal.model import evaluating
from balcal.plots.numbers import run_of
from balcal.plots.style import INK, SERIES, Figure, figure
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.runtime.randomness import own_randomness

FIRST = 2000
"""test images of a run that are drawn by default"""


def tsne(
    source: Run | str | Path | None = None,
    *,
    features: Any = None,
    labels: Any = None,
    classes: Sequence[str] | None = None,
    samples: int = FIRST,
    seed: int = 0,
) -> Figure:
    """t-SNE of features, coloured by class: of a run, or of arrays (N, D).

    >>> rng = np.random.default_rng(0)
    >>> drawn = tsne(features=rng.normal(size=(60, 5)), labels=[0, 1, 2] * 20)
    >>> len(drawn.axes)
    1
    """
    if (source is None) == (features is None or labels is None):
        raise BalcalError("pass a run, or features= (N, D) and labels= (N,)")
    if source is not None:
        run = run_of(source)
        features, labels = run_features(run, samples)
        classes = classes or registry.dataset(run.recipe.task.dataset).classes
    points = embedding.tsne(np.asarray(features, dtype=np.float64), seed)
    labels = np.asarray(labels)
    drawn = figure(5.6, 4.6)
    axes = drawn.subplots()
    axes.axis("off")
    shades = _shades(int(labels.max()) + 1)
    for k in np.unique(labels):
        members = points[labels == k]
        name = classes[k] if classes else f"class {k}"
        axes.scatter(
            members[:, 0], members[:, 1], s=7, color=shades[k], alpha=0.75, linewidths=0, label=name, gid=f"class {k}"
        )
        axes.annotate(name, np.median(members, axis=0), fontsize=8, color=INK, ha="center", va="center", weight="bold")
    return drawn


def _shades(count: int) -> list[Any]:
    if count <= len(SERIES):
        return list(SERIES)
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.05, 0.95, count)))


@torch.no_grad()
def run_features(run: Run, samples: int = FIRST) -> tuple[Floats, Floats]:
    """Features (N, D) and labels of the first test images, by the model of the chosen epoch."""
    device = pick_device(None)
    model = load_chosen(run, run.recipe.method, device)
    test = load_splits(run.recipe.task).test
    some = test.take(torch.arange(min(samples, len(test))))
    with evaluating(model), own_randomness():
        found = [model.features(x)[1].float().cpu() for x, _ in batches_of(run, some, device).epoch(0)]
    return torch.cat(found).double().numpy(), some.labels.cpu().numpy()


def cam(source: Run | str | Path, samples: Sequence[int] = tuple(range(8)), of: Sequence[int] | None = None) -> Figure:
    """Class activation maps over test images of a run, for the predicted classes or those in `of`.

    >>> import tempfile
    >>> from balcal.training.fit import train_recipe
    >>> short = registry.recipe("digits", "vanilla", 0, ["plan.epochs=1"])
    >>> run = train_recipe(short, tempfile.mkdtemp(), "cpu", quiet=True)["run"]
    >>> len(cam(run, samples=[0, 1]).axes)
    2
    """
    run, device = run_of(source), pick_device(None)
    model = load_chosen(run, run.recipe.method, device)
    dataset, test = registry.dataset(run.recipe.task.dataset), load_splits(run.recipe.task).test
    some = test.take(torch.as_tensor(list(samples)))
    inputs, labels = next(iter(batches_of(run, some, device).epoch(0)))
    maps, picked, confidence = fused_maps(model, inputs, None if of is None else torch.as_tensor(list(of)))
    maps = (maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-12)).cpu()
    columns = min(len(some), 8)
    drawn = figure(1.35 * columns, 1.75 * -(-len(some) // columns))
    grid = np.atleast_1d(drawn.subplots(-(-len(some) // columns), columns, squeeze=False)).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, image, seen, k, p, y in zip(grid, some.images.cpu(), maps, picked, confidence, labels, strict=False):
        axes.imshow(image.squeeze(-1).numpy(), cmap="gray", gid="image")
        axes.imshow(seen.numpy(), cmap="inferno", alpha=0.5, vmin=0, vmax=1, gid="map", **_over(image))
        right = "" if int(k) == int(y) else f"\nis {dataset.classes[int(y)]}"
        axes.set_title(f"{dataset.classes[int(k)]} {float(p):.0%}{right}", fontsize=7, color=INK)
    return drawn


def _over(image: Tensor) -> dict[str, Any]:
    """Stretch a coarse map smoothly over the whole image."""
    return {"extent": (-0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5), "interpolation": "bilinear"}
