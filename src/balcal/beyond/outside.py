"""Does a run notice images that it should not know? Its test split against sets from elsewhere, one at a time.

Scores, higher for what looks known: `confidence` (the largest probability), `entropy` (its negative) and, where the
model has logits (one classifier, or logits fused), `energy` (the log of the sum of their exponentials, before any
post-hoc map).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balcal import registry
from balcal.beyond.sitting import Sitting
from balcal.core import BalcalError, Outputs, Predictions
from balcal.data.images import ImageSet
from balcal.evaluate import batches_of
from balcal.metrics.detection import aupr_in, aupr_out, auroc, fpr95
from balcal.metrics.inputs import read
from balcal.metrics.resample import percentile
from balcal.metrics.scoring import entropies
from balcal.randomness import own_randomness

RESAMPLES = 200
NEAR = 4
"""an image that is smaller by no more than this is padded, not stretched"""


def evaluate_outside(sitting: Sitting, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Detection figures for each outside set, each on its own, then their mean."""
    dataset = registry.dataset(sitting.run.recipe.task.dataset)
    names = tuple(names if names is not None else dataset.ood)
    if not names:
        raise BalcalError(f"no outside sets are known for {dataset.name}: name some, `--ood svhn,cifar100`")
    known = sitting.splits.test
    inside = _scored(sitting, "inside", known)
    sets = {}
    for name in names:
        _, test = registry.dataset(name).load()
        sets[name] = _told(inside, _scored(sitting, f"outside-{name}", fitted_to(test, known)))
    scores = {score for told in sets.values() for score in told["scores"]}
    mean = {
        score: {figure: float(np.mean([told["scores"][score][figure] for told in sets.values()])) for figure in FIGURES}
        for score in sorted(scores)
    }
    return {"inside": dataset.name, "images": len(known), "sets": sets, "mean": {"over": list(sets), "scores": mean}}


FIGURES = {"auroc": auroc, "fpr95": fpr95, "aupr_in": aupr_in, "aupr_out": aupr_out}
Scored = dict[str, Tensor]


def _told(inside: Scored, outside: Scored) -> dict[str, Any]:
    told: dict[str, Any] = {
        "images": len(outside["confidence"]),
        "mean_confidence": float(outside["confidence"].mean()),
        "mean_entropy": float(-outside["entropy"].mean()),
        "scores": {},
    }
    for score in inside:
        pair = (inside[score].numpy(), outside[score].numpy())
        values = {name: figure(scores_in=pair[0], scores_out=pair[1]) for name, figure in FIGURES.items()}
        told["scores"][score] = values | {"auroc_interval": _interval(*pair, values["auroc"])}
    return told


def _interval(inside: Any, outside: Any, value: float) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = [
        auroc(scores_in=rng.choice(inside, len(inside)), scores_out=rng.choice(outside, len(outside)))
        for _ in range(RESAMPLES)
    ]
    return percentile(value, np.array(draws)).bounds


def _scored(sitting: Sitting, name: str, part: ImageSet) -> Scored:
    """Scores of each image. Predictions are stored in the run; energies are stored as predictions of one column."""
    told = sitting.predictions(name, lambda: part)
    rows = read(None, told.log_probs, told.labels)
    scores = {"confidence": rows.top().conf, "entropy": -entropies(rows)}
    stem = f"{name}-energy{sitting.suffix}"
    kept = sitting.run.load_predictions(stem)
    if kept is None:
        kept = Predictions(_energies(sitting, part), torch.zeros(len(part), dtype=torch.long), name)
        sitting.run.save_predictions(stem, kept)
    if kept.log_probs.numel():
        scores["energy"] = kept.log_probs[:, 0].double()
    return scores


@torch.no_grad()
def _energies(sitting: Sitting, part: ImageSet) -> Tensor:
    """(N, 1), or nothing where the branches are fused as probabilities and there are no logits."""
    told = []
    model = sitting.model.eval()
    with own_randomness():
        for x, _ in batches_of(sitting.run, part, sitting.device).epoch(0):
            outputs: Outputs = model(x, branches=True)
            if len(outputs.weights) > 1 and outputs.fusion == "probs":
                return torch.empty(0, 1)
            told.append(torch.einsum("b,bnk->nk", outputs.weights, outputs.logits).logsumexp(1, keepdim=True).cpu())
    return torch.cat(told)


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
