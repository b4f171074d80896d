"""Prediction sets on labelled samples: how often they hold the label, and how large they are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balcal.decisions.scores import Bools
from balcal.metrics.exact import at_most, clopper_pearson, holm
from balcal.metrics.groups import LEVEL, masks, smallest_gap

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Share:
    """How often sets held the label in one part of the samples, with its 95 % interval."""

    samples: int
    coverage: float
    interval: Bounds
    p_value: float | None = None
    """of a coverage as promised, corrected for the number of parts (Holm); for groups"""
    detectable: float | None = None
    """the smallest gap that would be found in four of five such samples; for groups"""

    @property
    def figures(self) -> tuple[int, float, Bounds]:
        return self.samples, self.coverage, self.interval


@dataclass(frozen=True)
class SetReport:
    """Sets on labelled samples: coverage and sizes, overall and in parts. Intervals are 95 %.

    >>> from balcal.decisions import prediction_sets
    >>> p, y = [[0.8, 0.2]] * 80 + [[0.6, 0.4]] * 20, [0] * 80 + [1] * 20
    >>> found = prediction_sets(probs=p, labels=y).evaluate(probs=p, labels=y)
    >>> found.samples, found.coverage, found.mean_size
    (100, 1.0, 1.2)
    """

    samples: int
    promised: float
    coverage: float
    coverage_interval: Bounds
    mean_size: float
    empty: float
    """share of empty sets"""
    single: float
    """share of sets of one class"""
    by_class: Mapping[int, Share]
    by_size: Mapping[int, Share]
    by_group: Mapping[Hashable, Share] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.coverage_interval
        lines = [
            f"{self.samples:,} samples: sets hold the label in {self.coverage:.1%} "
            f"[{low * 100:.1f}, {high * 100:.1f}], promised {self.promised:.1%}; {self.mean_size:.2f} classes on "
            f"average, {self.single:.1%} of sets have one, {self.empty:.1%} none"
        ]
        if self.by_class:
            worst, share = min(self.by_class.items(), key=lambda each: each[1].coverage)
            lines.append(f"  lowest in class {worst}: {_shown(share)}")
        lines += [f"  sets of {size}: {_shown(share)}" for size, share in list(self.by_size.items())[:8]]
        for name, share in self.by_group.items():
            below = share.p_value is not None and share.p_value <= LEVEL
            finding = f"below the promise (p = {share.p_value:.2g})" if below else "no gap found"
            lines.append(f"  group {name}: {_shown(share)}, {finding}, above {share.detectable:.1%} it would show")
        return "\n".join(lines)


def report_on(found: Bools, truth: NDArray[np.int64], promised: float, groups: Any = None) -> SetReport:
    """The report of these sets (N, K) with their labels."""
    sizes, held = found.sum(1), found[np.arange(len(truth)), truth]
    named = {} if groups is None else masks(groups, len(truth))
    p_values = holm([float(at_most(held[m].sum(), m.sum(), promised)) for m in named.values()])
    variance = promised * (1 - promised)
    by_group = {
        name: Share(
            *_share(held[inside]).figures,
            p_value=float(p),
            detectable=smallest_gap(variance, int(inside.sum()), len(named)),
        )
        for (name, inside), p in zip(named.items(), p_values, strict=True)
    }
    overall = _share(held)
    return SetReport(
        len(truth),
        promised,
        overall.coverage,
        overall.interval,
        float(sizes.mean()),
        float((sizes == 0).mean()),
        float((sizes == 1).mean()),
        {int(k): _share(held[truth == k]) for k in np.unique(truth)},
        {int(s): _share(held[sizes == s]) for s in np.unique(sizes)},
        by_group,
    )


def _share(held: Bools) -> Share:
    return Share(len(held), float(held.mean()), clopper_pearson(int(held.sum()), len(held)))


def _shown(share: Share) -> str:
    low, high = share.interval
    return f"{share.coverage:.1%} [{low * 100:.1f}, {high * 100:.1f}] of {share.samples:,}"
