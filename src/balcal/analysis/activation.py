"""Where a classifier looks: Selvaraju et al., Grad-CAM, ICCV 2017, for each branch of a head.

With the backbone's last map F (C, H, W) before pooling, and the branch's logit z_k of a class k:

    a_c = mean over places of dz_k / dF_c,    map = relu( sum_c a_c F_c )

For a linear classifier on mean-pooled features a_c is w_kc / HW: the class activation map of Zhou et al. (CVPR 2016).
The ETF classifier has an adapter and a norm behind the pooling: there only the gradient says what a channel is worth,
so both branches are asked the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from balcal.core import Backbone, BalcalError, Outputs
from balcal.metrics.inputs import first_largest
from balcal.model import Model, evaluating


def activation_maps(model: Model, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """(B, N, H, W), one for each branch, of these classes or of those that the model predicts."""
    return _maps(model, images, classes, lambda outputs: outputs.logits)[0]


def fused_maps(model: Model, images: Tensor, classes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(maps (N, H, W) of log p_k instead of a branch's logit, the classes k, their probabilities)."""
    maps, outputs, chosen = _maps(model, images, classes, lambda outputs: outputs.log_probs()[None])
    return maps[0], chosen, outputs.log_probs().gather(1, chosen[:, None])[:, 0].exp().detach()


def _maps(
    model: Model, images: Tensor, classes: Tensor | None, scores: Callable[[Outputs], Tensor]
) -> tuple[Tensor, Outputs, Tensor]:
    backbone = cast(Backbone, model.backbone)
    with evaluating(model), torch.enable_grad():
        feature_map = backbone.forward_features(images).detach().requires_grad_(True)
        if feature_map.ndim != 4:
            raise BalcalError(f"{type(backbone).__name__} has tokens, no map of places: there is nothing to draw")
        features = backbone.forward_head(feature_map, pre_logits=True)
        outputs: Outputs = model.head(features, feature_map if model.method.head.needs_map else None)
        chosen = first_largest(outputs.log_probs().detach()) if classes is None else classes.to(images.device)
        maps = []
        for table in scores(outputs):
            score = table.gather(1, chosen[:, None]).sum()  # images do not touch each other in eval mode
            [slope] = torch.autograd.grad(score, feature_map, retain_graph=True)
            maps.append((slope.mean((2, 3), keepdim=True) * feature_map).sum(1).relu().detach())
    return torch.stack(maps), outputs, chosen


def breadth(maps: Tensor) -> Tensor:
    """How much of the image a map (..., H, W) covers: 1 if it is even, 1/HW if it is one place, NaN if it is empty.

    (sum m)^2 / (HW sum m^2)

    >>> breadth(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]]))
    tensor([0.5000])
    """
    places = maps.flatten(-2)
    return places.sum(-1).square() / (places.shape[-1] * places.square().sum(-1))
