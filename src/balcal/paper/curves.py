"""What the figures show, as numbers: from trained runs to plain data that `drawing.py` can draw.

Each function takes an item and the answers. Runs that a tier does not have are left out. Scalars are means over seeds;
images and curves over epochs are those of the first seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from balcal import registry
from balcal.analysis.collapse import collapse, prototype_distances
from balcal.analysis.features import ETF, LEARNABLE, activation_maps, breadth, over_epochs, read_all, silhouette, tsne
from balcal.build import as_method
from balcal.evaluation.judge import batches_of, calibrated_predictions, load_chosen, load_splits
from balcal.methods.parts.etf import largest_confidence
from balcal.model import Model
from balcal.paper.figures import (
    ALPHA_CONFIDENCE,
    ALPHA_ECE,
    BETA,
    CAM,
    COLLAPSE,
    DELTA,
    DISTANCE,
    MOTIVATION,
    SHIFT,
    TSNE,
    TSNE_MORE,
)
from balcal.paper.items import Ask, Item
from balcal.paper.measure import Answers
from balcal.plots.numbers import reliability_table
from balcal.recipe import Method
from balcal.runs import Run

Data = dict[str, Any]
SHOWN = 6
"""images with activation maps"""
LOOKED_AT = 256
"""images whose activation maps are measured"""
COLLAPSED = 5000
"""training images at most on which collapse is measured"""


def runs_of(item: Item, answers: Answers) -> Iterator[tuple[str, Ask, Run]]:
    for name, ask in item.series(answers.tier).items():
        run = answers.run(ask)
        without = answers.only_found and answers.seeds[0] in answers.missing(ask, item.epochs)
        if run is not None and not without:
            yield name, ask, run


def evaluated(ask: Ask, answers: Answers) -> Method:
    """The method with what comes after training: the epoch that is chosen, and a temperature."""
    recipe = answers.recipe(ask, answers.seeds[0])
    assert recipe
    return as_method(recipe.method)


def reliability(item: Item, answers: Answers) -> Data:
    data = {}
    for name, ask, run in runs_of(item, answers):
        _, test, _ = calibrated_predictions(run, evaluated(ask, answers), answers.device)
        table = {key: _listed(values) for key, values in vars(reliability_table(test)).items()}
        figures = {key: answers.mean(ask, key) for key in ("accuracy", "mean_confidence", "ece")}
        data[name] = {"bins": table, **figures}
    return data


def _listed(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


def by_beta(item: Item, answers: Answers) -> list[Data]:
    """Accuracy and confidence at each beta, and how high confidence can be there."""
    data = []
    for name, ask, run in runs_of(item, answers):
        classes = registry.dataset(run.recipe.task.dataset).num_classes
        data.append(
            {
                "beta": float(name),
                "accuracy": answers.mean(ask, "accuracy"),
                "confidence": answers.mean(ask, "mean_confidence"),
                "largest": largest_confidence(float(name), classes),
            }
        )
    return data


def alpha_eces(item: Item, answers: Answers) -> Data:
    """ECE at each alpha for each way of mixing, ours and the paper's, as fractions."""
    printed = {(cell.column, cell.row.split()[-1]): cell.published for cell in item.cells}
    data: dict[str, list[Data]] = defaultdict(list)
    for name, ask, _ in runs_of(item, answers):
        way, _, alpha = name.rpartition(" ") if name[-1].isdigit() else (name, "", "")
        theirs = printed.get((way, f"{float(alpha):.1f}" if alpha else way))
        data[way].append(
            {
                "alpha": float(alpha) if alpha else None,
                "ece": answers.mean(ask, "ece"),
                "published": theirs.value / 100 if theirs else None,
            }
        )
    return dict(data)


def alpha_confidences(item: Item, answers: Answers) -> Data:
    data: dict[str, list[Data]] = defaultdict(list)
    for name, ask, _ in runs_of(item, answers):
        place, alpha = name.rsplit(" ", 1)
        means = {key: answers.mean(ask, key) for key in ("accuracy", "mean_confidence")}
        data[place].append({"alpha": float(alpha), **means})
    return dict(data)


def shifts(item: Item, answers: Answers) -> Data:
    """ECE at each severity, averaged over corruptions and seeds: place -> method -> five numbers."""
    data: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for name, ask, _ in runs_of(item, answers):
        place, method = name.split(": ")
        rows = [[s["ece"] for s in answers.shift(recipe)["by_severity"]] for recipe in answers.recipes(ask)]
        data[place][method] = [sum(column) / len(column) for column in zip(*rows, strict=True)]
    return dict(data)


def deltas(item: Item, answers: Answers) -> Data:
    """method -> one record per delta"""
    data: dict[str, list[Data]] = defaultdict(list)
    for name, ask, run in runs_of(item, answers):
        method, delta = name.split()
        means = {key: answers.mean(ask, key) for key in ("ece", "accuracy")}
        data[method].append({"delta": float(delta), **means, "gamma": [r["gamma"] for r in run.history()]})
    return dict(data)


def embeddings(item: Item, answers: Answers) -> Data:
    """Features of the learnable classifier on the first test images; of the ETF one, where there is no other."""
    data = {}
    for name, ask, run in runs_of(item, answers):
        model = load_chosen(run, evaluated(ask, answers), answers.device)
        part = load_splits(run.recipe.task).test
        readings, labels = read_all(model, batches_of(run, part, answers.device), answers.tier.points)
        features = next(iter(readings.values())).features
        data[name] = {
            "points": [[round(x, 3) for x in point] for point in tsne(features).tolist()],
            "labels": labels.tolist(),
            "silhouette": silhouette(features, labels),
        }
    return data


def maps(item: Item, answers: Answers) -> Data:
    """Maps of both classifiers for a few test images, each up to 1; over many, how broad and how often empty."""
    found: Data = {}
    for title, ask, run in runs_of(item, answers):
        model = load_chosen(run, evaluated(ask, answers), answers.device)
        part = load_splits(run.recipe.task).test
        images, labels = next(iter(batches_of(run, part.take(torch.arange(LOOKED_AT)), answers.device).epoch(0)))
        branches = activation_maps(model, images)
        shown = _of_different_classes(labels.cpu())
        classes = registry.dataset(run.recipe.task.dataset).classes
        data: Data = {
            "images": part.images[shown].tolist(),
            "labels": [classes[k] for k in part.labels[shown].tolist()],
            "breadth": {},
            "empty": {},
        }
        for name, branch in zip((LEARNABLE, ETF), branches, strict=True):
            to_one = branch / branch.amax((1, 2), keepdim=True).clamp_min(1e-30)
            data[name] = [[[round(x, 3) for x in row] for row in one] for one in to_one[shown].tolist()]
            data["breadth"][name] = float(breadth(branch).nanmean())
            data["empty"][name] = float((branch.amax((1, 2)) == 0).double().mean())
        data["looked_at"] = len(images)
        found[title] = data
    return found


def _of_different_classes(labels: Tensor) -> Tensor:
    first = {int(label): number for number, label in reversed(list(enumerate(labels.tolist())))}
    return torch.tensor(sorted(first.values())[:SHOWN])


def prototypes(item: Item, answers: Answers) -> Data:
    return {
        name: over_epochs(run, lambda model: prototype_distances(model.head), answers.device)
        for name, _, run in runs_of(item, answers)
    }


def collapses(item: Item, answers: Answers) -> Data:
    """method -> classifier -> one record per epoch, on training images as they are in use."""
    data: Data = {}
    for name, _, run in runs_of(item, answers):
        batches = batches_of(run, load_splits(run.recipe.task).train, answers.device)

        def measure(model: Model, batches: Any = batches) -> Data:
            readings, labels = read_all(model, batches, COLLAPSED)
            return {branch: collapse(reading, labels).as_dict() for branch, reading in readings.items()}

        records = over_epochs(run, measure, answers.device)
        branches = [key for key in records[0] if key != "epoch"]
        data[name] = {b: [{"epoch": r["epoch"], **r[b]} for r in records] for b in branches}
    return data


CURVES: dict[str, Callable[[Item, Answers], Any]] = {
    MOTIVATION.id: reliability,
    BETA.id: by_beta,
    ALPHA_ECE.id: alpha_eces,
    SHIFT.id: shifts,
    DELTA.id: deltas,
    TSNE.id: embeddings,
    TSNE_MORE.id: embeddings,
    CAM.id: maps,
    ALPHA_CONFIDENCE.id: alpha_confidences,
    DISTANCE.id: prototypes,
    COLLAPSE.id: collapses,
}
