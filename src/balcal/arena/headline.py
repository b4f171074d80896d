"""An arena's answer in one sentence: who is worse than the best, who ties with it, how many seeds could tell them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, variance

from balcal.arena.records import Row
from balcal.arena.result import ArenaResult

POINT = 0.01
MOST = 1000
"""more seeds than anybody would train"""


def headline(result: ArenaResult, table: Sequence[Row]) -> str:
    """By ECE, from the rows of the table."""
    best = result.best("ece")
    if best is None:
        return "No entry has all its seeds"
    if len(result.seeds) == 1:
        return f"{best} has the lowest ECE; one seed cannot say whether that is chance"
    columns = {row.entry: row.columns["ece"] for row in table}
    others = {name: found for name, found in columns.items() if name != best}
    tied = [name for name, found in others.items() if found.ties_best]
    worse = [name for name, found in others.items() if not found.ties_best and found.mean is not None]
    if not tied:
        return f"{best} is better calibrated than all others"
    seeds = f"with {len(result.seeds)} seeds"
    needed = seeds_to_tell([_differences(columns[name].values, columns[best].values) for name in tied])
    if needed is not None and len(result.seeds) < needed <= MOST:
        seeds += f"; {needed} would tell a difference of 1 point"
    if not worse:
        return f"None of the {len(table)} can be told from the best, {best}, {seeds}"
    names = ", ".join(worse[:4]) + (f" and {len(worse) - 4} more" if len(worse) > 4 else "")
    rest = "the other one" if len(tied) == 1 else f"the other {len(tied)}"
    verb = "is" if len(worse) == 1 else "are"
    return f"{names} {verb} worse than the best, {best}; {rest} cannot be told from it {seeds}"


def seeds_to_tell(differences: Sequence[Sequence[float]]) -> int | None:
    """How many seeds would tell a difference of one point in four of five arenas, by the spread of these.

    (1.96 + 0.84)^2 v / 0.01^2, where v is the variance of the differences from seed to seed, its median over the pairs.

    >>> seeds_to_tell([[0.02, 0.00, 0.01]])  # variance 0.0001
    8
    """
    spreads = [variance(each) for each in differences if len(each) > 1]
    if not spreads or not all(map(math.isfinite, spreads)):
        return None
    return max(2, math.ceil((1.96 + 0.84) ** 2 * median(spreads) / POINT**2))


def _differences(first: Sequence[float | None], second: Sequence[float | None]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None]
