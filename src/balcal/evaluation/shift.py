"""How a run fares as its test images get worse: accuracy and ECE for each corruption and severity.

Every mean says what it is over. `by_severity`: over corruptions; `by_corruption`: over severities; `mean`: over both.
Means are of the sets' own ECEs; the ECE of all predictions pooled into one set, `pooled`, is another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.data.corruptions import SEVERITIES, VERSION, corrupt
from balcal.data.dataset import ImageSet
from balcal.data.published_corruptions import SHIFTS
from balcal.evaluation.other_images import Sitting
from balcal.metrics.bins import bin_table
from balcal.metrics.bootstrap import Floats, ece_interval, eces, joint_draws, noise_floor, percentile, wilson
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.scoring import losses
from balcal.runtime.provenance import PredictionFile

BINS = 15


class Sets:
    """Figures of corrupted sets, one by one and in the mean. They share their images and are resampled together."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        self.tops: list[TopLabels] = []
        self.floors: list[Floats] = []

    def add(self, corruption: str, severity: int, told: Predictions) -> None:
        rows = read(None, told.log_probs, told.labels)
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

    def each(self) -> list[dict[str, Any]]:
        draws, _ = self.drawn
        return [
            {**figures, "ece_interval": ece_interval(self.eces[i], draws[:, i], self.floors[i]).bounds}
            for i, figures in enumerate(self.figures)
        ]

    def mean(self, **which: Any) -> dict[str, Any]:
        """Over the sets of which this is true; over all of them if nothing is said."""
        chosen = [i for i, told in enumerate(self.figures) if which.items() <= told.items()]
        draws, right = self.drawn
        accuracy, ece = float(np.mean([self.figures[i]["accuracy"] for i in chosen])), float(self.eces[chosen].mean())
        # sorted, so that the noise of all sets is high together: they share their images
        floor = np.mean([np.sort(self.floors[i]) for i in chosen], axis=0)
        return {
            **which,
            "sets": len(chosen),
            "accuracy": accuracy,
            "accuracy_interval": percentile(accuracy, right[:, chosen].mean(1)).bounds,
            "ece": ece,
            "ece_interval": ece_interval(ece, draws[:, chosen].mean(1), floor).bounds,
            "floor_mean": float(floor.mean()),
            "nll": float(np.mean([self.figures[i]["nll"] for i in chosen])),
        }

    def pooled(self) -> dict[str, Any]:
        conf, right = torch.cat([top.conf for top in self.tops]), torch.cat([top.right for top in self.tops])
        all_of_them = TopLabels(conf, right, self.tops[0].dtype)
        return {"samples": len(all_of_them), "ece": bin_table(all_of_them, BINS).ece()}


def evaluate_shift(
    sitting: Sitting,
    names: Iterable[str] = (),
    published: bool = False,
    seed: int = 0,
    tick: Callable[[str, int], None] = lambda name, total: None,
) -> dict[str, Any]:
    """Tables of a run under corruption, made from its own test images; or under the published ones, found on disk.

    `tick` is told of each set as it is done, and of how many there are.
    """
    dataset = registry.dataset(sitting.run.recipe.task.dataset)
    names = tuple(names) or dataset.shift
    corrupted = _published(sitting) if published else _made(sitting, seed)
    keys = [(name, severity) for name in names for severity in SEVERITIES]
    sets = Sets()
    for name, severity in keys:
        made = PredictionFile.corrupted(name, severity, seed, VERSION)
        stem = PredictionFile.published(name, severity) if published else made
        sets.add(name, severity, sitting.predictions(stem, partial(corrupted, name, severity)))
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


def _made(sitting: Sitting, seed: int) -> Callable[[str, int], ImageSet]:
    def corrupted(name: str, severity: int) -> ImageSet:
        test = sitting.splits.test
        return ImageSet(corrupt(test.images.cpu(), name, severity, seed), test.labels)

    return corrupted


def _published(sitting: Sitting) -> Callable[[str, int], ImageSet]:
    name = sitting.run.recipe.task.dataset
    found = next((shift for shift in SHIFTS.values() if shift.of == name), None)
    if found is None:
        raise BalcalError(f"nobody has published corruptions of `{name}`: leave --published out, and they are made")
    return found.load
