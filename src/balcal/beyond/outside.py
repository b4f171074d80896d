"""Does a run notice images that it should not know? Its test split against sets from elsewhere, one at a time.

Scores, higher for what looks known: `confidence` (the largest probability), `entropy` (its negative) and, where the
model has logits (one classifier, or logits fused), `energy` (the log of the sum of their exponentials, before any
post-hoc map).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balcal import registry
from balcal.beyond.sitting import Sitting
from balcal.core import BalcalError, Predictions
from balcal.data.foreign import is_foreign
from balcal.data.images import ImageSet
from balcal.data.roles import digest
from balcal.metrics.detection import FIGURES, detection_draws
from balcal.metrics.inputs import read
from balcal.metrics.resample import percentile
from balcal.metrics.scoring import entropies

NEAR = 4
"""an image that is smaller by no more than this is padded, not stretched"""


def evaluate_outside(
    sitting: Sitting, names: Iterable[str] = (), tick: Callable[[str, int], None] = lambda name, total: None
) -> dict[str, Any]:
    """Detection figures for each outside set, each on its own, then their mean; `tick` is told of each one done."""
    dataset = registry.dataset(sitting.run.recipe.task.dataset)
    asked = tuple(names)
    names, missing = (asked, {}) if asked else _at_hand(dataset.ood)
    if missing and not names:
        raise BalcalError("; ".join(missing.values()))
    if not names:
        raise BalcalError(f"no outside sets are known for `{dataset.name}`: name some, `--against svhn,cifar100`")
    if dataset.name in names:
        raise BalcalError(f"`{dataset.name}` cannot be outside of itself: leave it out of --against")
    inside = _scored(sitting, "test", lambda: sitting.splits.test, sitting.test())
    sets = {}
    for name in names:
        images = partial(_outside, name, sitting)
        stem = f"outside-{digest(images()) if is_foreign(name) else name}"
        sets[name] = _told(inside, _scored(sitting, stem, images, sitting.predictions(stem, images)))
        sets[name]["predictions"] = stem
        if title := registry.dataset(name).title:
            sets[name]["title"] = title
        tick(name, len(names))
    mean = {
        score: {figure: float(np.mean([told["scores"][score][figure] for told in sets.values()])) for figure in FIGURES}
        for score in inside
    }
    return {
        "inside": dataset.name,
        "images": len(inside["confidence"]),
        "mean_confidence": float(inside["confidence"].mean()),
        "mean_entropy": float(-inside["entropy"].mean()),
        "sets": sets,
        "mean": {"over": list(sets), "scores": mean},
        "missing": missing,
    }


def _at_hand(names: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Those of the partners that can be had, and why the others cannot."""
    here, missing = [], {}
    for name in names:
        try:
            registry.dataset(name).load()
            here.append(name)
        except BalcalError as error:
            missing[name] = str(error)
    return tuple(here), missing


def _outside(name: str, sitting: Sitting) -> ImageSet:
    return fitted_to(registry.dataset(name).load()[1], sitting.splits.test)


Scored = dict[str, Tensor]


def _told(inside: Scored, outside: Scored) -> dict[str, Any]:
    told: dict[str, Any] = {
        "images": len(outside["confidence"]),
        "mean_confidence": float(outside["confidence"].mean()),
        "mean_entropy": float(-outside["entropy"].mean()),
        "scores": {},
    }
    for score in inside:
        values = {name: figure(scores_in=inside[score], scores_out=outside[score]) for name, figure in FIGURES.items()}
        draws = detection_draws(scores_in=inside[score], scores_out=outside[score])
        intervals = {f"{name}_interval": percentile(values[name], draws[name]).bounds for name in FIGURES}
        told["scores"][score] = values | intervals
    return told


def _scored(sitting: Sitting, name: str, images: Callable[[], ImageSet], told: Predictions) -> Scored:
    rows = read(None, told.log_probs, told.labels)
    scores = {"confidence": rows.top().conf, "entropy": -entropies(rows)}
    energies = sitting.energies(name, images)
    return scores if energies is None else scores | {"energy": energies}


def fitted_to(part: ImageSet, like: ImageSet) -> ImageSet:
    """Images in the size and colours of others: padded if they are a little smaller, else stretched or shrunk.

    >>> grey = ImageSet(torch.zeros(2, 28, 28, 1, dtype=torch.uint8), torch.zeros(2))
    >>> fitted_to(grey, ImageSet(torch.zeros(1, 32, 32, 3, dtype=torch.uint8), torch.zeros(1))).images.shape
    torch.Size([2, 32, 32, 3])
    """
    images, side = part.images, like.images.shape[1]
    if images.shape[3] != like.images.shape[3]:
        luma = images.float() @ torch.tensor([0.299, 0.587, 0.114]) if images.shape[3] == 3 else images[..., 0].float()
        images = luma.round().to(torch.uint8)[..., None].expand(-1, -1, -1, like.images.shape[3]).contiguous()
    gap = side - images.shape[1]
    if 0 < gap <= NEAR:
        images = F.pad(images, (0, 0, gap // 2, gap - gap // 2, gap // 2, gap - gap // 2))
    elif gap:
        planes = images.permute(0, 3, 1, 2).float()
        resized = F.interpolate(planes, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
        images = resized.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    labels = torch.zeros(len(images), dtype=torch.long)  # whatever they show, it is none of the classes
    return ImageSet(images, labels)
