"""Tests of perfect calibration: a statistic, and the chance that a perfect model scores as much (its p-value).

Spiegelhalter's z compares the Brier score with the one that the probabilities promise. KS and Kuiper look at the
running sum of conf - right over samples in ascending confidence: a perfect model makes it a random walk. If the walk
has many small steps it is a Brownian motion, and the p-value is a series. Else perfect models are simulated.

A sample is one observation, however heavy: weights enter as w in the sums and as w^2 in their variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr

from balcal.metrics.bins import Floats
from balcal.metrics.inputs import Rows, TopLabels, read
from balcal.metrics.metric import Metric, by_name

SIMULATED = 1999
"""perfect models; p-values from them are at least 1 / 2,000"""
STEPS = 1024
"""most steps of a simulated walk: neighbours in confidence are taken together beyond"""
MANY = 1000
"""A walk whose variance is so many times that of its largest step is taken for a Brownian motion."""
NOTHING = 1e-12
"""variance per sample below which there is only rounding"""


@dataclass(frozen=True)
class CalibrationTest:
    """A statistic and its p-value: how often a perfect model with these predictions would score as much or more.

    >>> CalibrationTest(statistic=2.1, p=0.036).p < 0.05
    True
    """

    statistic: float
    p: float

    @staticmethod
    def of(fields: Mapping[str, Any]) -> CalibrationTest:
        """From JSON, where None stands for infinity."""
        return CalibrationTest(math.inf if fields["statistic"] is None else fields["statistic"], fields["p"])


@by_name
def calibration_tests(
    *, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None
) -> dict[str, CalibrationTest]:
    """Every test of perfect calibration, by name: `spiegelhalter`, `ks`, `kuiper`.

    Parameters
    ----------
    probs, log_probs
        (N, K); of two classes (N,) will do, the probability of class 1.
    labels
        (N,) class indices.
    sample_weight
        (N,): a sample is one observation, however heavy.

    >>> found = calibration_tests(probs=[[0.9, 0.1]] * 200, labels=[0] * 150 + [1] * 50)
    >>> round(found["spiegelhalter"].statistic, 2), found["ks"].p < 0.01
    (7.07, True)
    """
    return tests_of(read(probs, log_probs, labels, sample_weight))


@by_name
def spiegelhalter(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Spiegelhalter's z: the Brier score less the one that the probabilities promise, in standard errors.

    About normal for a perfect model. Positive: over-confident; negative: under-confident. Rows that are uniform promise
    the same for every label, and say nothing. Here one wrong answer of ten is promised, and there are two:

    >>> round(spiegelhalter(probs=[[0.9, 0.1]] * 10, labels=[0] * 8 + [1] * 2), 6)  # 0.8 / sqrt(0.576)
    1.054093
    """
    return _spiegelhalter(read(probs, log_probs, labels, sample_weight)).statistic


@by_name
def spiegelhalter_p(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """The p-value of Spiegelhalter's z, two-sided: how often a perfect model would be as far from 0.

    >>> round(spiegelhalter_p(probs=[[0.9, 0.1]] * 200, labels=[0] * 176 + [1] * 24), 2)  # 4 more than expected
    0.34
    """
    return _spiegelhalter(read(probs, log_probs, labels, sample_weight)).p


@by_name
def ks_p(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """The p-value of the KS error: how often a perfect model with these confidences would score as much.

    >>> ks_p(probs=[[0.9, 0.1]] * 200, labels=[0] * 176 + [1] * 24) > 0.3
    True
    """
    return walk_tests(read(probs, log_probs, labels, sample_weight).top())["ks"].p


@by_name
def kuiper_p(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """The p-value of the Kuiper error: how often a perfect model with these confidences would score as much.

    >>> kuiper_p(probs=[[0.9, 0.1]] * 200, labels=[0] * 150 + [1] * 50)  # no simulated one in 1,999 did
    0.0005
    """
    return walk_tests(read(probs, log_probs, labels, sample_weight).top())["kuiper"].p


def tests_of(rows: Rows) -> dict[str, CalibrationTest]:
    return {"spiegelhalter": _spiegelhalter(rows), **walk_tests(rows.top())}


def _spiegelhalter(rows: Rows) -> CalibrationTest:
    """From sum_k p_k^2 - p_label, half of what the Brier score of a sample exceeds its expectation by.

    The p-value is that of a gamma distribution with the same mean, variance and skewness, as errors of certain models
    are rare and large.
    """
    excess = variance = third = start = 0.0
    for _, probs, labels in rows.chunks():
        p = probs.double()
        two, three, four = (p.pow(power).sum(1) for power in (2, 3, 4))
        mine = p.gather(1, labels[:, None])[:, 0]
        weights = p.new_ones(len(p))
        if rows.weights is not None:
            weights = rows.weights[int(start) : int(start) + len(p)].to(p.device)
        excess += float((weights * (two - mine)).sum())
        variance += float((weights.square() * (three - two.square()).clamp(min=0)).sum())
        third -= float((weights.pow(3) * (four - 3 * three * two + 2 * two.pow(3))).sum())
        start += len(p)
    size = float(len(rows)) if rows.weights is None else float(rows.weights.square().sum())
    if variance <= NOTHING * size:
        certain = abs(excess) <= math.sqrt(NOTHING) * rows.total
        return CalibrationTest(0.0, 1.0) if certain else CalibrationTest(math.inf, 0.0)
    z = excess / math.sqrt(variance)
    return CalibrationTest(z, _two_sided(z, third / variance**1.5))


def _two_sided(z: float, skew: float) -> float:
    if abs(skew) < 1e-3:
        return float(min(1.0, 2 * ndtr(-abs(z))))
    shape = 4 / skew**2
    at = max(0.0, shape + math.copysign(1.0, skew) * z * math.sqrt(shape))
    return float(min(1.0, 2 * min(gammainc(shape, at), gammaincc(shape, at))))


@dataclass(frozen=True, eq=False)
class Steps:
    """A walk: of each distinct confidence its samples, their sum of w (conf - right), and the variance of that."""

    count: Floats
    conf: Floats
    gap: Floats
    variance: Floats

    @staticmethod
    def of(top: TopLabels) -> Steps:
        mass, conf = top.mass.numpy(), top.conf.numpy()
        group = np.unique(conf, return_inverse=True)[1]
        count = np.bincount(group).astype(np.float64)
        gap, variance = (
            np.bincount(group, each).astype(np.float64)
            for each in (mass * top.gap.numpy(), mass**2 * conf * (1 - conf))
        )
        return Steps(count, (np.bincount(group, conf) / count).clip(0, 1), gap, variance.clip(min=0))

    def merged(self) -> Steps:
        """At most `STEPS` steps, of about equally many samples."""
        if len(self.count) <= STEPS:
            return self
        middle = (np.cumsum(self.count) - self.count / 2) / self.count.sum()
        group = np.unique(np.floor(middle * STEPS), return_inverse=True)[1]
        count, conf, gap, variance = (
            np.bincount(group, each).astype(np.float64)
            for each in (self.count, self.count * self.conf, self.gap, self.variance)
        )
        return Steps(count, (conf / count).clip(0, 1), gap, variance)


def walk_tests(top: TopLabels) -> dict[str, CalibrationTest]:
    """KS and Kuiper: how far the walk gets from 0, and the range that it covers."""
    steps = Steps.of(top)
    far, wide = extremes_of(steps)
    total, heaviest = float(steps.variance.sum()), float(top.mass.max())
    if total <= NOTHING * heaviest**2 * len(top):
        p_far = p_wide = 1.0 if far <= math.sqrt(NOTHING) * top.total else 0.0
    elif total >= MANY * max(float(steps.variance.max()), heaviest**2):
        p_far, p_wide = beyond(far / math.sqrt(total)), range_beyond(wide / math.sqrt(total))
    else:
        p_far, p_wide = _simulated(steps.merged())
    return {
        "ks": CalibrationTest(far / top.total, p_far),
        "kuiper": CalibrationTest(wide / top.total, p_wide),
    }


def extremes(steps: Floats) -> tuple[Floats, Floats]:
    """(the largest distance from 0, the range) of each walk, a row of steps."""
    walk = np.cumsum(steps, 1)
    high, low = walk.max(1).clip(min=0), walk.min(1).clip(max=0)
    return np.maximum(high, -low), high - low


def extremes_of(steps: Steps) -> tuple[float, float]:
    far, wide = extremes(steps.gap[None])
    return float(far[0]), float(wide[0])


def _simulated(steps: Steps) -> tuple[float, float]:
    """p-values by simulation: the walks of perfect models. Counted with the observed one, so that none is 0."""
    observed = extremes_of(steps)
    plain = steps.count * steps.conf * (1 - steps.conf)
    scale = np.sqrt(np.divide(steps.variance, plain, out=np.zeros_like(plain), where=plain > 0))
    rng, counts = np.random.default_rng(0), steps.count.astype(np.int64)
    single, beaten = bool((counts == 1).all()), np.ones(2)
    for start in range(0, SIMULATED, 200):
        size = (min(200, SIMULATED - start), len(counts))
        right = rng.random(size) < steps.conf if single else rng.binomial(counts, steps.conf, size)
        walks = extremes((steps.count * steps.conf - right) * scale)
        beaten += [(found >= seen * (1 - 1e-9)).sum() for found, seen in zip(walks, observed, strict=True)]
    ks_share, kuiper_share = beaten / (SIMULATED + 1)
    return float(ks_share), float(kuiper_share)


def beyond(x: float) -> float:
    """The chance that a Brownian motion on [0, 1] gets as far as x from 0.

    >>> round(beyond(2.2414), 4), beyond(0.0)  # 4 (1 - Phi(x)), but for terms that are too small to see
    (0.05, 1.0)
    """
    odd = 2 * np.arange(40) + 1.0
    signs = np.where(np.arange(40) % 2, -1.0, 1.0)
    if x < 1:
        with np.errstate(divide="ignore"):
            inside = 4 / math.pi * float((signs / odd * np.exp(-np.divide((odd * math.pi) ** 2, 8 * x * x))).sum())
        return min(1.0, max(0.0, 1 - inside))
    return min(1.0, 4 * float((signs * ndtr(-odd * x)).sum()))


def range_beyond(x: float) -> float:
    """The chance that the range of a Brownian motion on [0, 1] is x or more (Feller 1951).

    >>> range_beyond(0.2), 0.049 < range_beyond(2.497) < 0.051
    (1.0, True)
    """
    if x < 0.35:  # one in a million is as small
        return 1.0
    k = np.arange(1, 130)
    return min(1.0, max(0.0, 8 * float((np.where(k % 2, 1.0, -1.0) * k * ndtr(-k * x)).sum())))


_SPIEGELHALTER = "Spiegelhalter, Statistics in Medicine 1986; over all classes here, the same for two"
_WALK = "Arrieta-Ibarra et al., JMLR 2022; range: Feller, Ann. Math. Stat. 1951"
_P = {"null": "perfect calibration", "weights": "one observation each"}

METRICS = {
    "spiegelhalter": Metric(
        spiegelhalter,
        "neither",
        "standard errors",
        "sum_i (sum_k p_ik^2 - p_i,y_i) / sqrt( sum_i (sum_k p_ik^3 - (sum_k p_ik^2)^2) )",
        _SPIEGELHALTER,
        _P,
    ),
    "spiegelhalter_p": Metric(spiegelhalter_p, "neither", "p-value", "P(|Z| >= |z|)", _SPIEGELHALTER, _P),
    "ks_p": Metric(ks_p, "neither", "p-value", "P(KS of a perfect model >= ks)", _WALK, {"of": "top label", **_P}),
    "kuiper_p": Metric(
        kuiper_p, "neither", "p-value", "P(Kuiper error of a perfect model >= kuiper)", _WALK, {"of": "top label", **_P}
    ),
}
