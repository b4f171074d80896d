"""Predictions to measure: arbitrary ones, awkward ones, and ones whose calibration is known."""

import numpy as np
import torch

from balcal.metrics.inputs import TopLabels


def draw(seed, n=300, k=4, spread=2.0):
    """Random probabilities (N, K), and labels that do not depend on them."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * spread
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return p, rng.integers(k, size=n)


def awkward(seed, n=200, k=4):
    """Confidences on bin edges, many ties, exact zeros and ones."""
    rng = np.random.default_rng(seed)
    conf = rng.choice([0.4, 0.6, 0.8, 1.0, 2 / 3, 14 / 15, 0.5, 0.9], size=n)
    p = np.repeat(((1 - conf) / (k - 1))[:, None], k, axis=1)
    p[np.arange(n), rng.integers(k, size=n)] = conf
    return p, rng.integers(k, size=n)


def known(rng, n, accuracy=lambda conf: conf, shape=(6, 1), least=0.1):
    """Confidences from `least` to 1, right as often as `accuracy` says: perfectly calibrated, if it is not given."""
    conf = least + (1 - least) * rng.beta(*shape, n)
    return TopLabels(torch.from_numpy(conf), torch.from_numpy(rng.random(n) < accuracy(conf)))
