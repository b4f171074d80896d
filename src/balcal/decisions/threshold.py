"""Act or abstain: the lowest confidence from which a promise holds, with a stated probability."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError, Predictions
from balcal.decisions.promise import Promise, Threshold, above, scored
from balcal.decisions.search import Floats, between, furthest_accurate, furthest_rare, promising, steps
from balcal.metrics.exact import clopper_pearson, fewest
from balcal.metrics.groups import members, read_groups
from balcal.metrics.inputs import Rows, read, read_predictions
from balcal.metrics.metric import by_name
from balcal.runtime.values import check_number, check_whole

MOST_PARTS = 10_000
"""classes or groups that get a threshold of their own"""


@by_name
def threshold(
    predictions: Predictions | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    accuracy: float | None = None,
    error_rate: float | None = None,
    false_positive_rate: float | None = None,
    confidence: float = 0.95,
    per_class: bool = False,
    groups: Any = None,
    positive: int | None = None,
) -> Threshold:
    """Find the lowest confidence from which one may act on a prediction, with a guarantee.

    The promise holds with probability `confidence` over the draw of the held-out samples, for every number of them,
    although the threshold is searched (`balcal.decisions.search` says why). It is about samples drawn as these were.

    Parameters
    ----------
    predictions
        Of held-out data; or pass arrays by name.
    probs, log_probs
        (N, K) of held-out samples; one of the two.
    labels
        (N,) class indices.
    accuracy
        Promise that at least this share of the accepted samples is right; 0.99 if nothing else is asked.
    error_rate
        Or that accepted mistakes are at most this share of all samples.
    false_positive_rate
        Or that at most this share of the samples of other classes is taken for `positive`.
    confidence
        Probability that the promise is true.
    per_class
        A threshold for each predicted class. All promises are true together with probability `confidence`.
    groups
        (N,) names: a threshold for each group, in the same manner.
    positive
        The class that `false_positive_rate` is about; 1 where there are two classes.

    Examples
    --------
    >>> p = [[0.9, 0.1]] * 300 + [[0.6, 0.4]] * 100
    >>> found = threshold(probs=p, labels=[0] * 350 + [1] * 50, accuracy=0.95)
    >>> print(found)
    400 held-out samples: act where confidence is at least 0.75: 75.0% [70.5, 79.2] of samples, 100.0% ... right
    promised: accuracy of at least 95%, with probability 0.95 over these samples
    >>> found.accept(probs=[[0.8, 0.2], [0.7, 0.3]])
    array([ True, False])
    """
    asked: dict[Promise, float | None] = {
        "accuracy": accuracy,
        "error_rate": error_rate,
        "false_positive_rate": false_positive_rate,
    }
    promise, target = _asked(asked)
    _open("confidence", confidence)
    rows = held_out_rows(predictions, probs, log_probs, labels)
    positive = _positive(positive, promise, rows.num_classes)
    if per_class and groups is not None:
        raise BalcalError("thresholds are per class or per group, not both: pass per_class=True or groups=")
    score, predicted = scored(rows, positive)
    truth = rows.labels.cpu().numpy()
    right: NDArray[np.bool_] = truth == (predicted if positive is None else positive)
    search = _Search(promise, target, confidence, rows.table.dtype, positive)
    if not per_class and groups is None:
        return search.whole(score, right)
    if per_class and positive is not None:
        raise BalcalError("a false-positive rate is about one class: name it with positive=, without per_class")
    if per_class:
        strata: dict[Hashable, NDArray[np.bool_]] = {k: predicted == k for k in range(rows.num_classes)}
    else:
        strata = members(read_groups(groups, len(rows)))
    return search.parts(score, right, strata, "class" if per_class else "group")


@dataclass(frozen=True)
class _Search:
    promise: Promise
    target: float
    confidence: float
    dtype: torch.dtype
    positive: int | None

    def whole(self, score: Floats, right: NDArray[np.bool_], level: float | None = None) -> Threshold:
        """One threshold; it is wrong with probability `level`."""
        delta = 1 - self.confidence if level is None else level
        if not len(score):
            return self._record(None, 0, right, score, None)
        order, sizes = steps(score)
        ranked = right[order].astype(np.float64)
        if self.promise == "accuracy":
            accepted = furthest_accurate(ranked, sizes, self.target, delta)
            needed = None if accepted else promising(ranked, sizes, self.target, delta)
        else:
            of = len(right) if self.promise == "error_rate" else int((~right).sum())
            accepted = furthest_rare(1 - ranked, sizes, of, self.target, delta) if of else 0
            needed = None if accepted else int(np.ceil(fewest(1 - self.target, delta) * len(right) / max(of, 1)))
        limit = None
        if accepted:
            refused = float(score[order[accepted]]) if accepted < len(score) else None
            precision = torch.empty(0, dtype=torch.promote_types(self.dtype, torch.float32)).numpy().dtype
            limit = between(float(score[order[accepted - 1]]), refused, precision)
        return self._record(limit, accepted, right[order[:accepted]], score, needed, right)

    def parts(
        self,
        score: Floats,
        right: NDArray[np.bool_],
        strata: Mapping[Hashable, NDArray[np.bool_]],
        by: Literal["class", "group"],
    ) -> Threshold:
        """One threshold for each part. Their samples are independent, so the levels multiply (Šidák 1967)."""
        if len(strata) > MOST_PARTS:
            raise BalcalError(f"{len(strata):,} {by} thresholds are too many: {MOST_PARTS:,} at most")
        level = -np.expm1(np.log(self.confidence) / len(strata))
        found = {name: self.whole(score[inside], right[inside], level) for name, inside in strata.items()}
        taken = np.zeros(len(score), dtype=np.bool_)
        for name, inside in strata.items():
            limit = found[name].threshold
            taken |= inside & above(score, limit if isinstance(limit, float) else None)
        limits = tuple(part.threshold if isinstance(part.threshold, float) else None for part in found.values())
        made = self._record(limits, int(taken.sum()), right[taken], score, None, right)
        return Threshold(**{**vars(made), "by": by, "parts": found})

    def _record(
        self,
        limit: float | tuple[float | None, ...] | None,
        accepted: int,
        right: NDArray[np.bool_],
        score: Floats,
        needed: int | None,
        everywhere: NDArray[np.bool_] | None = None,
    ) -> Threshold:
        n, hits = len(score), int(right.sum())
        positives = 0 if everywhere is None or self.positive is None else int(everywhere.sum())
        return Threshold(
            threshold=limit,
            promise=self.promise,
            target=self.target,
            confidence=self.confidence,
            samples=n,
            accepted=accepted,
            coverage=accepted / n if n else 0.0,
            coverage_interval=clopper_pearson(accepted, n),
            accuracy=hits / accepted if accepted else None,
            accuracy_interval=clopper_pearson(hits, accepted) if accepted else None,
            needed=needed,
            recall=hits / positives if positives else None,
            positive=self.positive,
        )


def held_out_rows(predictions: Predictions | None, probs: Any, log_probs: Any, labels: Any) -> Rows:
    """Held-out predictions, checked: a model's, which must not be of the test role, or arrays by name."""
    if predictions is None:
        return read(probs, log_probs, labels)
    if probs is not None or log_probs is not None or labels is not None:
        raise BalcalError("pass predictions, or arrays by name, not both")
    rows = read_predictions(predictions)
    predictions.for_fitting()
    return rows


def _asked(asked: Mapping[Promise, float | None]) -> tuple[Promise, float]:
    given = {name: value for name, value in asked.items() if value is not None} or {"accuracy": 0.99}
    if len(given) > 1:
        raise BalcalError(f"promise one thing at a time, not {' and '.join(given)}")
    ((promise, target),) = given.items()
    return promise, _open(promise, target)


def _open(name: str, value: Any) -> float:
    if not 0 < check_number(value, name) < 1:
        raise BalcalError(f"{name} must lie between 0 and 1, both left out, not {value}")
    return float(value)


def _positive(positive: int | None, promise: Promise, num_classes: int) -> int | None:
    if promise != "false_positive_rate":
        if positive is not None:
            raise BalcalError("positive= goes with false_positive_rate=: accuracy is about the predicted class")
        return None
    if positive is None and num_classes > 2:
        raise BalcalError("of which class is this the false-positive rate? pass positive=, its index")
    return check_whole(1 if positive is None else positive, "positive", 0, num_classes - 1)
