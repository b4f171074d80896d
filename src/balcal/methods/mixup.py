"""Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018.

    lambda ~ Beta(alpha, alpha), once per batch; pi a permutation of the batch
    x' = lambda x + (1 - lambda) x[pi]
    L  = lambda Loss(z', y) + (1 - lambda) Loss(z', y[pi])

For losses linear in the label (CE, LS, FL) that is the loss of the mixed label; for others (CPC, MMCE, ESD) it is the
loss once per set of labels. alpha = 0 mixes nothing; a batch of one mixes with itself. Strong mixing makes networks
under-confident: with BalCAL use `balcal-k+mixup`, or `balcal+mixup` for alpha <= 0.1.

Draws come from the generator that is passed in, a function of seed, epoch and step: runs with one seed mix the same
pairs. With several processes lambda is the same for all, and each mixes within its own part of the batch.

A tally (BalCAL's gamma) needs samples with one label each. counted=clean: the unmixed batch gets one more forward pass
per step, in eval mode and without gradient. counted=dominant: the mixed batch with the labels of the larger share. That
is free, but confidence and accuracy are those of mixed images, on which a network is under-confident: on `fashion`
gamma then stays at 1 from the first epoch on, and `balcal-k+mixup` is `mixup`.

Paper and released code differ: the authors' code draws lambda and pi from two global generators. The MIT repository
folds lambda to max(lambda, 1 - lambda); this does not. BalCAL's code ignores mixup when there are two classifiers, so
what its Mixup + BalCAL row counted is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from balcal.core import BalcalError, Outputs, Resolve, Term
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Mixup:
    """Each image with a share of another one, and the loss of both labels."""

    alpha: Annotated[float, at_least(0)] = 0.2
    counted: Literal["clean", "dominant"] = "clean"
    """what a tally counts"""

    def __post_init__(self) -> None:
        check_settings(self, "mix")

    def __call__(self, images: Tensor, labels: Tensor, rng: Generator) -> tuple[Tensor, Resolve]:
        lam = draw_beta(self.alpha, rng) if self.alpha else 1.0
        pi = torch.randperm(len(images), generator=rng).to(images.device)
        first, second = (self.counted == "dominant" and dominant for dominant in (lam >= 0.5, lam < 0.5))

        def resolve(outputs: Outputs) -> list[Term]:
            return [Term(lam, outputs, labels, first), Term(1 - lam, outputs, labels[pi], second)]

        return mixed(images, pi, lam), resolve


def draw_beta(alpha: float, rng: Generator) -> float:
    """One draw from Beta(alpha, alpha); torch's own cannot be given a generator."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def mixed(images: Tensor, pi: Tensor, lam: float) -> Tensor:
    """lambda x + (1 - lambda) x[pi]"""
    if not images.is_floating_point():
        raise BalcalError(f"only images of floating point can be mixed, not {images.dtype}: convert them in the loader")
    return lam * images + (1 - lam) * images[pi]


METHODS = {
    "mixup": Method(
        "mixup",
        mix=Mixup(),
        about="batch: pairs of images and losses mixed",
        when="Few images, and accuracy counts too. Add `ts` or `balcal-auto`: mixing makes networks under-confident.",
        paper="Zhang, Cisse, Dauphin, Lopez-Paz",
        venue="ICLR 2018",
        cost="none; tally: + 1 forward",
    )
}
