"""Have I enough samples? How many held-out samples a statement needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from balcal.core import BalcalError
from balcal.decisions.sets import rank_of
from balcal.metrics import bootstrap
from balcal.metrics.bins import bin_table
from balcal.metrics.exact import at_least, fewest
from balcal.metrics.inputs import TopLabels, read, read_unlabelled
from balcal.metrics.metric import by_name
from balcal.runtime.values import check_number

MOST = 10**10
MOST_DRAWN = 5_000_000
ROUNDS, DRAWS = 3, 4


@dataclass(frozen=True)
class SamplePlan:
    """How many samples are needed, and for what.

    >>> plan_samples(alpha=0.1, tolerance=0.02).purpose
    'prediction sets of 90%'
    """

    samples: int
    purpose: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.samples:,} held-out samples for {self.purpose}: {self.why}"


@by_name
def plan_samples(
    *,
    ece_width: float | None = None,
    accuracy: float | None = None,
    alpha: float | None = None,
    confidence: float = 0.95,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    expected_accuracy: float | None = None,
    coverage: float = 1.0,
    power: float = 0.8,
    tolerance: float = 0.02,
) -> SamplePlan:
    """Say how many held-out samples it takes: for an ECE, for a threshold, or for prediction sets.

    Parameters
    ----------
    ece_width
        Wanted width of the 95 % interval of ECE. `probs=` (or `log_probs=`) of a few samples say how sure it is, with
        `labels=` also how far from calibrated; without them the worst case is taken.
    accuracy
        Promised by a threshold (`threshold`), with probability `confidence`.
    expected_accuracy, coverage, power
        The accuracy that accepted samples are expected to have (none is wrong, if left out), their share, and how
        likely the promise shall be found.
    alpha
        Of prediction sets, whose coverage shall be within `tolerance` of 1 - alpha with probability `confidence`.

    Examples
    --------
    >>> print(plan_samples(accuracy=0.99))
    299 held-out samples for accuracy of at least 99%: 299 of them accepted, and not one of these wrong
    >>> plan_samples(accuracy=0.99, expected_accuracy=0.995, coverage=0.5).samples
    3882
    >>> plan_samples(alpha=0.1, tolerance=0.02).samples
    854
    >>> plan_samples(ece_width=0.02).samples
    9604
    """
    given = [name for name, value in (("ece_width", ece_width), ("accuracy", accuracy), ("alpha", alpha)) if value]
    if len(given) != 1:
        raise BalcalError("say what the samples are for: one of ece_width=, accuracy= and alpha=")
    for name, value in (("confidence", confidence), ("power", power), ("tolerance", tolerance), ("coverage", coverage)):
        if not 0 < check_number(value, name) <= 1 or (value == 1 and name != "coverage"):
            raise BalcalError(f"{name} must lie between 0 and 1, not {value}")
    if ece_width is not None:
        return _for_ece(_share("ece_width", ece_width), probs, log_probs, labels)
    if accuracy is not None:
        return _for_accuracy(_share("accuracy", accuracy), confidence, expected_accuracy, coverage, power)
    return _for_sets(_share("alpha", alpha), tolerance, confidence)


def _share(name: str, value: Any) -> float:
    if not 0 < check_number(value, name) < 1:
        raise BalcalError(f"{name} must lie between 0 and 1, both left out, not {value}")
    return float(value)


def _for_ece(width: float, probs: Any, log_probs: Any, labels: Any) -> SamplePlan:
    """ECE is a sum of gaps, so its standard deviation is about that of one outcome by the root of n."""
    purpose = f"an ECE with an interval {width * 100:g} points wide"
    first = (2 * float(special.ndtri(0.975)) / width) ** 2
    if probs is None and log_probs is None:
        n = math.ceil(first / 4 - 1e-6)
        return SamplePlan(n, purpose, "about so many in the worst case, a model that is right half the time")
    top = (read_unlabelled(probs, log_probs) if labels is None else read(probs, log_probs, labels)).top()
    rng, conf = np.random.default_rng(0), top.conf.numpy()
    n = math.ceil(first * float((conf * (1 - conf)).mean())) + 100
    for _ in range(ROUNDS):
        found = float(np.mean([_ece_width(top, labels is not None, n, rng) for _ in range(DRAWS)]))
        n = min(MOST_DRAWN, max(100, math.ceil(n * min(max((found / width) ** 2, 0.1), 10))))
    whose = "calibrated samples of these confidences" if labels is None else "samples like these"
    return SamplePlan(n, purpose, f"by simulation with {whose}")


def _ece_width(top: TopLabels, labelled: bool, n: int, rng: np.random.Generator) -> float:
    """The width of the interval that `verdict` gives to n samples like these."""
    pick = torch.from_numpy(rng.integers(0, len(top), n))
    conf = top.conf[pick]
    right = top.right[pick] if labelled else torch.from_numpy(rng.random(n)) < conf
    drawn = TopLabels(conf, right)
    floor = bootstrap.noise_floor(drawn, resamples=200)
    ece = bin_table(drawn, 15).ece()
    low, high = bootstrap.ece_interval(ece, bootstrap.Resamples([drawn], {}, resamples=200).ece[0], floor).bounds
    return high - low


def _for_accuracy(
    target: float, confidence: float, expected: float | None, coverage: float, power: float
) -> SamplePlan:
    delta, purpose = 1 - confidence, f"accuracy of at least {target * 100:g}%"
    least = fewest(target, delta)
    if expected is None:
        n = math.ceil(least / coverage - 1e-9)
        return SamplePlan(n, purpose, f"{least:,} of them accepted, and not one of these wrong")
    if not target < check_number(expected, "expected_accuracy") <= 1:
        raise BalcalError(
            f"expected_accuracy must be above the promised {target:g}, and at most 1: else nothing shows it"
        )
    low, high = least - 1, least
    while _power(high, target, expected, delta) < power:
        low, high = high, 2 * high
        if high > MOST:
            raise BalcalError(f"expected_accuracy {expected:g} is too close to the promised {target:g} to be shown")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, target, expected, delta) >= power else (middle, high)
    why = (
        f"{high:,} of them accepted; if {expected * 100:g}% of these are right, it is shown with probability {power:g}"
    )
    return SamplePlan(math.ceil(high / coverage - 1e-9), purpose, why)


def _power(n: int, target: float, expected: float, delta: float) -> float:
    """The probability that a test of n samples shows the target, if the truth is as expected."""
    hits = int(stats.binom.isf(delta, n, target)) + 1
    while hits <= n and float(at_least(hits, n, target)) > delta:
        hits += 1
    while hits > 0 and float(at_least(hits - 1, n, target)) <= delta:
        hits -= 1
    return float(at_least(hits, n, expected)) if hits <= n else 0.0


def _for_sets(alpha: float, tolerance: float, confidence: float) -> SamplePlan:
    def sure(n: int) -> float:
        rank = rank_of(n, alpha)
        law = stats.beta(rank, n + 1 - rank)
        return float(law.cdf(1 - alpha + tolerance) - law.cdf(1 - alpha - tolerance)) if rank <= n else 0.0

    least = math.ceil(1 / alpha - 1 - 1e-9)
    low, high = least - 1, least
    while sure(high) < confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sure(middle) >= confidence else (middle, high)
    why = f"their coverage is then within {tolerance * 100:g} points of that with probability {confidence:g}"
    return SamplePlan(int(np.int64(high)), f"prediction sets of {(1 - alpha) * 100:g}%", why)
