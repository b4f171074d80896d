"""How each classifier of a head reads an image: the vector that it looks at, and its own vector for each class.

    logits = features @ weight.T + bias

The learnable classifier reads the pooled feature z. The ETF classifier reads the adapted one at unit length,
A(z) / |A(z)|, and its vectors are the columns of beta M. `tst` and `vtst` read their latent z (its mean).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError, Head
from balcal.data.batches import Batches
from balcal.methods.balcal import BalancedHead, EtfHead
from balcal.methods.tst import TwoStageHead, VariationalHead
from balcal.methods.vanilla import LinearHead
from balcal.model import Model, evaluating

LEARNABLE, ETF = "learnable", "etf"


@dataclass(frozen=True, eq=False)
class Reading:
    """What one classifier sees of N images, and what it holds against it."""

    features: Tensor
    """(N, D)"""
    weight: Tensor
    """(K, D)"""
    bias: Tensor | None

    def logits(self) -> Tensor:
        return F.linear(self.features, self.weight, self.bias)


def read_head(head: Head, features: Tensor, feature_map: Tensor | None) -> dict[str, Reading]:
    """The readings of a head's classifiers, in the order of its branches."""
    found = {}
    if isinstance(head, LinearHead | BalancedHead):
        found[LEARNABLE] = Reading(features, head.classifier.weight, head.classifier.bias)
    elif isinstance(head, TwoStageHead | VariationalHead):
        found[LEARNABLE] = Reading(head.mean(features), head.classifier.weight, head.classifier.bias)
    if isinstance(head, EtfHead):
        seen = F.normalize(head.adapter(features, feature_map), dim=1)
        found[ETF] = Reading(seen, head.beta * head.etf.T, None)
    if not found:
        raise BalcalError(f"nobody has said how a {type(head).__name__} reads features: see balcal.analysis.readings")
    return found


@torch.no_grad()
def read_all(model: Model, batches: Batches, limit: int | None = None) -> tuple[dict[str, Reading], Tensor]:
    """The readings of many images, as the model is in use, and their labels; the first so many, if there is a limit."""
    parts: list[dict[str, Reading]] = []
    labels: list[Tensor] = []
    with evaluating(model):
        for images, true in batches.epoch(0):
            feature_map, features = model.features(images)
            parts.append(read_head(model.head, features, feature_map if model.method.head.needs_map else None))
            labels.append(true)
            if limit is not None and sum(map(len, labels)) >= limit:
                break
    if not parts:
        raise BalcalError("there is nothing to look at: the loader is empty")
    whole = {
        name: Reading(
            torch.cat([part[name].features for part in parts])[:limit].cpu(),
            last.weight.detach().cpu(),
            None if last.bias is None else last.bias.detach().cpu(),
        )
        for name, last in parts[-1].items()
    }
    return whole, torch.cat(labels)[:limit].cpu()
