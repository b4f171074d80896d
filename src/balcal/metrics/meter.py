"""Figures of the top label for the training loop: no checks, no waiting, a few sums on the device of the batches."""

from __future__ import annotations

import torch
from torch import Tensor

from balcal.metrics.bins import BinSums
from balcal.metrics.streaming import zeros


class TopLabel:
    """Accuracy, NLL, mean confidence and ECE from 3 x 15 + 1 numbers.

    >>> meter = TopLabel(bins=2)
    >>> meter.add(torch.tensor([[0.6, 0.4], [0.2, 0.8]]).log(), torch.tensor([1, 1]))
    >>> {name: round(value, 4) for name, value in meter.compute().items()}
    {'acc': 0.5, 'nll': 0.5697, 'conf': 0.7, 'ece': 0.2}
    """

    def __init__(self, bins: int = 15, device: torch.device | None = None) -> None:
        self.bins = BinSums(bins, device)
        self.loss = zeros(1, device=device)

    @torch.no_grad()
    def add(self, log_probs: Tensor, labels: Tensor) -> None:
        top, pick = log_probs.max(1)
        self.bins.add(top.exp(), pick == labels)
        self.loss -= log_probs.gather(1, labels[:, None]).sum(dtype=self.loss.dtype)

    def tensors(self) -> list[Tensor]:
        """What processes add up among themselves."""
        return [*self.bins.sums.values(), self.loss]

    def compute(self) -> dict[str, float]:
        table = self.bins.table()
        figures = table.figures()
        return {
            "acc": figures["accuracy"],
            "nll": float(self.loss) / table.samples,
            "conf": figures["mean_confidence"],
            "ece": figures["ece"],
        }
