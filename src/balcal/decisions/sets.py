"""Which classes are still possible? Prediction sets that hold the label as often as promised (split conformal)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from balcal.core import BalcalError, Predictions
from balcal.decisions.clusters import SHARE, cluster_classes
from balcal.decisions.scores import Bools, Floats, Score
from balcal.decisions.set_report import SetReport, report_on
from balcal.decisions.threshold import held_out_rows
from balcal.metrics.inputs import read, read_unlabelled
from balcal.metrics.metric import by_name
from balcal.runtime.values import as_tensor, check_choice, check_number, check_whole

Method = Literal["lac", "aps", "raps"]
Bounds = tuple[float, float]


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Fitted prediction sets: `predict(probs)` gives a row of true and false for each sample.

    >>> sets = prediction_sets(probs=[[0.8, 0.2]] * 8 + [[0.6, 0.4]] * 12, labels=[0] * 19 + [1])
    >>> sets.least_probability, sets.predict([[0.5, 0.5]])
    (0.6, array([[False, False]]))
    """

    score: Score
    alpha: float
    limits: Floats
    """largest score in a set: one number, or one of each class"""
    samples: int
    classes: int
    randomized: bool
    clusters: tuple[int, ...] | None = None
    """the cluster of each class, -1 for classes with too few samples"""

    @property
    def method(self) -> str:
        return self.score.method

    @property
    def least_probability(self) -> float | tuple[float, ...]:
        """For `lac`: a class is in the set if its probability is at least this (of each class, where they differ)."""
        if self.method != "lac":
            raise BalcalError(f"`{self.method}` has no fixed least probability: it depends on the other classes")
        floors = tuple(float(each) for each in -self.limits)
        return floors[0] if len(floors) == 1 else floors

    def predict(
        self,
        probs: Any = None,
        *,
        log_probs: Any = None,
        randomness: Any = None,
        seed: int | None = None,
        empty: bool = True,
    ) -> Bools:
        """(N, K): whether each class is in the set of each sample.

        Parameters
        ----------
        probs, log_probs
            (N, K); one of the two.
        randomness
            (N,) numbers from 0 to 1 for randomised scores; else drawn with `seed`, anew each time without one.
        empty
            False: an empty set gets the most probable class.

        Examples
        --------
        >>> p = [[0.8, 0.2]] * 8 + [[0.6, 0.4]] * 12
        >>> prediction_sets(probs=p, labels=[0] * 19 + [1]).predict([[0.7, 0.3], [0.5, 0.5]])
        array([[ True, False],
               [False, False]])
        """
        rows = read_unlabelled(probs, log_probs)
        if rows.num_classes != self.classes:
            raise BalcalError(f"fitted on {self.classes} classes, asked about {rows.num_classes}")
        return self.score.sets(rows, self.limits, _uniform(self.randomized, len(rows), randomness, seed), empty)

    @by_name
    def evaluate(
        self, *, probs: Any = None, log_probs: Any = None, labels: Any, groups: Any = None, seed: int | None = None
    ) -> SetReport:
        """Coverage and sizes on other labelled samples, overall, by class, by size and by group."""
        truth = read(probs, log_probs, labels).labels.cpu().numpy()
        return report_on(self.predict(probs, log_probs=log_probs, seed=seed), truth, 1 - self.alpha, groups)

    def band(self, n: int | None = None, probability: float = 0.95) -> Bounds:
        """Where the coverage lies with this probability: of all future samples, or (beta-binomial) of the next n.

        >>> sets = prediction_sets(probs=[[0.8, 0.2]] * 8 + [[0.6, 0.4]] * 12, labels=[0] * 19 + [1])
        >>> [round(end, 3) for end in sets.band()]
        [0.751, 0.988]
        """
        samples = self.samples if self.clusters is None else int(self.samples * (1 - SHARE))
        rank = rank_of(samples, self.alpha)
        ends = ((1 - probability) / 2, (1 + probability) / 2)
        a, b = rank, samples + 1 - rank
        if n is None:
            low, high = (float(stats.beta.ppf(q, a, b)) for q in ends)
            return low, high
        low, high = (float(stats.betabinom.ppf(q, n, a, b)) / n for q in ends)
        return low, high

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "method": self.method,
            "alpha": self.alpha,
            "limits": self.limits.tolist(),
            "samples": self.samples,
            "classes": self.classes,
            "randomized": self.randomized,
            "clusters": None if self.clusters is None else list(self.clusters),
        }

    def __str__(self) -> str:
        low, high = self.band()
        what = f"{self.method} prediction sets from {self.samples:,} held-out samples"
        if len(self.limits) > 1:
            each = "in each class" if self.clusters is None else f"in each of {max(self.clusters) + 1} clusters"
            return f"{what}: they hold the label in at least {1 - self.alpha:.1%}, {each}"
        return (
            f"{what}: they hold the label in at least {1 - self.alpha:.1%} on average over such samples; "
            f"with these it will be {low:.1%} to {high:.1%} (95 %)"
        )


@by_name
def prediction_sets(
    predictions: Predictions | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    alpha: float = 0.1,
    method: Method = "lac",
    per_class: bool = False,
    clusters: int | None = None,
    penalty: float = 0.01,
    free_ranks: int = 5,
    randomized: bool = True,
    randomness: Any = None,
    seed: int = 0,
) -> PredictionSets:
    """Fit prediction sets on held-out samples: they hold the label with probability 1 - alpha at least.

    This is exact for every number of samples and every model, if new samples are drawn as the held-out ones were. It is
    an average over all of them: with `per_class` it holds for the samples of each class.

    Parameters
    ----------
    predictions
        Of held-out data; or pass arrays by name.
    probs, log_probs
        (N, K); one of the two.
    labels
        (N,) class indices.
    alpha
        How often the label may be missing.
    method
        `lac` gives the smallest sets; `aps` and `raps` spread the mistakes more evenly over easy and hard samples.
    per_class
        A limit for each class, from its own samples (Mondrian).
    clusters
        Or a limit for each of so many clusters of classes with similar scores (Ding et al., NeurIPS 2023). A third of the
        samples finds the clusters, the others the limits.
    penalty, free_ranks
        `raps`: what each rank costs, and how many cost nothing.
    randomized
        `aps`, `raps`: count a random share of the class's own probability. Without it sets are larger than needed.
    randomness
        (N,) numbers from 0 to 1 to use for that; else they are drawn with `seed`.

    Examples
    --------
    >>> p = [[0.8, 0.2]] * 80 + [[0.6, 0.4]] * 20
    >>> print(prediction_sets(probs=p, labels=[0] * 80 + [1] * 20))
    lac prediction sets from 100 held-out samples: they hold the label in at least 90.0% on average over such samples; with these it will be 83.6% to 95.1% (95 %)
    """  # noqa: E501
    check_choice(method, "method", ("lac", "aps", "raps"))
    if not 0 < check_number(alpha, "alpha") < 1:
        raise BalcalError(f"alpha must lie between 0 and 1, both left out, not {alpha}")
    if per_class and clusters is not None:
        raise BalcalError("sets are per class or per cluster of classes, not both")
    check_number(penalty, "penalty", 0)
    check_whole(free_ranks, "free_ranks")
    rows = held_out_rows(predictions, probs, log_probs, labels)
    score = Score(method, penalty if method == "raps" else 0.0, free_ranks if method == "raps" else 0)
    randomized = randomized and method != "lac"
    scores = score.of_labels(rows, _uniform(randomized, len(rows), randomness, seed))
    truth = rows.labels.cpu().numpy()
    groups: NDArray[np.int64] | None = None
    if per_class:
        limits = np.array([_limit(scores[truth == k], alpha, f"class {k}") for k in range(rows.num_classes)])
    elif clusters is not None:
        check_whole(clusters, "clusters", 1, rows.num_classes)
        _limit(scores, alpha)
        groups, rest = cluster_classes(scores, truth, rows.num_classes, alpha, clusters, seed)
        limits = np.array([_limit_of_cluster(scores[rest], groups[truth[rest]], alpha, g) for g in groups])
    else:
        limits = np.array([_limit(scores, alpha)])
    kept = None if groups is None else tuple(int(g) for g in groups)
    return PredictionSets(score, float(alpha), limits, len(rows), rows.num_classes, randomized, kept)


def rank_of(n: int, alpha: float) -> int:
    """Which score, in rising order, is the limit: ceil((n + 1)(1 - alpha)).

    >>> rank_of(99, 0.1), rank_of(9, 0.1)
    (90, 9)
    """
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)


def _limit(scores: Floats, alpha: float, where: str = "") -> float:
    n, rank = len(scores), rank_of(len(scores), alpha)
    if rank > n:
        least = math.ceil(1 / alpha - 1 - 1e-9)
        has = f"{where} has" if where else "there are"
        more = ": merge rare classes, or pass clusters=" if where else ""
        raise BalcalError(f"alpha {alpha:g} needs at least {least:,} held-out samples, and {has} {n:,}{more}")
    return float(np.partition(scores, rank - 1)[rank - 1])


def _limit_of_cluster(scores: Floats, cluster: NDArray[np.int64], alpha: float, number: int) -> float:
    """Of a cluster; of all samples for classes that are in none, or if it has too few."""
    inside = scores[cluster == number]
    return _limit(scores if number < 0 or rank_of(len(inside), alpha) > len(inside) else inside, alpha)


def _uniform(randomized: bool, n: int, given: Any, seed: int | None) -> Floats:
    if not randomized:
        if given is not None:
            raise BalcalError("randomness= goes with method aps or raps, and randomized=True")
        return np.zeros(n)
    if given is None:
        return np.random.default_rng(seed).random(n)
    u: Floats = as_tensor(given, "randomness").cpu().double().numpy()
    if u.shape != (n,) or not bool(((u >= 0) & (u <= 1)).all()):
        raise BalcalError(f"randomness must be {n:,} numbers from 0 to 1, one for each sample")
    return u
