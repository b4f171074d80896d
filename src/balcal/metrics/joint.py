"""The mean ECE of one model on several versions of the same samples, and what chance does to it.

Corrupted sets share their images, so their errors are not independent: every resample draws the same images of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from balcal.core import BalcalError
from balcal.metrics.bins import bin_of, bin_table
from balcal.metrics.inputs import TopLabels
from balcal.metrics.resample import Floats

Place = Callable[[TopLabels, int], torch.Tensor]
"""The bin of each sample."""


def uniform(top: TopLabels, bins: int) -> torch.Tensor:
    return bin_of(top.conf, bins, top.dtype)


def joint_draws(
    tops: Sequence[TopLabels], bins: int = 15, resamples: int = 200, seed: int = 0, place: Place = uniform
) -> tuple[Floats, Floats]:
    """(ECE, accuracy) of each set under each resample of the common images: (resamples, sets) each."""
    n = len(tops[0])
    if any(len(top) != n for top in tops):
        raise BalcalError("these sets are not versions of the same samples: their sizes differ")
    rng = np.random.default_rng(seed)
    counts = torch.from_numpy(rng.multinomial(n, np.full(n, 1 / n), size=resamples)).double()
    ece, accuracy = np.empty((resamples, len(tops))), np.empty((resamples, len(tops)))
    for number, top in enumerate(tops):
        table = torch.zeros(n, bins, dtype=torch.float64)
        table[torch.arange(n), place(top, bins)] = top.gap
        ece[:, number] = (counts @ table).abs().sum(1).numpy() / n
        accuracy[:, number] = (counts @ top.right.double()).numpy() / n
    return ece, accuracy


def eces(tops: Sequence[TopLabels], bins: int = 15) -> Floats:
    return np.array([bin_table(top, bins).ece() for top in tops])
