"""Tao, Dong, Xu: Dual Focal Loss for Calibration. ICML 2023.

    L = mean_i( -(1 - p_y + p_j)^gamma log p_y ),   p_j the largest probability strictly below p_y (0 if there is none)

p_j is differentiated. Where the prediction is wrong p_j is the runner-up *below* the label, not the top class, so the
base stays within [0, 1). A class that ties with the label does not count as below it.

Paper and released code differ: the paper picks gamma per model; the code's default is gamma = 0 and a sum over the
batch, which is plain summed cross-entropy; public scripts use 5 for images. BalCAL does not say which it used. We use
5 and the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from balcal.core import at_least_float32
from balcal.methods.fl import missing
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class DualFocal:
    """Focal loss that also looks at the class next below the label."""

    gamma: Annotated[float, at_least(0)] = 5.0

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = at_least_float32(logits).log_softmax(1)
        p, label = log_p.exp(), labels[:, None]
        p_y = p.gather(1, label)  # from the tensor it is compared with: another way of rounding would tie with itself
        p_j = p.where(p < p_y, 0.0).amax(1, keepdim=True)
        return -(missing(p_y - p_j) ** self.gamma * log_p.gather(1, label)).mean()


METHODS = {
    "dualfocal": Method(
        "dualfocal",
        loss=DualFocal(),
        about="loss: focal on the lead over the next class",
        when="As `fl`, where that makes a network under-confident.",
        paper="Tao, Dong, Xu",
        venue="ICML 2023",
    )
}
