"""Park, Noh, Oh, Baek, Ham: ACLS: Adaptive and Conditional Label Smoothing for Network Calibration. ICCV 2023.

With z_max = max_k z_k, sg = held constant for the gradient, and M the margin:

    L   = CE + alpha reg
    reg = lambda1 mean_i( sum over top k of max(0, z_max - M)^2 )
        + lambda2 mean_i( 1/(K-1) sum over other k of max(0, sg(z_max) - z_k - M)^2 )

"top" is the predicted class, whatever the label; tied maxima are all top, with the gradient on the first.
While no logit is further than M / 2 from 0 this is plain cross-entropy: so it is, always, on an ETF classifier with
beta = 1. With beta = K that classifier's logits reach K, and for K = 100 the first part alone is (100 - 10)^2: do not
combine the two.

The first part is quadratic and in absolute logits: adding a constant to all logits changes it.

Paper and released code differ: the paper's first part is max(0, z_max - min_k z_k - M)^2 (positive=range, with the
minimum held constant as the maximum is in the second part); the code's is the one above (positive=absolute, the
default). The BalCAL paper has M = 6 on CIFAR-10 and 10 elsewhere, its code 10 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor
from torch.nn import functional as F

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Acls:
    """Cross-entropy, and a pull on logits that stand out too far."""

    alpha: Annotated[float, at_least(0)] = 0.1
    lambda1: Annotated[float, at_least(0)] = 1.0
    lambda2: Annotated[float, at_least(0)] = 0.1
    margin: float = 10.0
    positive: Literal["absolute", "range"] = "absolute"

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    @property
    def idle_within(self) -> float:
        """Two logits in [-M/2, M/2] are no further apart than M."""
        return self.margin / 2

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        z_max, _ = z.max(1, keepdim=True)
        top = z == z_max
        floor = z.detach().amin(1, keepdim=True) if self.positive == "range" else 0.0
        above = (top * F.relu(z_max - floor - self.margin).square()).sum(1)
        below = (~top * F.relu(z_max.detach() - z - self.margin).square()).sum(1) / (z.shape[1] - 1)
        reg = self.lambda1 * above.mean() + self.lambda2 * below.mean()
        return F.cross_entropy(z, labels) + self.alpha * reg


METHODS = {
    "acls": Method(
        "acls",
        loss=Acls(),
        about="loss: + squared excess of logits over 10",
        when="You train from scratch, and want only large logits held back. Not with `balcal-k`.",
        paper="Park, Noh, Oh, Baek, Ham",
        venue="ICCV 2023",
    )
}
