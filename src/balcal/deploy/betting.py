"""Sequential tests by betting: wealth that grows only if the mean of a stream is above a bound.

For values x in [0, 1] whose mean is at most m, a unit of money

    M_t = (M_{t-1} + w_t) (1 + lambda (x_t - m)),   0 <= lambda < 1 / m,   w_1 + w_2 + ... = 1

does not grow in expectation: w_t is the stake on a drift that begins at t. So the wealth, averaged over a few lambdas,
ever reaches 1/alpha with probability at most alpha (Ville's inequality). This holds over the whole stream, however long
it is and however often one looks. If the mean rises above m, the wealth grows exponentially, wherever that begins.
Betting on means of bounded values: Waudby-Smith and Ramdas (JRSS B 2024). Mixing over the beginnings of a change, with
weights that fall like 1 / (t log^2 t), keeps the memory constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.runtime.values import check_choice, check_number, check_whole, plain_list, plain_record

Floats = NDArray[np.float64]
FRACTIONS = np.geomspace(0.02, 0.95, 10)
"""bets, as shares of the largest one that cannot go bankrupt"""
EMPTY = -1e9
"""log of no money, as a number that JSON can hold"""
AT_ONCE = 1024
RECENT = 500
"""samples, about, that the mean in an alarm is over"""
LONGEST = 10**12
"""samples; beyond this, the stake on a drift that begins now underflows"""


@dataclass
class MeanTest:
    """Two tests of the mean of values in [0, 1]: one bets that it is above `high`, one that it is below `low`."""

    name: str
    low: float
    high: float
    wealth: list[list[float]] = field(default_factory=lambda: [[EMPTY] * len(FRACTIONS) for _ in range(2)])
    """logarithms, for each test and each bet"""
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

    @staticmethod
    def of(data: Any) -> MeanTest:
        """From plain data, checked."""
        made = MeanTest(**plain_record(data, MeanTest))
        check_number(made.low, "low", 0, 1), check_number(made.high, "high", made.low, 1)
        check_number(made.recent, "recent", 0, 1), check_whole(made.seen, "seen", 0, LONGEST)
        shape = [len(plain_list(bets, "wealth")) for bets in plain_list(made.wealth, "wealth")]
        if shape != [len(FRACTIONS)] * 2:
            raise BalcalError(f"wealth must be two lists of {len(FRACTIONS)} numbers")
        made.wealth = [[check_number(money, "wealth") for money in bets] for bets in made.wealth]
        for direction in plain_list(made.rung, "rung"):
            check_choice(direction, "rung", ("up", "down"))
        return made

    def _mean(self, part: Floats) -> float:
        """Mean of recent values: each sample weighs a little less than the one after it."""
        fade = 1 - 1 / RECENT
        before = RECENT * (1 - fade**self.seen) * fade ** len(part)
        weights = fade ** np.arange(len(part))[::-1]
        return float((before * self.recent + weights @ part) / (before + weights.sum()))


def _unspent(t: NDArray[Any]) -> Floats:
    """The stake that is left after t samples; falls to 0, slowly."""
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
    """A lower bound of the mean of values in [0, 1]: it is too high with probability at most delta.

    >>> lower_bound(np.array([0.0, 1.0] * 500), 0.05) < 0.5 < 1 - lower_bound(1 - np.array([0.0, 1.0] * 500), 0.05)
    True
    """
    low, high = 0.0, float(values.mean())
    for _ in range(24):
        m = (low + high) / 2
        wealth = _mean_of_logs(np.log1p(np.outer(values / max(m, 1e-12) - 1, FRACTIONS)).sum(0)[None])[0]
        low, high = (m, high) if wealth >= -np.log(delta) else (low, m)
    return low
