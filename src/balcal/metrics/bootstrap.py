"""What chance does to a figure: bootstrap draws, intervals from them, and the noise floor of ECE.

Samples in the same narrow cell of confidence that are both right, or both wrong, count as equal. So a resample of N
samples is a multinomial draw over the cells (`Resamples`), and its cost does not grow with N. The noise floor is the
ECE of simulated perfect models, from the same cells.

Weights: a resample draws samples, not copies of them. A sample of weight 5 is drawn as often as one of weight 1, and
counts five times where it is drawn. Samples of one cell have nearly the same weight (`weight_class`).

Several versions of the same samples, such as corrupted test sets, do not have independent errors. `joint_draws` draws
the same samples of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.metrics.bins import bin_table, check_bins, uniform_bin_of
from balcal.metrics.inputs import TopLabels
from balcal.runtime.values import check_whole

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BinOf = Callable[[TopLabels, int], torch.Tensor]
"""the bin of each sample, given the number of bins"""
FINE, COARSE = 20, 4
"""cells per bin, for one model and for a pair of them"""
CELLS_AT_ONCE = 1 << 22
"""most cells drawn at once"""
PER_DOUBLING = 4
"""classes of weight, from one weight to its double"""
MOST_BINS, MOST_RESAMPLES = 1000, 1_000_000


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high


def check_resampling(bins: int, resamples: int, seed: int) -> None:
    """Refuse settings that cannot be drawn with, or that would fill the memory."""
    check_bins(bins, MOST_BINS)
    check_whole(resamples, "the number of resamples", 1, MOST_RESAMPLES)
    check_whole(seed, "the seed")


def cell_of(top: TopLabels, bins: int, per_bin: int) -> Ints:
    """The narrow cell of confidence of each sample. A cell lies in one bin."""
    where = uniform_bin_of(top, bins).numpy()
    inside = np.floor((top.conf.numpy() * bins - where) * per_bin).clip(0, per_bin - 1).astype(np.int64)
    cells: Ints = where * per_bin + inside
    return cells


def weight_class(top: TopLabels) -> Ints:
    """Classes of samples whose weights differ by at most a fifth; tiny weights share one. All 0 without weights."""
    if top.weights is None:
        return np.zeros(len(top), dtype=np.int64)
    heavy = np.log2(top.weights.numpy() / float(top.weights.max()))
    classes: Ints = np.floor(-heavy * PER_DOUBLING).clip(max=20 * PER_DOUBLING).astype(np.int64)
    return classes


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
        key = weight_class(models[0])
        for top in models:
            cells = cell_of(top, bins, FINE if len(models) == 1 else COARSE)
            key = np.unique(key * (2 * bins * FINE) + cells * 2 + top.right.numpy(), return_inverse=True)[1]
        count = np.bincount(key)

        mass = models[0].mass.numpy()

        def mean(x: Floats) -> Floats:
            return np.bincount(key, x) / count

        first = np.zeros(len(count), dtype=np.int64)
        first[key] = np.arange(n)
        weight = mean(mass)
        gaps = [mean(top.gap.numpy() * mass) for top in models]
        bin_numbers = [uniform_bin_of(top, bins).numpy()[first] for top in models]
        means = {name: mean(x * mass) for name, x in values.items()}
        spread = {name: np.maximum(mean((x * mass) ** 2) - means[name] ** 2, 0) for name, x in values.items()}

        rng = np.random.default_rng(seed)
        self.ece = [np.empty(resamples) for _ in models]
        self.gap = [np.empty(resamples) for _ in models]
        self.means = {name: np.empty(resamples) for name in values}
        step = max(1, CELLS_AT_ONCE // len(count))
        for start in range(0, resamples, step):
            rows = slice(start, min(start + step, resamples))
            drawn = rng.multinomial(n, count / n, size=rows.stop - rows.start).astype(np.float64)
            total = drawn @ weight
            for m, (gap, numbers) in enumerate(zip(gaps, bin_numbers, strict=True)):
                gap_in_bin = np.zeros((len(count), bins))
                gap_in_bin[np.arange(len(count)), numbers] = gap
                self.ece[m][rows] = np.abs(drawn @ gap_in_bin).sum(1) / total
                self.gap[m][rows] = drawn @ gap / total
            for name in values:
                noise = rng.standard_normal(len(drawn)) * np.sqrt(drawn @ spread[name])
                self.means[name][rows] = (drawn @ means[name] + noise) / total


def noise_floor(top: TopLabels, bins: int = 15, resamples: int = 2000, seed: int = 0) -> Floats:
    """ECEs of simulated perfect models: these confidences, each right with just that probability."""
    check_resampling(bins, resamples, seed)
    cells, mass = bins * FINE, top.mass.numpy()
    names, key = np.unique(weight_class(top) * cells + cell_of(top, bins, FINE), return_inverse=True)
    count, total = np.bincount(key), np.bincount(key, mass)
    conf, weight = np.bincount(key, top.conf.numpy() * mass), total / count
    in_bin = np.zeros((len(names), bins))
    in_bin[np.arange(len(names)), names % cells // FINE] = 1.0
    rng, floor, step = np.random.default_rng(seed), np.empty(resamples), max(1, CELLS_AT_ONCE // len(names))
    for start in range(0, resamples, step):
        rows = slice(start, min(start + step, resamples))
        right = rng.binomial(count, np.clip(conf / total, 0, 1), size=(rows.stop - rows.start, len(names)))
        floor[rows] = np.abs((conf - right * weight) @ in_bin).sum(1) / top.total
    return floor


def joint_draws(
    tops: Sequence[TopLabels], bins: int = 15, resamples: int = 200, seed: int = 0, bin_of_each: BinOf = uniform_bin_of
) -> tuple[Floats, Floats]:
    """(ECE, accuracy) of each set under each resample of the samples they share: (resamples, sets) each."""
    n = len(tops[0])
    if any(len(top) != n for top in tops):
        raise BalcalError("these sets are not versions of the same samples: their sizes differ")
    rng = np.random.default_rng(seed)
    counts = torch.from_numpy(rng.multinomial(n, np.full(n, 1 / n), size=resamples)).double()
    ece, accuracy = np.empty((resamples, len(tops))), np.empty((resamples, len(tops)))
    for number, top in enumerate(tops):
        table = torch.zeros(n, bins, dtype=torch.float64)
        table[torch.arange(n), bin_of_each(top, bins)] = top.gap
        ece[:, number] = (counts @ table).abs().sum(1).numpy() / n
        accuracy[:, number] = (counts @ top.right.double()).numpy() / n
    return ece, accuracy


def eces(tops: Sequence[TopLabels], bins: int = 15) -> Floats:
    """The ECE of each set."""
    return np.array([bin_table(top, bins).ece() for top in tops])


def mean_of(values: Floats, weights: torch.Tensor | None) -> float:
    """The mean of one number per sample, weighted if there are weights."""
    return float(values.mean()) if weights is None else float(values @ weights.numpy() / weights.numpy().sum())


def percentile(value: float, draws: Floats) -> Interval:
    """The middle 95 % of the draws: right for means."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def wilson(share: float, n: float) -> Interval:
    """Wilson's interval for a share of n: not empty at 0 and at 1, where all resamples are equal."""
    z = 1.959963984540054
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return Interval(share, max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share)))


def ece_interval(value: float, draws: Floats, floor: Floats) -> Interval:
    """An interval for the ECE without noise.

    Noise raises ECE, and resampling raises it once more, so the middle 95 % of the draws lie too high: near a perfect
    model they never hold the truth. From the upper end we subtract what resampling has added. The lower end is the
    draws' upper end mirrored at the ECE, less the same (by simulation: only then it holds the truth near the noise
    floor too), and 0 where a perfect model could have scored as much.
    """
    high = float(np.quantile(draws, 0.975))
    added = max(0.0, float(draws.mean()) - value)
    low = 0.0 if value <= np.quantile(floor, 0.975) else max(0.0, 2 * value - high - added)
    return Interval(value, low, max(high - added, low))


def ece_difference_interval(eces: Sequence[float], draws: Floats, floors: Sequence[Floats]) -> Interval:
    """An interval for the difference of two ECEs, second minus first, whose biases need not cancel.

    What resampling has added is subtracted once and twice, and the wider interval is kept. Where a model cannot be
    distinguished from a perfect one, its ECE may as well be 0.
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


def widen_gap(found: Interval, right: Floats, accuracy: Interval) -> Interval:
    """The interval of mean confidence - accuracy, widened where all samples are right, or all wrong.

    All resamples then have the same accuracy, so Wilson's interval stands for it.
    """
    if right.min() != right.max():
        return found
    confidence = found.value + accuracy.value
    return Interval(found.value, min(found.low, confidence - accuracy.high), max(found.high, confidence - accuracy.low))


def widen_ece(found: Interval, right: Floats, gap: Interval) -> Interval:
    """The same for ECE, which is then the absolute value of the gap."""
    if right.min() != right.max():
        return found
    ends = sorted(abs(end) for end in gap.bounds)
    return Interval(found.value, min(found.low, 0.0 if gap.low <= 0 <= gap.high else ends[0]), max(found.high, ends[1]))


def widen_mean(found: Interval, values: Floats, right: Floats, most: float, size: float) -> Interval:
    """The interval of a mean of values from 0 to `most`, widened where all samples are alike.

    All resamples are equal then. But unseen samples may have any value, and their share may be as large as the upper
    end of Wilson's interval for none in `size`, the (effective) number of samples.
    """
    if right.min() != right.max() or values.min() != values.max() or not np.isfinite(found.value):
        return found
    share = wilson(0.0, size).high
    return Interval(found.value, (1 - share) * found.value, share * most + (1 - share) * found.value)
