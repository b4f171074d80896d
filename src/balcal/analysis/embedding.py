"""Features on a plane, by van der Maaten & Hinton's t-SNE as scikit-learn has it; and how well classes keep apart.

A t-SNE is a picture, not a measurement: distances between groups mean little. The silhouette of the features
themselves (1: dense and far apart, 0: touching, below: mixed up) says in a number what the picture suggests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError

PERPLEXITY = 30.0


def tsne(features: Tensor | NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """(N, 2). The same numbers for the same features and seed on one machine."""
    from sklearn.manifold import TSNE

    if len(features) < 4:
        raise BalcalError(f"{len(features)} samples make no map: t-SNE needs at least 4")
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(
        np.asarray(features, dtype=np.float64)
    )
    return np.asarray(placed, dtype=np.float64)


def silhouette(features: Tensor, labels: Tensor) -> float:
    """Mean over images of (b - a) / max(a, b): a the mean distance to its own class, b to the nearest other one."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(features.double().numpy(), labels.numpy()))
