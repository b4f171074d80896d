"""Accuracy and proper scores."""

from __future__ import annotations

from typing import Any

import torch

from balcal.metrics.inputs import read


def accuracy(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """Share of samples whose most probable class is the label. Higher is better.

    >>> accuracy(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])
    0.5
    """
    p, _, y = read(probs, log_probs, labels)
    return float((p.argmax(1) == y).double().mean())


def nll(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """mean(-log p_label), in nats. Lower is better; infinite if a label was given probability 0.

    >>> round(nll(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1]), 6)
    0.490415
    """
    _, log_p, y = read(probs, log_probs, labels)
    return float(-log_p.gather(1, y[:, None]).mean())


def brier(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """mean over samples of sum_k (p_k - 1[k = label])^2, from 0 to 2. Lower is better.

    >>> brier(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    0.25
    """
    p, _, y = read(probs, log_probs, labels)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


METRICS = {"accuracy": accuracy, "nll": nll, "brier": brier}
