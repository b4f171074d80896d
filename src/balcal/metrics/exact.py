"""Tests and intervals that hold for every number of samples: binomial, Poisson binomial, several at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
EXACT_UP_TO = 1000
"""samples for which the law of a sum of unequal coins is computed to the end"""


def clopper_pearson(hits: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a share: it holds the truth at least as often as it says.

    >>> low, high = clopper_pearson(299, 299, confidence=0.9)  # the lower end is that of a one-sided 95 % bound
    >>> round(low, 4), high
    (0.99, 1.0)
    """
    rest = (1 - confidence) / 2
    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if hits <= 0 else float(special.betaincinv(hits, n - hits + 1, rest))
    high = 1.0 if hits >= n else float(special.betaincinv(hits + 1, n - hits, 1 - rest))
    return low, high


def at_least(hits: Any, n: Any, share: float) -> Floats:
    """The probability of so many hits or more in n trials, each with probability `share`.

    >>> round(float(at_least(2, 2, 0.5)), 3), float(at_least(0, 2, 0.5))
    (0.25, 1.0)
    """
    hits, n = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    tail: Floats = np.where(hits <= 0, 1.0, special.betainc(np.maximum(hits, 1), np.maximum(n - hits, 0) + 1, share))
    return tail


def at_most(hits: Any, n: Any, share: float) -> Floats:
    """The probability of so many hits or fewer.

    >>> float(at_most(0, 2, 0.5)), float(at_most(2, 2, 0.5))
    (0.25, 1.0)
    """
    return at_least(np.asarray(n) - np.asarray(hits), n, 1 - share)


def fewest(share: float, delta: float) -> int:
    """How many trials without a failure show that the share of hits is at least `share`, but for `delta`.

    >>> fewest(0.99, 0.05)
    299
    """
    n = max(1, math.ceil(math.log(delta) / math.log(share) - 1e-9))
    return n if share**n <= delta else n + 1


def holm(p_values: Any) -> Floats:
    """p-values of several tests, corrected as by Holm (1979): below alpha, one is false with probability alpha at most.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    result = np.empty_like(p)
    result[order] = corrected
    return result


def coins_p_value(probs: Floats, hits: int) -> float:
    """Two-sided p-value of the number of hits of independent trials with these probabilities.

    Up to 1000 trials by the exact law (Poisson binomial), above by a normal law that is corrected for skewness.

    >>> round(coins_p_value(np.array([0.5, 0.5]), 2), 3)
    0.5
    """
    if len(probs) <= EXACT_UP_TO:
        law = _law(probs)
        low, high = law[: hits + 1].sum(), law[hits:].sum()
    else:
        low, high = _corrected_normal(probs, hits), 1 - _corrected_normal(probs, hits - 1)
    return float(min(1.0, 2 * min(low, high)))


def _law(probs: Floats) -> Floats:
    """The probability of 0, 1, ... hits: in blocks that grow by one trial at a time, then joined."""
    size = max(1, math.isqrt(len(probs)))
    blocks = np.pad(probs, (0, -len(probs) % size)).reshape(-1, size)
    laws = np.zeros((len(blocks), size + 1))
    laws[:, 0] = 1.0
    for p in blocks.T[:, :, None]:
        laws[:, 1:] = laws[:, 1:] * (1 - p) + laws[:, :-1] * p
        laws[:, :1] *= 1 - p
    whole = np.ones(1)
    for law in laws:
        whole = np.convolve(whole, law)
    return whole[: len(probs) + 1]


def _corrected_normal(probs: Floats, hits: int) -> float:
    """P(hits or fewer), after Volkova (1996)."""
    spread = math.sqrt(float((probs * (1 - probs)).sum()))
    if spread == 0:
        return float(hits >= round(float(probs.sum())))
    skew = float((probs * (1 - probs) * (1 - 2 * probs)).sum()) / spread**3
    x = (hits + 0.5 - float(probs.sum())) / spread
    density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float(np.clip(special.ndtr(x) + skew * (1 - x * x) * density / 6, 0, 1))
