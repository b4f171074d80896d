"""Out-of-distribution detection: a run's test split against other data sets, one at a time.

Scores, higher for in-distribution images: `confidence` (the largest probability), `entropy` (its negative) and, where
the model has logits (one classifier, or fused logits), `energy` (their log-sum-exp, before any post-hoc map). A joined
run has two more: `mutual_information` (its negative: how much the members' predictions differ) and `disagreement` (its
negative: the share of pairs of members that name different classes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.data.dataset import ImageSet
from balcal.data.own_images import is_own_images
from balcal.data.splits import digest
from balcal.evaluation.members import disagreement, mutual_information
from balcal.evaluation.other_images import RunPredictor
from balcal.metrics.bootstrap import percentile
from balcal.metrics.detection import DETECTION_METRICS, detection_draws
from balcal.metrics.inputs import read
from balcal.metrics.scoring import entropies
from balcal.runtime.provenance import PredictionFile

NEAR = 4
"""an image that is smaller by no more than this is padded, not stretched"""
Scores = dict[str, Tensor]
"""one score per image, by name"""


class OodSet(TypedDict):
    """Detection of one OOD set."""

    images: int
    mean_confidence: float
    mean_entropy: float
    scores: dict[str, dict[str, Any]]
    """by score: AUROC, FPR95, ... and an interval for each"""
    predictions: str
    """the file of its predictions in the run"""
    title: NotRequired[str]
    """what the images are called, if not as the data set: "SVHN, rebuilt"
    """


class OodMean(TypedDict):
    over: list[str]
    scores: dict[str, dict[str, float]]


class OodFigures(TypedDict):
    """What `evaluate_ood` returns, as ood.json has it. `inside` names the run's own data set."""

    inside: str
    images: int
    mean_confidence: float
    mean_entropy: float
    sets: dict[str, OodSet]
    mean: OodMean
    missing: dict[str, str]
    """OOD sets of the catalog that are not on this machine, and why"""


def evaluate_ood(
    predictor: RunPredictor, names: Iterable[str] = (), tick: Callable[[str, int], None] = lambda name, total: None
) -> OodFigures:
    """Detection figures for each OOD set by itself, and their mean; `tick` is called when a set is done."""
    dataset = registry.dataset(predictor.run.recipe.task.dataset)
    named = tuple(names)
    names, missing = (named, {}) if named else _available(dataset.ood)
    if missing and not names:
        raise BalcalError("; ".join(missing.values()))
    if not names:
        raise BalcalError(f"no OOD sets are known for `{dataset.name}`: name some, `--against svhn,cifar100`")
    if dataset.name in names:
        raise BalcalError(f"`{dataset.name}` cannot be out-of-distribution for itself: leave it out of --against")
    test = _scores(predictor, PredictionFile.TEST, lambda: predictor.splits.test, predictor.test())
    sets: dict[str, OodSet] = {}
    for name in names:
        images = partial(_ood_images, name, predictor)
        stem = PredictionFile.ood(digest(images()) if is_own_images(name) else name)
        sets[name] = _detection(test, _scores(predictor, stem, images, predictor.predictions(stem, images)), stem)
        if title := registry.dataset(name).title:
            sets[name]["title"] = title
        tick(name, len(names))
    mean = {
        score: {
            figure: float(np.mean([one["scores"][score][figure] for one in sets.values()]))
            for figure in DETECTION_METRICS
        }
        for score in test
    }
    return {
        "inside": dataset.name,
        "images": len(test["confidence"]),
        "mean_confidence": float(test["confidence"].mean()),
        "mean_entropy": float(-test["entropy"].mean()),
        "sets": sets,
        "mean": {"over": list(sets), "scores": mean},
        "missing": missing,
    }


def _available(names: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The data sets that can be loaded, and why the others cannot."""
    here, missing = [], {}
    for name in names:
        try:
            registry.dataset(name).load()
            here.append(name)
        except BalcalError as error:
            missing[name] = str(error)
    return tuple(here), missing


def _ood_images(name: str, predictor: RunPredictor) -> ImageSet:
    return fitted_to(registry.dataset(name).load()[1], predictor.splits.test)


def _detection(test: Scores, ood: Scores, stem: str) -> OodSet:
    figures: OodSet = {
        "images": len(ood["confidence"]),
        "mean_confidence": float(ood["confidence"].mean()),
        "mean_entropy": float(-ood["entropy"].mean()),
        "scores": {},
        "predictions": stem,
    }
    for score in test:
        values = {
            name: figure(scores_in=test[score], scores_out=ood[score]) for name, figure in DETECTION_METRICS.items()
        }
        draws = detection_draws(scores_in=test[score], scores_out=ood[score])
        intervals = {f"{name}_interval": percentile(values[name], draws[name]).bounds for name in DETECTION_METRICS}
        figures["scores"][score] = values | intervals
    return figures


def _scores(predictor: RunPredictor, name: str, images: Callable[[], ImageSet], predictions: Predictions) -> Scores:
    rows = read(None, predictions.log_probs, predictions.labels)
    scores = {"confidence": rows.top().conf, "entropy": -entropies(rows)}
    energies, members = predictor.energies(name, images), predictor.of_members(name, images)
    scores |= {} if energies is None else {"energy": energies}
    if members is not None:
        scores |= {"mutual_information": -mutual_information(members), "disagreement": -disagreement(members)}
    return scores


def fitted_to(part: ImageSet, like: ImageSet) -> ImageSet:
    """Images in the size and colours of others: padded if they are a little smaller, else resized.

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
    labels = torch.zeros(len(images), dtype=torch.long)  # unused: the images show none of the classes
    return ImageSet(images, labels)
