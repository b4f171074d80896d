"""Watch a model in use: an alarm when its confidence, or its calibration, drifts by more than sampling explains.

A gambler bets against "nothing has changed". For values x in [0, 1] whose mean is said to be at most m, a unit of money

    M_t = (M_{t-1} + w_t) (1 + lambda (x_t - m)),   0 <= lambda < 1 / m,   w_1 + w_2 + ... = 1

cannot be expected to grow: w_t is what is put on the drift beginning at t. So the wealth, averaged over a few lambdas,
ever reaches 1/alpha with probability at most alpha (Ville's inequality): over the whole stream, however long it is and
however often one looks. If the mean is above m, the wealth grows exponentially, wherever in the stream that begins.
Waudby-Smith and Ramdas (JRSS B 2024) made means of bounded values a matter of betting; mixing over the beginnings of a
change, with weights that fall like 1 / (t log^2 t), keeps the memory constant.

What is normal is learnt from a held-out reference; its own uncertainty is paid for out of the same alpha.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balcal.core import BalcalError

Floats = NDArray[np.float64]
FRACTIONS = np.geomspace(0.02, 0.95, 10)
"""of the largest bet that cannot go bankrupt"""
EMPTY = -1e9
"""log of no money at all, as a number that JSON knows"""
AT_ONCE = 1024
LEAST = 100
"""samples of a reference"""
RECENT = 500
"""samples that the mean in an alarm looks back on, about"""
FOR_REFERENCE = 0.2
"""of alpha: what may be lost on the reference being unlucky"""


@dataclass(frozen=True)
class Alarm:
    """What drifted, in which direction, and at which sample that was certain enough."""

    what: str
    direction: Literal["up", "down"]
    at: int
    """samples that this watch had seen"""
    recent: float
    """mean of the last few hundred values"""
    expected: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.expected
        return (
            f"{self.what} went {self.direction}: {self.recent:+.3f} lately, [{low:+.3f}, {high:+.3f}] expected; "
            f"certain after {self.at:,} samples"
        )


@dataclass
class Watch:
    """Two gamblers on the mean of values in [0, 1]: one bets that it is above `high`, one that it is below `low`."""

    name: str
    low: float
    high: float
    wealth: list[list[float]] = field(default_factory=lambda: [[EMPTY] * len(FRACTIONS) for _ in range(2)])
    """logarithms, for each gambler and each bet"""
    seen: int = 0
    recent: float = 0.0
    rung: list[str] = field(default_factory=list)
    """directions in which an alarm was given"""

    def add(self, values: Floats, limit: float) -> list[tuple[Literal["up", "down"], int, float]]:
        """(direction, sample, recent mean) of the alarms that these values give; `limit` is the wealth to reach."""
        found: list[tuple[Literal["up", "down"], int, float]] = []
        for first in range(0, len(values), AT_ONCE):
            part = values[first : first + AT_ONCE]
            times = self.seen + 1 + np.arange(len(part))
            for number, (direction, x, m) in enumerate(
                (("up", part, self.high), ("down", 1 - part, 1 - self.low)),
            ):
                logs, after = _bet(np.asarray(self.wealth[number]), x, m, times)
                self.wealth[number] = after.tolist()
                over = np.flatnonzero(logs >= np.log(limit))
                if len(over) and direction not in self.rung:
                    self.rung.append(direction)
                    until = self._mean(part[: over[0] + 1])
                    found.append((direction, int(times[over[0]]), until))  # type: ignore[arg-type]
            self.recent, self.seen = self._mean(part), self.seen + len(part)
        return found

    def _mean(self, part: Floats) -> float:
        """Each sample weighs a little less than the one after it."""
        fade = 1 - 1 / RECENT
        before = RECENT * (1 - fade**self.seen) * fade ** len(part)
        weights = fade ** np.arange(len(part))[::-1]
        return float((before * self.recent + weights @ part) / (before + weights.sum()))


def _unspent(t: NDArray[Any]) -> Floats:
    """What is not yet put on any beginning after t samples; falls to 0, slowly."""
    rest: Floats = 1 / (1 + np.log2(1 + t))
    return rest


def _bet(logs: Floats, x: Floats, mean: float, times: NDArray[Any]) -> tuple[Floats, Floats]:
    """(log wealth after each value, log money on each bet after the last): the recursion above, all at once."""
    growth = np.log1p(np.outer(x / max(mean, 1e-12) - 1, FRACTIONS))
    so_far = np.cumsum(growth, 0)
    stake = np.log(_unspent(times - 1) - _unspent(times))[:, None]
    begun = np.vstack([logs, stake - (so_far - growth)])
    money = so_far + np.logaddexp.accumulate(begun)[1:]
    return np.logaddexp(np.log(_unspent(times)), _mean_of_logs(money)), money[-1]


def _mean_of_logs(money: Floats) -> Floats:
    means: Floats = np.logaddexp.reduce(money, axis=1) - np.log(money.shape[1])
    return means


def lower_bound(values: Floats, delta: float) -> float:
    """A number that exceeds the mean behind the values, all in [0, 1], with probability at most delta.

    >>> lower_bound(np.array([0.0, 1.0] * 500), 0.05) < 0.5 < 1 - lower_bound(1 - np.array([0.0, 1.0] * 500), 0.05)
    True
    """
    low, high = 0.0, float(values.mean())
    for _ in range(24):
        m = (low + high) / 2
        wealth = _mean_of_logs(np.log1p(np.outer(values / max(m, 1e-12) - 1, FRACTIONS)).sum(0)[None])[0]
        low, high = (m, high) if wealth >= -np.log(delta) else (low, m)
    return low


class Monitor:
    """Tell it what the model says, and what was true once that is known; it speaks up when something has drifted.

    `confidences` and `correct` are of a held-out reference. `alpha` bounds the probability of any false alarm, ever.
    A drift of less than `tolerance` does not matter. Calibration is watched overall and in `bands` of confidence.

    >>> rng = np.random.default_rng(0)
    >>> c = rng.beta(8, 1, 4000)
    >>> monitor = Monitor(c, rng.random(4000) < c)
    >>> monitor.see(rng.beta(8, 1, 5000))
    []
    >>> print(monitor.see(rng.beta(8, 1, 1000) - 0.05)[0])
    confidence went down: +0.87... lately, [+0.88..., +0.89...] expected; certain after 5,0... samples
    """

    def __init__(
        self,
        confidences: ArrayLike,
        correct: ArrayLike | None = None,
        alpha: float = 0.05,
        tolerance: float = 0.0,
        bands: int = 3,
    ) -> None:
        if not 0 < alpha < 1:
            raise BalcalError(f"alpha must lie between 0 and 1, not {alpha}")
        c = _checked(confidences)
        if len(c) < LEAST:
            raise BalcalError(f"a reference of {len(c)} samples says too little: bring at least {LEAST}")
        right = None if correct is None else _outcomes(correct, c)
        inner = (
            np.unique(np.quantile(c, np.arange(1, bands) / bands)) if right is not None and bands > 1 else np.array([])
        )
        self.edges = [float(edge) for edge in inner if c.min() < edge < c.max()]
        self.alpha, self.alarms = alpha, list[Alarm]()
        parts: dict[str, Floats] = {"confidence": c}
        if right is not None:
            parts |= self._gaps(c, right)
        delta = alpha * FOR_REFERENCE / (2 * len(parts))
        self.watches = [
            Watch(
                name,
                max(0.0, lower_bound(x, delta) - tolerance * (1 if name == "confidence" else 0.5)),
                min(1.0, 1 - lower_bound(1 - x, delta) + tolerance * (1 if name == "confidence" else 0.5)),
            )
            for name, x in parts.items()
        ]

    @property
    def limit(self) -> float:
        """The wealth that a gambler must reach: together they may cry wolf with probability alpha."""
        return 2 * len(self.watches) / (self.alpha * (1 - FOR_REFERENCE))

    def see(self, confidences: ArrayLike) -> list[Alarm]:
        """Confidences of predictions, in the order in which they were made; returns new alarms."""
        return self._fed({"confidence": _checked(confidences)})

    def learn(self, confidences: ArrayLike, correct: ArrayLike) -> list[Alarm]:
        """Predictions whose labels have arrived: how confident they were, and whether they were right."""
        c = _checked(confidences)
        return self._fed(self._gaps(c, _outcomes(correct, c)))

    def _gaps(self, c: Floats, right: Floats) -> dict[str, Floats]:
        """How far being right exceeds confidence, from [-1, 1] to [0, 1]: everywhere, and in bands of confidence."""
        gaps = (right - c + 1) / 2
        parts = {"calibration": gaps}
        for low, high in pairwise([0.0, *self.edges, 1.0]) if self.edges else ():
            inside = (c > low) & (c <= high) | (c == low) & (low == 0)
            parts[f"calibration from {low:.3f} to {high:.3f}"] = gaps[inside]
        return parts

    def _fed(self, parts: dict[str, Floats]) -> list[Alarm]:
        new = []
        for watch in self.watches:
            for direction, at, recent in watch.add(parts.get(watch.name, np.zeros(0)), self.limit):
                told = (recent, watch.low, watch.high)
                mean, low, high = told if watch.name == "confidence" else (2 * x - 1 for x in told)
                new.append(Alarm(watch.name, direction, at, mean, (low, high)))
        self.alarms += new
        return new

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data: a few hundred numbers, however long the stream was."""
        return {
            "alpha": self.alpha,
            "edges": self.edges,
            "watches": [asdict(watch) for watch in self.watches],
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }

    @staticmethod
    def of(told: dict[str, Any]) -> Monitor:
        """From `as_dict`, also after a journey through JSON: goes on where it was."""
        monitor = Monitor.__new__(Monitor)
        monitor.alpha, monitor.edges = told["alpha"], told["edges"]
        monitor.watches = [Watch(**watch) for watch in told["watches"]]
        monitor.alarms = [Alarm(**{**alarm, "expected": tuple(alarm["expected"])}) for alarm in told["alarms"]]
        return monitor


def _checked(confidences: ArrayLike) -> Floats:
    c = np.atleast_1d(np.asarray(confidences, dtype=np.float64))
    if c.ndim != 1 or not bool(np.all((c >= 0) & (c <= 1))):
        raise BalcalError(
            "confidences must be a list of numbers from 0 to 1: the largest probability of each prediction"
        )
    return c


def _outcomes(correct: ArrayLike, confidences: Floats) -> Floats:
    right = np.atleast_1d(np.asarray(correct))
    if right.shape != confidences.shape or not bool(np.isin(right, (0, 1)).all()):
        raise BalcalError(
            "correct must say true or false (1 or 0) for each confidence: whether the prediction was right"
        )
    return right.astype(np.float64)
