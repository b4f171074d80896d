"""Lin, Goyal, Girshick, He, Dollár: Focal Loss for Dense Object Detection. ICCV 2017.

    L = mean_i( -(1 - p_y)^gamma log p_y )

gamma = 0 is cross-entropy. The gradient flows through the factor as well. Any gamma >= 0 is safe: for 0 < gamma < 1
the factor has an infinite slope at p_y = 1, so 1 - p_y is kept above zero.

On an ETF classifier with beta = 1 p_y cannot exceed 0.25 (K = 10) or 0.027 (K = 100), so there the factor is nearly
constant, and the focal loss nearly a rescaled cross-entropy.

Paper and released code differ: Mukhoti et al. (NeurIPS 2020), who found that it calibrates, sum over the batch and
clip gradients at norm 2; here it is the mean, as in BalCAL's code. A clipped sum is another optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Focal:
    """Cross-entropy with less weight for samples that are right already."""

    gamma: Annotated[float, at_least(0)] = 3.0

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = at_least_float32(logits).log_softmax(1).gather(1, labels[:, None])[:, 0]
        return -(missing(log_p.exp()) ** self.gamma * log_p).mean()


def missing(p: Tensor) -> Tensor:
    """1 - p, just above zero at p = 1: no power of it then has an infinite slope."""
    return (1 - p).clamp(min=torch.finfo(p.dtype).tiny)


METHODS = {
    "fl": Method(
        "fl",
        loss=Focal(),
        about="loss: focal, gamma 3",
        when="An over-confident network that you train from scratch; add `ts`, as it tends to under-confidence.",
        paper="Lin, Goyal, Girshick, He, Dollár",
        venue="ICCV 2017",
    )
}
