"""The record of a threshold: what it accepts, and how it is said."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.decisions.search import Floats
from balcal.metrics.groups import read_groups
from balcal.metrics.inputs import Rows, first_largest, read_unlabelled
from balcal.metrics.metric import by_name

Promise = Literal["accuracy", "error_rate", "false_positive_rate"]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Threshold:
    """A confidence to act from, what is promised there, and what was found. `..._interval` are 95 %.

    `accept(probs=...)` says for each sample whether to act on it.

    >>> found = Threshold(0.8, "accuracy", 0.9, 0.95, 10, 5, 0.5, (0, 1), 1.0, (0, 1))
    >>> found.accept(probs=[[0.9, 0.1], [0.6, 0.4]])
    array([ True, False])
    """

    threshold: float | tuple[float | None, ...] | None
    """act where confidence is at least this; None: nothing can be guaranteed; one of each class with `per_class`"""
    promise: Promise
    target: float
    confidence: float
    """probability, over the draw of the held-out samples, that the promise is true"""
    samples: int
    accepted: int
    coverage: float
    """share of samples that are accepted"""
    coverage_interval: Bounds
    accuracy: float | None
    """share of the accepted that are right; None where none is accepted"""
    accuracy_interval: Bounds | None
    needed: int | None = None
    """where there is no threshold: held-out samples that it would take, about; None if no number is enough"""
    recall: float | None = None
    """share of the positives that are accepted, for a false-positive rate"""
    positive: int | None = None
    """the class that is accepted, for a false-positive rate"""
    by: Literal["class", "group"] | None = None
    parts: Mapping[Hashable, Threshold] = field(default_factory=dict)
    """of each predicted class, or of each group"""

    @by_name
    def accept(self, *, probs: Any = None, log_probs: Any = None, groups: Any = None) -> NDArray[np.bool_]:
        """Whether to act on each sample: its confidence is at least the threshold, of its class or group if there are.

        >>> found = Threshold(0.8, "accuracy", 0.9, 0.95, 10, 5, 0.5, (0, 1), 1.0, (0, 1))
        >>> found.accept(probs=[[0.9, 0.1], [0.6, 0.4]])
        array([ True, False])
        """
        score, predicted = scored(read_unlabelled(probs, log_probs), self.positive)
        if self.by is None:
            return above(score, self.threshold if isinstance(self.threshold, float) else None)
        names: NDArray[Any] = predicted if self.by == "class" else _groups_of(groups, len(score))
        accepted = np.zeros(len(score), dtype=np.bool_)
        for name, part in self.parts.items():
            limit = part.threshold if isinstance(part.threshold, float) else None
            accepted |= above(score, limit) & (names == name)
        return accepted

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = asdict(self) | {"parts": {str(name): part.as_dict() for name, part in self.parts.items()}}
        return fields if self.parts else {k: v for k, v in fields.items() if k not in ("by", "parts")}

    def sentence(self) -> str:
        if self.parts:
            found = sum(isinstance(part.threshold, float) for part in self.parts.values())
            what = "predicted classes" if self.by == "class" else "groups"
            return (
                f"{found} of {len(self.parts)} {what} have a threshold; together they accept {self.coverage:.1%}"
                f"{_bounds(self.coverage_interval)} of samples, {_found(self)}"
            )
        if self.threshold is None:
            return f"no threshold guarantees {_promised(self)}: {_remedy(self)}"
        if self.threshold == 0.0:
            return f"act always: {_promised(self)} even so; {_found(self)}"
        what = "confidence" if self.positive is None else f"the probability of class {self.positive}"
        return (
            f"act where {what} is at least {_digits(self.threshold)}: {self.coverage:.1%}"
            f"{_bounds(self.coverage_interval)} of samples, {_found(self)}"
        )

    def __str__(self) -> str:
        lines = [f"{self.samples:,} held-out samples: {self.sentence()}"]
        if not self.parts:
            if self.threshold is not None:
                lines.append(f"promised: {_promised(self)}, with probability {self.confidence:g} over these samples")
            return "\n".join(lines)
        lines.append(f"promised in each: {_promised(self)}, in all of them with probability {self.confidence:g}")
        return "\n".join([*lines, *(f"  {self.by} {name}: {part.sentence()}" for name, part in self.parts.items())])


def scored(rows: Rows, positive: int | None) -> tuple[Floats, NDArray[np.int64]]:
    """(what the threshold is compared with, the predicted class) of each sample."""
    scores, predicted = [], []
    for given, whole, _ in rows.pieces():
        pick = first_largest(given)
        at = pick[:, None] if positive is None else torch.full_like(pick, positive)[:, None]
        best = whole.gather(1, at)[:, 0].double()
        scores.append((best.exp() if rows.logs else best).clamp(max=1).cpu().numpy())
        predicted.append(pick.cpu().numpy())
    return np.concatenate(scores), np.concatenate(predicted)


def above(score: Floats, limit: float | None) -> NDArray[np.bool_]:
    return np.zeros(len(score), dtype=np.bool_) if limit is None else score >= limit


def _groups_of(groups: Any, n: int) -> NDArray[Any]:
    if groups is None:
        raise BalcalError("these thresholds are per group: pass groups= as well, the group of each sample")
    return read_groups(groups, n)


def _promised(found: Threshold) -> str:
    if found.promise == "accuracy":
        return f"accuracy of at least {found.target * 100:g}%"
    if found.promise == "error_rate":
        return f"accepted mistakes in at most {found.target * 100:g}% of all samples"
    return f"a false-positive rate of at most {found.target * 100:g}% for class {found.positive}"


def _found(found: Threshold) -> str:
    if found.accuracy is None or found.accuracy_interval is None:
        return "none accepted"
    recall = "" if found.recall is None else f", {found.recall:.1%} of class {found.positive} found"
    return f"{found.accuracy:.1%}{_bounds(found.accuracy_interval)} right{recall}"


def _remedy(found: Threshold) -> str:
    if not found.samples:
        return "there are no samples"
    if found.needed is None:
        return "the most confident predictions are wrong too often, however many samples there are"
    return f"{found.samples:,} held-out samples are too few, it would take about {found.needed:,} like these"


def _bounds(interval: Bounds) -> str:
    return f" [{interval[0] * 100:.1f}, {interval[1] * 100:.1f}]"


def _digits(value: float | tuple[float | None, ...]) -> str:
    """As many digits as tell it from 1."""
    if not isinstance(value, float):
        return str(value)
    return next((text for d in range(4, 17) if float(text := f"{value:.{d}f}") < 1 or value >= 1), repr(value)).rstrip(
        "0"
    )
