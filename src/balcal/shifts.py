"""How a run fares as its test images get worse: accuracy and ECE for each corruption and severity.

Every mean says what it is over. `by_severity`: over corruptions; `by_corruption`: over severities; `mean`: over both.
Means are of per-set ECEs; the ECE of all predictions pooled into one set, `pooled`, is another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from balcal.data.corruptions import CORRUPTIONS, corrupt
from balcal.data.images import ImageSet
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.joint import eces, joint_draws
from balcal.metrics.resample import around_ece, noise_floor, percentile, wilson
from balcal.metrics.scoring import losses
from balcal.sittings import Sitting

SEVERITIES = (1, 2, 3, 4, 5)


def evaluate_shift(
    sitting: Sitting, names: Iterable[str] = CORRUPTIONS, tick: Callable[[str], None] = lambda _: None, seed: int = 0
) -> dict[str, Any]:
    """Tables of a run under corruption. `tick` is told of each set as it is done."""
    names, test = tuple(names), sitting.splits.test
    clean = test.images.cpu().numpy()
    keys = [(name, severity) for name in names for severity in SEVERITIES]
    tops: dict[tuple[str, int], TopLabels] = {}
    sets, floors = [], []
    for name, severity in keys:

        def worse(name: str = name, severity: int = severity) -> ImageSet:
            return ImageSet(torch.from_numpy(np.asarray(corrupt(clean, name, severity, seed))), test.labels)

        told = sitting.predictions(f"shift-{name}-{severity}", worse)
        rows = read(None, told.log_probs, told.labels)
        tops[name, severity] = top = rows.top()
        table = bin_table(top, 15).figures()
        floors.append(noise_floor(top, resamples=400))
        sets.append(
            {
                "corruption": name,
                "severity": severity,
                "accuracy": table["accuracy"],
                "accuracy_interval": wilson(table["accuracy"], len(top)).bounds,
                "mean_confidence": table["mean_confidence"],
                "ece": table["ece"],
                "floor_high": float(np.quantile(floors[-1], 0.975)),
                "nll": float(losses(rows).mean()),
            }
        )
        tick(f"{name} {severity}")
    draws, right = joint_draws([tops[key] for key in keys])
    values = eces([tops[key] for key in keys])
    for number, (told_set, floor) in enumerate(zip(sets, floors, strict=True)):
        told_set["ece_interval"] = around_ece(values[number], draws[:, number], floor).bounds

    def mean(chosen: list[int], **about: Any) -> dict[str, Any]:
        accuracy, ece = float(np.mean([sets[i]["accuracy"] for i in chosen])), float(values[chosen].mean())
        return {
            **about,
            "sets": len(chosen),
            "accuracy": accuracy,
            "accuracy_interval": percentile(accuracy, right[:, chosen].mean(1)).bounds,
            "ece": ece,
            "ece_interval": around_ece(ece, draws[:, chosen].mean(1), np.zeros(1)).bounds,
        }

    def where(part: int, wanted: Any) -> list[int]:
        return [i for i, key in enumerate(keys) if key[part] == wanted]

    pooled = TopLabels(*(torch.cat([getattr(top, part) for top in tops.values()]) for part in ("conf", "right")))
    return {
        "images": len(test),
        "bins": 15,
        "seed": seed,
        "sets": sets,
        "by_severity": [mean(where(1, s), severity=s) for s in SEVERITIES],
        "by_corruption": [mean(where(0, name), corruption=name) for name in names],
        "mean": mean(list(range(len(keys)))),
        "pooled": {"samples": len(pooled), "ece": bin_table(pooled, 15).ece()},
    }
