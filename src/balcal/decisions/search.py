"""The furthest threshold whose promise is certain enough, although it was searched.

Samples are accepted in falling order of confidence. For each number k of accepted samples there is a hypothesis: among
all samples above the next confidence, accuracy is below the target. Given that next confidence, the k accepted samples
are independent draws from there, so the number of right ones is binomial and the test (that of Clopper and Pearson) is
exact. The hypotheses are tested in falling order of confidence, until one cannot be rejected: a fixed sequence
(Maurer, Hothorn, Lehmacher 1995), which needs no correction for the number of tests. All accepted promises are
then true with the stated probability, provided that accuracy does not fall as confidence rises.

One mistake among the very first samples would end a single sequence early. So the probability of error is divided among
three starts. What an unbroken sequence has left is added to the next one (the fallback procedure of Wiens, 2003).
Equal confidences are accepted together or not at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from balcal.metrics.exact import at_least, at_most, fewest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STARTS = ((1, 0.25), (3, 0.25), (9, 0.5))
"""Where sequences begin, in multiples of the fewest samples that can show anything, and their share of the error.
Chosen in simulations: nine kinds of models, 500 to 10,000 samples."""


def steps(scores: Floats) -> tuple[Ints, Ints]:
    """(order of falling score, how many samples are accepted at each distinct score)."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    sizes = np.append(np.flatnonzero(ranked[1:] < ranked[:-1]) + 1, len(ranked))
    return order, sizes


def starts(n: int, target: float, delta: float) -> list[tuple[int, float]]:
    """(number of accepted samples, level) of each start that n samples allow."""
    least = fewest(target, delta)
    able = [each for each in STARTS if each[0] * least <= n] or [STARTS[0]]
    total = sum(share for _, share in able)
    levels = [delta * share / total for _, share in able]
    first = max(least, fewest(target, levels[0]))
    return [(first if i == 0 else max(first, each * least), levels[i]) for i, (each, _) in enumerate(able)]


def furthest_accurate(right: Floats, sizes: Ints, target: float, delta: float) -> int:
    """How many samples to accept, at most, so that accuracy is at least the target; 0 where nothing is certain.

    `right` is in falling order of confidence; `sizes` are the numbers of accepted samples to choose from.

    >>> furthest_accurate(np.ones(400), np.arange(1, 401), 0.99, 0.05)
    400
    >>> furthest_accurate(np.ones(298), np.arange(1, 299), 0.99, 0.05)
    0
    """
    sizes = np.asarray(sizes)
    p_values = at_least(np.cumsum(right)[sizes - 1], sizes, target)
    begins = starts(len(right), target, delta)
    ends = [begin for begin, _ in begins[1:]] + [len(right) + 1]
    best, level = 0, 0.0
    for (begin, more), end in zip(begins, ends, strict=True):
        level += more
        part = slice(*np.searchsorted(sizes, (begin, end)))
        failed = np.flatnonzero(p_values[part] > level)
        passed = int(failed[0]) if len(failed) else len(p_values[part])
        if passed:
            best = int(sizes[part][passed - 1])
        if len(failed):
            level = 0.0
    return best


def furthest_rare(wrong: Floats, sizes: Ints, of: int, rate: float, delta: float) -> int:
    """How many samples to accept so that accepted mistakes are at most this share `of` so many trials.

    Mistakes only grow with the number of accepted samples, so one sequence from the first sample on is all it takes.

    >>> furthest_rare(np.array([0, 0, 1.0]), np.array([1, 2, 3]), of=300, rate=0.01, delta=0.05)
    2
    """
    passed = at_most(np.cumsum(wrong)[np.asarray(sizes) - 1], of, rate) <= delta
    return int(sizes[np.flatnonzero(passed)[-1]]) if passed.any() else 0


def between(accepted: float, refused: float | None, dtype: Any = np.float64) -> float:
    """A threshold in the middle of the gap, in the precision of the scores: rounding in production changes nothing.

    >>> between(0.75, 0.25, np.float32), between(1.0, None, np.float64)
    (0.5, 0.0)
    """
    if refused is None:
        return 0.0
    kind = np.dtype(dtype).type
    middle = float(kind((accepted + refused) / 2))
    return middle if refused < middle <= accepted else accepted


def promising(right: Floats, sizes: Ints, target: float, delta: float) -> int | None:
    """How many held-out samples it would take, going by these; None where accuracy is too low however many there are.

    For each share of accepted samples, the accuracy found there is taken as the truth, with half a mistake added if
    there is one.
    """
    sizes = np.asarray(sizes)
    n, hits = len(right), np.cumsum(right)[sizes - 1]
    accuracy = np.where(hits == sizes, 1.0, (hits - 0.5).clip(0) / sizes)
    excess = accuracy - target
    if not (excess > 0).any():
        return None
    spread = np.sqrt(accuracy * (1 - accuracy)) + np.sqrt(target * (1 - target))
    able = np.flatnonzero(excess > 0)
    guess = np.maximum((spread[able] / excess[able]) ** 2, fewest(target, delta)) * n / sizes[able]
    few = able[np.argsort(guess)[:20]]
    return min(_enough(accuracy[i], sizes[i] / n, target, delta) for i in few)


def _enough(accuracy: float, coverage: float, target: float, delta: float) -> int:
    """The fewest samples with which a test passes if just the expected number of them is right."""
    low, high = 0, fewest(target, delta)
    while at_least(np.floor(high * accuracy), high, target) > delta:
        low, high = high, 2 * high
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if at_least(np.floor(middle * accuracy), middle, target) <= delta else (middle, high)
    return int(np.ceil(high / coverage))
