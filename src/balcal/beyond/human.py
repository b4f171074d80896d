"""How far a run's probabilities are from what people saw in its test images."""

from __future__ import annotations

from typing import Any

import torch

from balcal import registry
from balcal.beyond.sitting import Sitting
from balcal.core import BalcalError
from balcal.metrics.scoring import soft_kl, soft_nll


def evaluate_human(sitting: Sitting) -> dict[str, Any]:
    """Cross-entropy and divergence to people's shares, beside what the shares themselves would score."""
    dataset = registry.dataset(sitting.run.recipe.task.dataset)
    shares = dataset.soft_labels()
    told = sitting.test()
    if len(shares) != len(told.labels):
        raise BalcalError(
            f"people were asked about {len(shares):,} images, and `{dataset.name}` has {len(told.labels):,} to judge"
        )
    probs = told.log_probs.double().exp()
    sure, people_sure = probs.amax(1), shares.amax(1)
    return {
        "images": len(shares),
        "cross_entropy": soft_nll(log_probs=told.log_probs, soft_labels=shares),
        "kl": soft_kl(log_probs=told.log_probs, soft_labels=shares),
        "people": {
            "entropy": float(-torch.xlogy(shares, shares).sum(1).mean()),
            "mean_share_of_first_choice": float(people_sure.mean()),
            "first_choice_is_label": float((shares.argmax(1) == told.labels).double().mean()),
        },
        "mean_confidence": float(sure.mean()),
    }
