"""Features of a trained network, as its classifiers see them.

- `read_head`, `read_all`: the input and the weights of each classifier of a head, logits = features @ weight.T + bias.
  The learnable classifier reads the pooled feature z. The ETF classifier reads the adapted one at unit length,
  A(z) / |A(z)|, and its weights are the columns of beta M. `tst` and `vtst` read their latent z (its mean).
- `over_epochs`: any measure, at every epoch whose weights were kept (`--keep-epochs`).
- `tsne`, `silhouette`: features in two dimensions (van der Maaten & Hinton, JMLR 2008), and how well classes separate.
  Distances between groups mean little in a t-SNE. The silhouette is of the features themselves: 1 is dense and far
  apart, 0 touching, below 0 mixed up.
- `activation_maps`, `fused_maps`: Grad-CAM (Selvaraju et al., ICCV 2017) of each branch, or of the fused prediction.
  With the last map F (C, H, W) of the backbone before pooling, and the branch's logit z_k of a class k:

      a_c = mean over places of dz_k / dF_c,    map = relu( sum_c a_c F_c )

  For a linear classifier on mean-pooled features a_c is w_kc / HW: the class activation map of Zhou et al. (CVPR 2016).
  The ETF classifier has an adapter and a norm behind the pooling, so that only the gradient gives a channel's weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from balcal.build import build
from balcal.core import BalcalError, Head, Outputs
from balcal.data.batches import Batches
from balcal.methods.balcal import BalancedHead, EtfHead
from balcal.methods.tst import TwoStageHead, VariationalHead
from balcal.methods.vanilla import LinearHead
from balcal.metrics.inputs import first_largest
from balcal.model import Model, evaluating
from balcal.runs import Run

LEARNABLE, ETF = "learnable", "etf"
PERPLEXITY = 30.0


@dataclass(frozen=True, eq=False)
class Reading:
    """Input of one classifier for N images, and its weights."""

    features: Tensor
    """(N, D)"""
    weight: Tensor
    """(K, D)"""
    bias: Tensor | None

    def logits(self) -> Tensor:
        return F.linear(self.features, self.weight, self.bias)


def read_head(head: Head, features: Tensor, feature_map: Tensor | None) -> dict[str, Reading]:
    """Of each classifier of a head, in the order of its branches."""
    found = {}
    if isinstance(head, LinearHead | BalancedHead):
        found[LEARNABLE] = Reading(features, head.classifier.weight, head.classifier.bias)
    elif isinstance(head, TwoStageHead | VariationalHead):
        found[LEARNABLE] = Reading(head.mean(features), head.classifier.weight, head.classifier.bias)
    if isinstance(head, EtfHead):
        seen = F.normalize(head.adapter(features, feature_map), dim=1)
        found[ETF] = Reading(seen, head.beta * head.etf.T, None)
    if not found:
        raise BalcalError(f"balcal.analysis.features does not know the classifiers of a {type(head).__name__}")
    return found


@torch.no_grad()
def read_all(model: Model, batches: Batches, limit: int | None = None) -> tuple[dict[str, Reading], Tensor]:
    """Of each classifier in eval mode, for all images or the first `limit` of them; and their labels."""
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
        raise BalcalError("there are no images: the loader is empty")
    whole = {
        name: Reading(
            torch.cat([part[name].features for part in parts])[:limit].cpu(),
            last.weight.detach().cpu(),
            None if last.bias is None else last.bias.detach().cpu(),
        )
        for name, last in parts[-1].items()
    }
    return whole, torch.cat(labels)[:limit].cpu()


def over_epochs(run: Run, measure: Callable[[Model], dict[str, Any]], device: torch.device) -> list[dict[str, Any]]:
    """Measure the model after each kept epoch; one record per epoch, counted from 1."""
    kept = run.kept()
    if len(kept) < min(2, run.recipe.task.plan.epochs):
        raise BalcalError(f"{run.path} kept the weights of one epoch only: train it with --keep-epochs 1")
    model = build(run.recipe, weights=False).to(device).eval()
    records = []
    for epoch in kept:
        model.load_state_dict(run.load_weights(epoch))
        records.append({"epoch": epoch + 1, **measure(model)})
    return records


def tsne(features: Tensor | NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """Coordinates (N, 2): the same for the same features and seed, on one machine."""
    from sklearn.manifold import TSNE

    if len(features) < 4:
        raise BalcalError(f"{len(features)} samples make no map: t-SNE needs at least 4")
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(
        np.asarray(features, dtype=np.float64)
    )
    return np.asarray(placed, dtype=np.float64)


def silhouette(features: Tensor, labels: Tensor) -> float:
    """Mean over images of (b - a) / max(a, b): a the mean distance to its own class, b to the nearest other one."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(features.double().numpy(), labels.numpy()))


def activation_maps(model: Model, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """Maps (B, N, H, W), one for each branch, of the given classes or of the predicted ones."""
    return _maps(model, images, classes, lambda outputs: outputs.logits)[0]


def fused_maps(model: Model, images: Tensor, classes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(maps (N, H, W) of log p_k instead of a branch's logit, the classes k, their probabilities)."""
    maps, outputs, chosen = _maps(model, images, classes, lambda outputs: outputs.log_probs()[None])
    return maps[0], chosen, outputs.log_probs().gather(1, chosen[:, None])[:, 0].exp().detach()


def _maps(
    model: Model, images: Tensor, classes: Tensor | None, scores: Callable[[Outputs], Tensor]
) -> tuple[Tensor, Outputs, Tensor]:
    with evaluating(model), torch.enable_grad():
        feature_map = model.map_of(images).detach().requires_grad_(True)
        if feature_map.ndim != 4:
            raise BalcalError(
                f"{type(model.backbone).__name__} has tokens and no feature map: there is nothing to draw"
            )
        features = model.pooled(feature_map)
        outputs: Outputs = model.head(features, feature_map if model.method.head.needs_map else None)
        chosen = first_largest(outputs.log_probs().detach()) if classes is None else classes.to(images.device)
        maps = []
        for table in scores(outputs):
            score = table.gather(1, chosen[:, None]).sum()  # in eval mode no image depends on another
            [slope] = torch.autograd.grad(score, feature_map, retain_graph=True)
            maps.append((slope.mean((2, 3), keepdim=True) * feature_map).sum(1).relu().detach())
    return torch.stack(maps), outputs, chosen


def breadth(maps: Tensor) -> Tensor:
    """The share of the image that a map (..., H, W) covers: 1 if even, 1/HW if it is one place, NaN if empty.

    (sum m)^2 / (HW sum m^2)

    >>> breadth(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]))
    tensor([0.5000])
    """
    places = maps.flatten(-2)
    return places.sum(-1).square() / (places.shape[-1] * places.square().sum(-1))
