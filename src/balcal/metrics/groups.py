"""Does it hold for each group? Calibration of groups of samples, tested together.

In a calibrated group each sample is right with the probability that is its confidence. So the number of right ones
follows a known law, and its p-value is exact. The p-values of all groups are corrected as by Holm: one group or more
is blamed falsely with probability alpha at most.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from balcal.core import BalcalError
from balcal.metrics.exact import clopper_pearson, coins_p_value, holm
from balcal.metrics.inputs import TopLabels
from balcal.metrics.verdict import Verdict

LEVEL = 0.05
POWER = 0.8
COARSE = 0.1
"""a group in which only gaps above this can be detected is too small to say anything"""
MOST_GROUPS = 10_000


@dataclass(frozen=True)
class GroupFinding:
    """One group: its figures, and whether its gap is more than chance. `..._interval` are 95 %."""

    samples: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    mean_confidence: float
    gap: float
    """mean confidence - accuracy"""
    p_value: float
    """of a calibrated group, corrected for the number of groups"""
    detectable: float
    """the smallest gap that would be found in four of five such samples"""

    @property
    def too_small(self) -> bool:
        return self.detectable > COARSE

    @property
    def sentence(self) -> str:
        few = f"; too small: only a gap above {self.detectable:.1%} would show" if self.too_small else ""
        if self.p_value > LEVEL:
            return f"no gap found, above {self.detectable:.1%} it would show" if not few else f"no gap found{few}"
        return f"{'over' if self.gap > 0 else 'under'}-confident by {abs(self.gap):.1%} (p = {self.p_value:.2g}){few}"


@dataclass(frozen=True)
class GroupVerdict:
    """The groups of a set of predictions, by name. Prints as a line for each."""

    groups: Mapping[Hashable, GroupFinding]

    @property
    def failing(self) -> list[Hashable]:
        """Names of groups whose gap is more than chance."""
        return [name for name, each in self.groups.items() if each.p_value <= LEVEL]

    @property
    def worst(self) -> Hashable:
        """The group with the largest gap, either way."""
        return max(self.groups, key=lambda name: abs(self.groups[name].gap))

    def as_dict(self) -> dict[str, Any]:
        return {str(name): asdict(each) | {"too_small": each.too_small} for name, each in self.groups.items()}

    def __str__(self) -> str:
        head = f"{len(self.groups)} groups, {len(self.failing)} with a gap that chance does not explain (Holm, 5 %)"
        width = max(len(str(name)) for name in self.groups)
        rows = [
            f"  {name!s:<{width}}  {g.samples:>9,}  accuracy {g.accuracy:6.1%}  confidence {g.mean_confidence:6.1%}  "
            f"{g.sentence}"
            for name, g in self.groups.items()
        ]
        return "\n".join([head, *rows])


@dataclass(frozen=True)
class GroupedVerdict(Verdict):
    """A verdict on all samples, and on each group of them. Prints as both."""

    groups: GroupVerdict = GroupVerdict({})

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"groups": self.groups.as_dict()}

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.groups}"


def grouped(found: Verdict, top: TopLabels, groups: Any) -> GroupedVerdict:
    """The verdict with its groups."""
    return GroupedVerdict(**vars(found), groups=group_verdict(top, groups))


def group_verdict(top: TopLabels, groups: Any) -> GroupVerdict:
    """Judge each group by its confidences and right answers.

    >>> import torch
    >>> top = TopLabels(torch.full((600,), 0.9), torch.arange(600) % 10 > 0)
    >>> top.right[:100] = False
    >>> print(group_verdict(top, ["new"] * 100 + ["old"] * 500))
    2 groups, 1 with a gap that chance does not explain (Holm, 5 %)
      new        100  accuracy   0.0%  confidence  90.0%  over-confident by 90.0% (p = 4e-100)
      old        500  accuracy  90.0%  confidence  90.0%  no gap found, above 4.1% it would show
    """
    parts = masks(groups, len(top))
    conf, right = top.conf.numpy(), top.right.numpy()
    p_values = holm([coins_p_value(conf[inside], int(right[inside].sum())) for inside in parts.values()])
    found = {}
    for (name, inside), p_value in zip(parts.items(), p_values, strict=True):
        n, hits, mean = int(inside.sum()), int(right[inside].sum()), float(conf[inside].mean())
        variance = float((conf[inside] * (1 - conf[inside])).mean())
        found[name] = GroupFinding(
            n,
            hits / n,
            clopper_pearson(hits, n),
            mean,
            mean - hits / n,
            float(p_value),
            smallest_gap(variance, n, len(parts)),
        )
    return GroupVerdict(found)


def smallest_gap(variance: float, n: int, tests: int = 1, level: float = LEVEL, power: float = POWER) -> float:
    """The gap that a two-sided test finds with this power. Never below what a single mistake makes.

    >>> round(smallest_gap(0.09, 1000), 4)
    0.0266
    """
    sides = float(special.ndtri(1 - level / (2 * tests)) + special.ndtri(power))
    return min(1.0, max(sides * math.sqrt(variance / n), 1 / n))


def read_groups(groups: Any, n: int) -> NDArray[Any]:
    """The name of each sample's group: whole numbers or texts, one for each sample, each group with two or more."""
    try:
        names = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    except ValueError:
        names = np.empty((0, 0))
    if names.ndim != 1 or len(names) != n:
        raise BalcalError(f"groups must name the group of each of {n:,} samples, not be of shape {names.shape}")
    if names.dtype.kind == "O":
        if not all(isinstance(name, str | int | np.integer) for name in names):
            raise BalcalError("groups must be names or whole numbers, without None or other objects")
        names = names.astype(str)
    if names.dtype.kind not in "biuUS":
        raise BalcalError(f"groups must be names or whole numbers, not {names.dtype}")
    return names


def members(names: NDArray[Any]) -> dict[Hashable, NDArray[np.bool_]]:
    """Which samples each group has. Groups of a single sample are refused."""
    found, counts = np.unique(names, return_counts=True)
    if len(found) > MOST_GROUPS:
        raise BalcalError(f"{len(found):,} groups are too many, {MOST_GROUPS:,} at most: are these values, not names?")
    if counts.min() < 2:
        lone = found[counts < 2]
        raise BalcalError(
            f"group `{lone[0]}` has one sample, of which nothing can be said: merge it with another, or leave it out"
        )
    return {name.item(): names == name for name in found}


def masks(groups: Any, n: int) -> dict[Hashable, NDArray[np.bool_]]:
    """Which samples each group has, from names of groups or from a mapping of names to masks, which may overlap."""
    if not isinstance(groups, Mapping):
        return members(read_groups(groups, n))
    found = {
        name: np.asarray(mask.detach().cpu() if hasattr(mask, "detach") else mask) for name, mask in groups.items()
    }
    for name, mask in found.items():
        if mask.dtype != np.bool_ or mask.shape != (n,):
            raise BalcalError(f"group `{name}` must be a mask of {n:,} times true or false")
        if mask.sum() < 2:
            raise BalcalError(f"group `{name}` has {mask.sum()} samples, of which nothing can be said: leave it out")
    if not found:
        raise BalcalError("there are no groups: name at least one")
    return found
