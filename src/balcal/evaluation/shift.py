"""Evaluate a run on corrupted test images: accuracy and ECE for each corruption and severity.

Means are over the ECEs of the sets. `by_severity`: over corruptions; `by_corruption`: over severities; `mean`: over
both. The ECE of all predictions pooled into one set, `pooled`, is another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.data.corruptions import SEVERITIES, VERSION, corrupt
from balcal.data.dataset import ImageSet
from balcal.data.published_corruptions import SHIFTS
from balcal.evaluation.other_images import RunPredictor
from balcal.metrics.bins import bin_table
from balcal.metrics.bootstrap import Floats, ece_interval, eces, joint_draws, noise_floor, percentile, wilson
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.scoring import losses
from balcal.runtime.provenance import PredictionFile

BINS = 15
Bounds = tuple[float, float]


class CorruptedFigures(TypedDict):
    """Figures of one corruption at one severity."""

    corruption: str
    severity: int
    accuracy: float
    accuracy_interval: Bounds
    mean_confidence: float
    ece: float
    floor_mean: float
    nll: float
    ece_interval: NotRequired[Bounds]


class MeanFigures(TypedDict):
    """A mean over `sets` sets: those of a corruption, of a severity, or all."""

    corruption: NotRequired[str]
    severity: NotRequired[int]
    sets: int
    accuracy: float
    accuracy_interval: Bounds
    ece: float
    ece_interval: Bounds
    floor_mean: float
    nll: float


class PooledFigures(TypedDict):
    samples: int
    ece: float


ShiftFigures = TypedDict(
    "ShiftFigures",
    {
        "images": int,
        "bins": int,
        "from": str,
        "sets": list[CorruptedFigures],
        "by_severity": list[MeanFigures],
        "by_corruption": list[MeanFigures],
        "mean": MeanFigures,
        "pooled": PooledFigures,
    },
)
"""What `evaluate_shift` returns, as shift.json has it"""


class CorruptedSets:
    """Figures of corrupted sets, one by one and in the mean. They share their images and are resampled together."""

    def __init__(self) -> None:
        self.figures: list[CorruptedFigures] = []
        self.tops: list[TopLabels] = []
        self.floors: list[Floats] = []

    def add(self, corruption: str, severity: int, predictions: Predictions) -> None:
        rows = read(None, predictions.log_probs, predictions.labels)
        top = rows.top()
        floor = noise_floor(top, BINS, resamples=400)
        figures = bin_table(top, BINS).figures()
        self.tops.append(top)
        self.floors.append(floor)
        self.figures.append(
            {
                "corruption": corruption,
                "severity": severity,
                "accuracy": figures["accuracy"],
                "accuracy_interval": wilson(figures["accuracy"], len(top)).bounds,
                "mean_confidence": figures["mean_confidence"],
                "ece": figures["ece"],
                "floor_mean": float(floor.mean()),
                "nll": float(losses(rows).mean()),
            }
        )

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """ECE and accuracy of each set, resample by resample."""
        return joint_draws(self.tops, BINS)

    @cached_property
    def eces(self) -> Floats:
        return eces(self.tops, BINS)

    def each(self) -> list[CorruptedFigures]:
        draws, _ = self.drawn
        return [
            {**figures, "ece_interval": ece_interval(self.eces[i], draws[:, i], self.floors[i]).bounds}
            for i, figures in enumerate(self.figures)
        ]

    def mean(self, **which: Any) -> MeanFigures:
        """Over the sets with this corruption= or severity=; over all of them without."""
        chosen = [i for i, figures in enumerate(self.figures) if which.items() <= figures.items()]
        draws, right = self.drawn
        accuracy, ece = float(np.mean([self.figures[i]["accuracy"] for i in chosen])), float(self.eces[chosen].mean())
        # sorted, so that the noise of all sets is high together: they share their images
        floor = np.mean([np.sort(self.floors[i]) for i in chosen], axis=0)
        means: MeanFigures = {
            "sets": len(chosen),
            "accuracy": accuracy,
            "accuracy_interval": percentile(accuracy, right[:, chosen].mean(1)).bounds,
            "ece": ece,
            "ece_interval": ece_interval(ece, draws[:, chosen].mean(1), floor).bounds,
            "floor_mean": float(floor.mean()),
            "nll": float(np.mean([self.figures[i]["nll"] for i in chosen])),
        }
        return cast(MeanFigures, which | means)

    def pooled(self) -> PooledFigures:
        """All predictions as one set."""
        conf, right = torch.cat([top.conf for top in self.tops]), torch.cat([top.right for top in self.tops])
        top = TopLabels(conf, right, self.tops[0].dtype)
        return {"samples": len(top), "ece": bin_table(top, BINS).ece()}


def evaluate_shift(
    predictor: RunPredictor,
    names: Iterable[str] = (),
    published: bool = False,
    seed: int = 0,
    tick: Callable[[str, int], None] = lambda name, total: None,
) -> ShiftFigures:
    """Figures of a run on corruptions of its test images: made here, or the published files.

    `tick` is called with each set's name when it is done, and with the number of sets.
    """
    dataset = registry.dataset(predictor.run.recipe.task.dataset)
    names = tuple(names) or dataset.shift
    corrupted = _published(predictor) if published else _made(predictor, seed)
    keys = [(name, severity) for name in names for severity in SEVERITIES]
    sets = CorruptedSets()
    for name, severity in keys:
        made = PredictionFile.corrupted(name, severity, seed, VERSION)
        stem = PredictionFile.published(name, severity) if published else made
        sets.add(name, severity, predictor.predictions(stem, partial(corrupted, name, severity)))
        tick(f"{name} {severity}", len(keys))
    return {
        "images": len(sets.tops[0]),
        "bins": BINS,
        "from": "published files" if published else f"made from the test split, seed {seed}",
        "sets": sets.each(),
        "by_severity": [sets.mean(severity=severity) for severity in SEVERITIES],
        "by_corruption": [sets.mean(corruption=name) for name in names],
        "mean": sets.mean(),
        "pooled": sets.pooled(),
    }


def _made(predictor: RunPredictor, seed: int) -> Callable[[str, int], ImageSet]:
    def corrupted(name: str, severity: int) -> ImageSet:
        test = predictor.splits.test
        return ImageSet(corrupt(test.images.cpu(), name, severity, seed), test.labels)

    return corrupted


def _published(predictor: RunPredictor) -> Callable[[str, int], ImageSet]:
    name = predictor.run.recipe.task.dataset
    found = next((shift for shift in SHIFTS.values() if shift.of == name), None)
    if found is None:
        raise BalcalError(f"nobody has published corruptions of `{name}`: leave --published out, and they are made")
    return found.load
