"""What chance does to a figure: the bootstrap, and the score of a perfect model, both from grouped samples.

Samples that fall into the same narrow cell of confidence, and are both right or both wrong, are as good as equal; so a
resample of N samples is a multinomial draw over the cells, at a cost that does not grow with N.

The mean ECE of one model on several versions of the same samples, and what chance does to it.

Corrupted sets share their images, so their errors are not independent: every resample draws the same images of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.metrics.bins import bin_of, bin_table, check_bins
from balcal.metrics.inputs import TopLabels
from balcal.runtime.values import check_whole

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FINE, COARSE = 20, 4
"""cells per bin, for one model and for a pair of them"""
DRAWN = 1 << 22
"""most cells drawn at once"""
MOST_BINS, MOST_RESAMPLES = 1000, 1_000_000


@dataclass(frozen=True)
class Interval:
    """A value and where it plausibly lies: 95 %."""

    value: float
    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


def cell_of(top: TopLabels, bins: int, per_bin: int) -> Ints:
    """The narrow cell of confidence of each sample; a cell lies in one bin."""
    where = bin_of(top.conf, bins, top.dtype).numpy()
    inside = np.floor((top.conf.numpy() * bins - where) * per_bin).clip(0, per_bin - 1).astype(np.int64)
    cells: Ints = where * per_bin + inside
    return cells


class Resamples:
    """Bootstrap draws of one model, or of several on the same samples: `ece[m]`, `gap[m]` and means of `values`."""

    def __init__(
        self,
        models: Sequence[TopLabels],
        values: Mapping[str, Floats],
        bins: int = 15,
        resamples: int = 1000,
        seed: int = 0,
    ) -> None:
        check_resampling(bins, resamples, seed)
        if resamples < 100:
            raise BalcalError(f"an interval needs at least 100 resamples, not {resamples}")
        n = len(models[0])
        key = np.zeros(n, dtype=np.int64)
        for top in models:
            cells = cell_of(top, bins, FINE if len(models) == 1 else COARSE)
            key = np.unique(key * (2 * bins * FINE) + cells * 2 + top.right.numpy(), return_inverse=True)[1]
        count = np.bincount(key)

        def mean(x: Floats) -> Floats:
            return np.bincount(key, x) / count

        first = np.zeros(len(count), dtype=np.int64)
        first[key] = np.arange(n)
        gaps = [mean(top.gap.numpy()) for top in models]
        places = [bin_of(top.conf, bins, top.dtype).numpy()[first] for top in models]
        means = {name: mean(x) for name, x in values.items()}
        spread = {name: np.maximum(mean(x**2) - means[name] ** 2, 0) for name, x in values.items()}

        rng = np.random.default_rng(seed)
        self.ece = [np.empty(resamples) for _ in models]
        self.gap = [np.empty(resamples) for _ in models]
        self.means = {name: np.empty(resamples) for name in values}
        step = max(1, DRAWN // len(count))
        for start in range(0, resamples, step):
            rows = slice(start, min(start + step, resamples))
            drawn = rng.multinomial(n, count / n, size=rows.stop - rows.start).astype(np.float64)
            for m, (gap, place) in enumerate(zip(gaps, places, strict=True)):
                spreader = np.zeros((len(count), bins))
                spreader[np.arange(len(count)), place] = gap
                self.ece[m][rows] = np.abs(drawn @ spreader).sum(1) / n
                self.gap[m][rows] = drawn @ gap / n
            for name in values:
                noise = rng.standard_normal(len(drawn)) * np.sqrt(drawn @ spread[name])
                self.means[name][rows] = (drawn @ means[name] + noise) / n


def check_resampling(bins: int, resamples: int, seed: int) -> None:
    """Settings that can be drawn with, in a memory that people have."""
    check_bins(bins, MOST_BINS)
    check_whole(resamples, "the number of resamples", 1, MOST_RESAMPLES)
    check_whole(seed, "the seed")


def percentile(value: float, draws: Floats) -> Interval:
    """The middle 95 % of the draws: right for means."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def around_ece(value: float, draws: Floats, floor: Floats) -> Interval:
    """An interval for the ECE behind the noise.

    Noise lifts ECE, and resampling lifts it once more, so the middle 95 % of the draws lie too high: near a perfect
    model they never hold the truth. From the upper end we take off what resampling has added. The lower end is the
    draws' upper end mirrored at the ECE, less the same (by simulation: only then it holds the truth near the noise
    floor too), and 0 where a perfect model could have scored as much.
    """
    high = float(np.quantile(draws, 0.975))
    added = max(0.0, float(draws.mean()) - value)
    low = 0.0 if value <= np.quantile(floor, 0.975) else max(0.0, 2 * value - high - added)
    return Interval(value, low, max(high - added, low))


def around_difference(eces: tuple[float, float], draws: Floats, floors: tuple[Floats, Floats]) -> Interval:
    """For the difference of two ECEs, second minus first, whose biases need not cancel.

    What resampling has added is taken off once and twice, and the wider of both is kept; and where one of the models
    cannot be told from a perfect one, its ECE may as well be 0.
    """
    first, second = eces
    value = second - first
    added = float(draws.mean()) - value
    low, high = (float(q) for q in np.quantile(draws, (0.025, 0.975)))
    low, high = low - max(added, 2 * added), high - min(added, 2 * added)
    if second <= np.quantile(floors[1], 0.975):
        low = min(low, -first)
    if first <= np.quantile(floors[0], 0.975):
        high = max(high, second)
    return Interval(value, low, high)


def wilson(share: float, n: int) -> Interval:
    """For a share of n: honest at 0 and at 1, where resampling sees no doubt."""
    z = 1.959963984540054
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return Interval(share, max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share)))


def around_gap(found: Interval, right: Floats, accuracy: Interval) -> Interval:
    """Mean confidence - accuracy, honest where all samples are right, or all wrong.

    Resampling then sees no doubt about the accuracy; the interval is widened to what Wilson's leaves open.
    """
    if right.min() != right.max():
        return found
    confidence = found.value + accuracy.value
    return Interval(found.value, min(found.low, confidence - accuracy.high), max(found.high, confidence - accuracy.low))


def around_ece_of_one_kind(found: Interval, right: Floats, gap: Interval) -> Interval:
    """The same for ECE, which is then the modulus of the gap."""
    if right.min() != right.max():
        return found
    ends = sorted(abs(end) for end in gap.bounds)
    return Interval(found.value, min(found.low, 0.0 if gap.low <= 0 <= gap.high else ends[0]), max(found.high, ends[1]))


def around_equal(found: Interval, values: Floats, right: Floats, most: float) -> Interval:
    """A mean of values from 0 to `most`, honest where all samples are alike.

    Resampling sees no doubt then. But samples that were not seen may have any value, and they may be as large a share
    as Wilson's interval for none in n reaches.
    """
    if right.min() != right.max() or values.min() != values.max() or not np.isfinite(found.value):
        return found
    share = wilson(0.0, len(values)).high
    return Interval(found.value, (1 - share) * found.value, share * most + (1 - share) * found.value)


def noise_floor(top: TopLabels, bins: int = 15, resamples: int = 2000, seed: int = 0) -> Floats:
    """ECEs that a perfectly calibrated model with these very confidences scores on so many samples."""
    check_resampling(bins, resamples, seed)
    cell = cell_of(top, bins, FINE)
    names, key = np.unique(cell, return_inverse=True)
    count = np.bincount(key)
    conf = np.bincount(key, top.conf.numpy())
    place = np.zeros((len(names), bins))
    place[np.arange(len(names)), names // FINE] = 1.0
    rng, floor, step = np.random.default_rng(seed), np.empty(resamples), max(1, DRAWN // len(names))
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        right = rng.binomial(count, np.clip(conf / count, 0, 1), size=(rows.stop - rows.start, len(names)))
        floor[rows] = np.abs((conf - right) @ place).sum(1) / len(top)
    return floor


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
