"""Metrics batch by batch and process by process: `update`, `merge`, `compute`.

What an accumulator remembers are sums, so its memory does not grow and any split into batches or processes gives the
same figures. Metrics that rank the samples must keep one confidence each; `Ranked` does, and says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from balcal.core import BalcalError, sum_dtype
from balcal.metrics.inputs import Rows, read


class Accumulator(ABC):
    """Sums of float64 tensors, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        """all that is remembered: adding two of these up is adding up their samples"""

    def update(self, *, probs: Any = None, log_probs: Any = None, labels: Any) -> None:
        """Count a batch. If its numbers are refused, nothing of it was counted."""
        self.add_rows(read(probs, log_probs, labels))

    @abstractmethod
    def add_rows(self, rows: Rows) -> None: ...

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The figures of everything counted so far."""

    def merge(self, other: Accumulator) -> None:
        """Count what another one has counted."""
        mine = {name: tensor.shape for name, tensor in self.sums.items()}
        if type(other) is not type(self) or mine != {name: tensor.shape for name, tensor in other.sums.items()}:
            raise BalcalError(f"cannot merge a {type(other).__name__} into a {type(self).__name__} of other settings")
        for name, tensor in other.sums.items():
            self.sums[name] = self.sums[name] + tensor.to(self.sums[name].device)

    def checked_count(self, name: str = "count") -> float:
        count = float(self.sums[name].sum())
        if count == 0:
            raise BalcalError("there are no samples to measure: update first")
        return count


def zeros(*shape: int, device: torch.device | None = None) -> Tensor:
    return torch.zeros(shape, dtype=sum_dtype(device or torch.device("cpu")), device=device)
