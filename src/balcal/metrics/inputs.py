"""What metrics accept: probabilities or log-probabilities, said by name, as arrays or tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from balcal.core import BalcalError, check_labels


def read(probs: Any, log_probs: Any, labels: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(probs, log_probs, labels) in float64 on the CPU, checked."""
    if (probs is None) == (log_probs is None):
        raise BalcalError("pass exactly one of probs= and log_probs=")
    given = torch.as_tensor(probs if log_probs is None else log_probs).detach().cpu().double()
    labels = torch.as_tensor(labels).detach().cpu()
    if given.ndim != 2 or len(given) != len(labels):
        raise BalcalError(
            f"expected probabilities (N, K) and N labels, got {tuple(given.shape)} and {tuple(labels.shape)}"
        )
    if not len(labels):
        raise BalcalError("there are no samples to measure")
    check_labels(labels, given.shape[1], "the data")
    p, log_p = (given, given.log()) if log_probs is None else (given.exp(), given)
    if not bool(p.isfinite().all()):
        raise BalcalError("the predictions contain NaN or infinite values")
    off = float((p.sum(1) - 1).abs().max())
    if off > 0.01 or float(p.min()) < 0:
        raise BalcalError(f"rows must be probabilities that sum to one (one is off by {off:.2g}): are these logits?")
    return p, log_p, labels.long()
