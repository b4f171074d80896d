"""How a run fares as its test images get worse: accuracy and ECE for each corruption and severity.

Every mean says what it is over. `by_severity`: over corruptions; `by_corruption`: over severities; `mean`: over both.
Means are of the sets' own ECEs; the ECE of all predictions pooled into one set, `pooled`, is another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from balcal import registry
from balcal.beyond.sitting import Sitting
from balcal.core import BalcalError
from balcal.data.corruptions import SEVERITIES, VERSION, corrupt
from balcal.data.images import ImageSet
from balcal.data.shifted import SHIFTS
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.joint import eces, joint_draws
from balcal.metrics.resample import Floats, around_ece, noise_floor, percentile, wilson
from balcal.metrics.scoring import losses

BINS = 15
Key = tuple[str, int]


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
    tops: list[TopLabels] = []
    sets: list[dict[str, Any]] = []
    floors: list[Floats] = []
    for name, severity in keys:
        stem = f"published-{name}-{severity}" if published else f"shift-{name}-{severity}-{seed}-v{VERSION}"
        told = sitting.predictions(stem, lambda key=(name, severity): corrupted(*key))  # type: ignore[misc]
        rows = read(None, told.log_probs, told.labels)
        tops.append(top := rows.top())
        floors.append(noise_floor(top, BINS, resamples=400))
        figures = bin_table(top, BINS).figures()
        sets.append(
            {
                "corruption": name,
                "severity": severity,
                "accuracy": figures["accuracy"],
                "accuracy_interval": wilson(figures["accuracy"], len(top)).bounds,
                "mean_confidence": figures["mean_confidence"],
                "ece": figures["ece"],
                "floor_mean": float(floors[-1].mean()),
                "nll": float(losses(rows).mean()),
            }
        )
        tick(f"{name} {severity}", len(keys))
    draws, right = joint_draws(tops, BINS)
    values = eces(tops, BINS)
    for number, told_set in enumerate(sets):
        told_set["ece_interval"] = around_ece(values[number], draws[:, number], floors[number]).bounds

    def mean(chosen: list[int], **about: Any) -> dict[str, Any]:
        accuracy, ece = float(np.mean([sets[i]["accuracy"] for i in chosen])), float(values[chosen].mean())
        # sorted, so that the noise of all sets is high together: they share their images
        floor = np.mean([np.sort(floors[i]) for i in chosen], axis=0)
        return {
            **about,
            "sets": len(chosen),
            "accuracy": accuracy,
            "accuracy_interval": percentile(accuracy, right[:, chosen].mean(1)).bounds,
            "ece": ece,
            "ece_interval": around_ece(ece, draws[:, chosen].mean(1), floor).bounds,
            "floor_mean": float(floor.mean()),
            "nll": float(np.mean([sets[i]["nll"] for i in chosen])),
        }

    def where(part: int, wanted: Any) -> list[int]:
        return [i for i, key in enumerate(keys) if key[part] == wanted]

    pooled = TopLabels(torch.cat([top.conf for top in tops]), torch.cat([top.right for top in tops]), tops[0].dtype)
    return {
        "images": len(tops[0]),
        "bins": BINS,
        "from": "published files" if published else f"made from the test split, seed {seed}",
        "sets": sets,
        "by_severity": [mean(where(1, severity), severity=severity) for severity in SEVERITIES],
        "by_corruption": [mean(where(0, name), corruption=name) for name in names],
        "mean": mean(list(range(len(keys)))),
        "pooled": {"samples": len(pooled), "ece": bin_table(pooled, BINS).ece()},
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
