"""Pereyra, Tucker, Chorowski, Kaiser, Hinton: Regularizing Neural Networks by Penalizing Confident Output
Distributions. ICLR 2017 workshop.

    L = CE - alpha mean_ik( -p_ik log p_ik )

alpha = 0 is cross-entropy.

Paper and released code differ: the paper subtracts the entropy, a sum over classes; the code takes the mean over
classes as here, so the paper's alpha is alpha K here. The code clamps p to [1e-10, 1 - 1e-10]; with log p from
log-softmax there is nothing to clamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class ConfidencePenalty:
    """Cross-entropy minus a share of the entropy."""

    alpha: Annotated[float, at_least(0)] = 0.1

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = at_least_float32(logits).log_softmax(1)
        ce = -log_p.gather(1, labels[:, None]).mean()
        return ce + self.alpha * (log_p.exp() * log_p).mean()


METHODS = {
    "ecp": Method(
        "ecp",
        loss=ConfidencePenalty(),
        about="loss: - a share of the entropy",
        when="You want a mild penalty on confidence that is easy to explain.",
        paper="Pereyra, Tucker, Chorowski, Kaiser, Hinton",
        venue="ICLR 2017 w.",
    )
}
