"""Compare methods with several seeds each, on the same test samples: is one better, or is it chance?

A figure changes with the seed, and with the test samples. For two methods let d_s be the difference in seed s and D its
mean over S seeds. Let v be what S other seeds do to D (the variance of d_s over S), and w what other test samples do to
all seeds alike (the covariance, under resampling, of the d_s of two seeds). Then

    D ± sqrt(t² v + z² w)        t: Student's quantile for S - 1 degrees of freedom, z: the normal one

holds the true difference in at least 95 % of cases, whatever v and w are (Banerjee 1960). It is never taken narrower
than what other test samples alone would do to D. The p value is one minus the level at which this interval just reaches
0. With one seed there is no v: what remains speaks of two runs on other samples, not of two methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.special import ndtri, stdtrit

from balcal.metrics.bins import Floats, equal_mass_bin_of, uniform_bin_of
from balcal.metrics.bootstrap import joint_draws
from balcal.metrics.inputs import TopLabels

LEVEL = 0.05
RESAMPLES = 400
SMALLEST = 1e-16
"""least p value"""


@dataclass(frozen=True)
class Chance:
    """What other test samples would do to the figures of several models in one metric. Models come in a fixed order."""

    covariance: Floats
    """(M, M) of the figures, each a mean over seeds"""
    shared: Floats
    """(M, M) the part of it that no further seeds would take away"""
    added: Floats
    """(M,) what resampling adds to each: noise raises ECEs, not means"""
    perfect: tuple[bool, ...]
    """whether a model is indistinguishable from a perfect one, so that none can be shown to be better"""
    granule: float = 0.0
    """least variance of a difference that is not 0: few disagreements are no certainty"""


def chance_of_means(values: Floats, counts: bool = False) -> Chance:
    """Of means over (M, S, N) values per sample. `counts`: the values are right (1) or wrong (0).

    Two models that disagree about few samples look too certain. So two more disagreements are assumed, one each way.
    This agrees with the exact test: five to none is a tie, six to none is not.

    >>> right = np.array([[[1.0] * 6 + [0.0] * 94], [[0.0] * 100]])
    >>> bool(pairs(right.mean(2), chance_of_means(right, counts=True)).p[0, 1] < 0.05)
    True
    >>> right[0, 0, 5] = 0
    >>> bool(pairs(right.mean(2), chance_of_means(right, counts=True)).p[0, 1] < 0.05)
    False
    """
    models, _, n = values.shape
    values = np.where(np.isfinite(values), values, np.nan)
    covariance, shared = _covariances((values - values.mean(2, keepdims=True)) / n)
    return Chance(covariance, shared, np.zeros(models), (False,) * models, 2 / n**2 if counts else 0.0)


def chance_of_eces(
    tops: Sequence[Sequence[TopLabels]],
    highs: Sequence[Sequence[float]],
    equal_mass: bool = False,
    bins: int = 15,
    resamples: int = RESAMPLES,
) -> Chance:
    """Of the ECEs of models with one run per seed. A resample draws the same samples for all. `highs`: noise floors."""
    bin_of_each = equal_mass_bin_of if equal_mass else uniform_bin_of
    draws, _ = joint_draws([top for runs in tops for top in runs], bins, resamples, bin_of_each=bin_of_each)
    ends = np.cumsum([0, *(len(runs) for runs in tops)])
    drawn = [draws[:, a:b].T for a, b in pairwise(ends)]
    now = np.array([np.mean([_error(top, bin_of_each(top, bins), bins) for top in runs]) for runs in tops])
    perfect = tuple(bool(value <= np.mean(high)) for value, high in zip(now, highs, strict=True))
    means = np.stack([each.mean(0) for each in drawn])
    off = np.stack(drawn) if len({len(each) for each in drawn}) == 1 else means[:, None]
    covariance, shared = _covariances((off - off.mean(2, keepdims=True)) / np.sqrt(resamples - 1))
    return Chance(covariance, shared, means.mean(1) - now, perfect)


def _covariances(off: Floats) -> tuple[Floats, Floats]:
    """Of (M, S, N) deviations: of means over seeds, and the mean between different seeds."""
    seeds, mean = off.shape[1], off.mean(1)
    covariance = mean @ mean.T
    if seeds == 1:
        return covariance, covariance
    within = np.sum([off[:, seed] @ off[:, seed].T for seed in range(seeds)], axis=0)
    shared: Floats = (seeds * covariance - within / seeds) / (seeds - 1)
    return covariance, shared


def floor_by_mass(top: TopLabels, bins: int = 15, resamples: int = 2000, seed: int = 0) -> Floats:
    """Adaptive ECEs of simulated perfect models. The bins are large, so their sums are taken as normal."""
    variance = torch.bincount(equal_mass_bin_of(top, bins), top.conf * (1 - top.conf), bins).numpy()
    noise = np.random.default_rng(seed).standard_normal((resamples, bins)) * np.sqrt(variance)
    floor: Floats = np.abs(noise).sum(1) / len(top)
    return floor


def _error(top: TopLabels, where: torch.Tensor, bins: int) -> float:
    return float(torch.bincount(where, top.gap, bins).abs().sum()) / len(top)


@dataclass(frozen=True)
class Pairs:
    """Second minus first for all pairs of M models, [first, second]; 95 % intervals."""

    value: Floats
    low: Floats
    high: Floats
    p: Floats
    """NaN where there is nothing to compare"""
    seeds: Floats
    """how many both have"""


@dataclass(frozen=True)
class Spread:
    """Variances of the differences of all pairs, by their source."""

    seeds: Floats
    freedom: Floats
    """degrees of freedom of `seeds`"""
    shared: Floats
    samples: Floats

    def reach(self, level: Floats) -> Floats:
        """The square of half the interval's width."""
        t, z = stdtrit(self.freedom, level / 2), ndtri(level / 2)
        reach: Floats = np.maximum(t**2 * self.seeds + z**2 * self.shared, z**2 * self.samples)
        return reach

    def p_values(self, distance: Floats) -> Floats:
        """By bisection of the logarithm of the level: an interval shrinks as its level rises."""
        low, high = np.full_like(distance, np.log(SMALLEST)), np.zeros_like(distance)
        for _ in range(50):
            middle = (low + high) / 2
            outside = self.reach(np.exp(middle)) < distance**2
            low, high = np.where(outside, low, middle), np.where(outside, middle, high)
        found: Floats = np.where(distance == 0, 1.0, np.exp(high))
        return found


def _of_differences(covariance: Floats) -> Floats:
    own = np.diag(covariance)
    return np.maximum(own[:, None] + own[None, :] - 2 * covariance, 0.0)


def pairs(figures: Floats, chance: Chance) -> Pairs:
    """All differences of (M, S) figures, NaN where a run is missing; only seeds that both have are compared.

    Where noise has raised one ECE more than the other, the interval holds the difference with and without that.
    """
    figures = np.where(np.isfinite(figures), figures, np.nan)
    each = figures[None, :, :] - figures[:, None, :]
    there = np.isfinite(each)
    seeds = there.sum(2).astype(np.float64)
    some, freedom = np.maximum(seeds, 1), np.maximum(seeds - 1, 1)
    value = np.where(there, each, 0.0).sum(2) / some
    over_seeds = (np.where(there, each - value[:, :, None], 0.0) ** 2).sum(2) / (freedom * some)
    over_samples, shared = _of_differences(chance.covariance), _of_differences(chance.shared)
    same = (over_seeds == 0) & (value == 0) & (over_samples <= 1e-12 * np.diag(chance.covariance)[:, None])
    over_samples, shared = (np.where(same, 0.0, part + chance.granule) for part in (over_samples, shared))
    spread = Spread(over_seeds, freedom, np.where(seeds > 1, shared, over_samples), over_samples)

    added = chance.added[None, :] - chance.added[:, None]
    half = np.sqrt(spread.reach(np.full_like(value, LEVEL)))
    low, high = value - np.maximum(added, 0.0) - half, value - np.minimum(added, 0.0) + half
    nearest = np.where(value * (value - added) > 0, np.minimum(np.abs(value), np.abs(value - added)), 0.0)
    p = spread.p_values(nearest)

    perfect, mean = np.array(chance.perfect), _over_seeds(figures)
    low = np.where(perfect[None, :], np.minimum(low, -mean[:, None]), low)
    high = np.where(perfect[:, None], np.maximum(high, mean[None, :]), high)
    p = np.where((perfect[:, None] & (value < 0)) | (perfect[None, :] & (value > 0)), 1.0, p)
    nothing = (seeds == 0) | np.isnan(over_samples)
    value, low, high, p = (np.where(nothing, np.nan, found) for found in (value, low, high, p))
    return Pairs(value, low, high, p, seeds)


def holm(p: Floats) -> Floats:
    """p values adjusted for several tests (Holm 1979): the chance of even one false alarm stays below the level.

    >>> holm(np.array([0.01, 0.04, 0.03, np.nan]))
    array([0.03, 0.06, 0.06,  nan])
    """
    adjusted = np.full(len(p), np.nan)
    order = [number for number in np.argsort(p) if not np.isnan(p[number])]
    reached = 0.0
    for rank, number in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * float(p[number])))
        adjusted[number] = reached
    return adjusted


def _over_seeds(figures: Floats) -> Floats:
    there = np.isfinite(figures)
    count = there.sum(1)
    mean: Floats = np.where(count > 0, np.where(there, figures, 0.0).sum(1) / np.maximum(count, 1), np.nan)
    return mean
