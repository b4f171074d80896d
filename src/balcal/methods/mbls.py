"""Liu, Ben Ayed, Galdran, Dolz: The Devil is in the Margin: Margin-based Label Smoothing for Network Calibration.
CVPR 2022.

    L = CE + alpha mean_ik( max(0, max_j z_ij - z_ik - m) )

The maximum is differentiated. Adding a constant to all logits changes nothing. While no logit is further than m / 2
from 0 this is plain cross-entropy: so it is, always, on an ETF classifier with beta = 1.

Paper and released code differ: the paper sums over classes, the code takes the mean as here, so the paper's alpha is
alpha K here. BalCAL's code has m = 6; the authors' own setting, and ours, is m = 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Mbls:
    """Cross-entropy, and a pull on logits that lie further than a margin below the top one."""

    margin: float = 10.0
    alpha: Annotated[float, at_least(0)] = 0.1

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    @property
    def idle_within(self) -> float:
        """Two logits in [-m/2, m/2] are no further apart than m."""
        return self.margin / 2

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        excess = F.relu(z.amax(1, keepdim=True) - z - self.margin)
        return F.cross_entropy(z, labels) + self.alpha * excess.mean()


METHODS = {
    "mbls": Method(
        "mbls",
        loss=Mbls(),
        about="loss: + excess of logit distances over 10",
        when="As `ls`, where logits should only be bounded: logits within the margin are left alone.",
        paper="Liu, Ben Ayed, Galdran, Dolz",
        venue="CVPR 2022",
    )
}
