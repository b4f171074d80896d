"""Clusters of classes whose scores are distributed alike, for prediction sets of many classes.

Ding, Angelopoulos, Bates, Jordan, Tibshirani: Class-Conditional Conformal Prediction with Many Classes, NeurIPS 2023.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from balcal.core import BalcalError

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
SHARE = 1 / 3
"""of the samples, used to find the clusters"""


def cluster_classes(
    scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    num_classes: int,
    alpha: float,
    clusters: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(cluster of each class, -1 where it has too few samples; samples that were not used for this)."""
    from sklearn.cluster import KMeans  # slow to import, and rarely needed

    rng = np.random.default_rng(seed)
    used = np.zeros(len(scores), dtype=np.bool_)
    used[rng.permutation(len(scores))[: int(SHARE * len(scores))]] = True
    counts = np.bincount(labels[used], minlength=num_classes)
    able = np.flatnonzero(counts >= max(2, math.ceil(1 / alpha - 1)))
    if len(able) < clusters:
        raise BalcalError(
            f"only {len(able)} classes have enough samples to be clustered, fewer than {clusters}: "
            "bring more samples, or ask for fewer clusters"
        )
    levels = sorted({*LEVELS, 1 - alpha})
    points = np.array([np.quantile(scores[used & (labels == k)], levels) for k in able])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fewer distinct points than clusters
        model = KMeans(clusters, n_init=10, random_state=seed)
        found = model.fit_predict(points, sample_weight=np.sqrt(counts[able]))
    cluster = np.full(num_classes, -1, dtype=np.int64)
    cluster[able] = np.unique(found, return_inverse=True)[1]
    return cluster, ~used
