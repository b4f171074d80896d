"""Müller, Kornblith, Hinton: When Does Label Smoothing Help? NeurIPS 2019. (First in Szegedy et al., CVPR 2016.)

    t = (1 - alpha) onehot(y) + alpha / K
    L = mean_i( -sum_k t_ik log p_ik ) = (1 - alpha) CE + alpha mean_ik( -log p_ik )

alpha = 0 is cross-entropy. The uniform part includes the label itself.

Paper and released code differ: the BalCAL paper says 0.05; its code uses 0.05 for one classifier and 0.03 for two. We
use 0.05 for both (`--set loss.alpha=0.03`). The MDCA repository spreads alpha over the K - 1 other classes; that is
this loss with alpha K / (K - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import check_settings, within


@dataclass(frozen=True)
class LabelSmoothing:
    """Cross-entropy with a share alpha of the label spread over all classes."""

    alpha: Annotated[float, within("[0, 1)")] = 0.05

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = at_least_float32(logits).log_softmax(1)
        ce = -log_p.gather(1, labels[:, None]).mean()
        return (1 - self.alpha) * ce - self.alpha * log_p.mean()


METHODS = {
    "ls": Method(
        "ls",
        loss=LabelSmoothing(),
        about="loss: label smoothing, alpha 0.05",
        when="Accuracy counts most, and a post-hoc method follows. It tends to make networks under-confident.",
        paper="Müller, Kornblith, Hinton",
        venue="NeurIPS 2019",
    )
}
