"""Figures of the top label by sums: constant memory, batch by batch, process by process."""

from __future__ import annotations

import torch
from torch import Tensor

from balcal.core import sum_dtype
from balcal.metrics.calibration import bin_of


class TopLabel:
    """Accuracy, NLL, mean confidence and ECE from 3 + 15 numbers.

    >>> meter = TopLabel(bins=2)
    >>> meter.update(torch.tensor([[0.6, 0.4], [0.2, 0.8]]).log(), torch.tensor([1, 1]))
    >>> {name: round(value, 4) for name, value in meter.compute().items()}
    {'acc': 0.5, 'nll': 0.5697, 'conf': 0.7, 'ece': 0.2}
    """

    def __init__(self, bins: int = 15, device: torch.device | None = None) -> None:
        device = device or torch.device("cpu")
        self.bins = bins
        self.sums = torch.zeros(4, dtype=sum_dtype(device), device=device)
        """samples, right answers, -log p_label, confidence"""
        self.gaps = torch.zeros(bins, dtype=sum_dtype(device), device=device)

    @torch.no_grad()
    def update(self, log_probs: Tensor, labels: Tensor) -> None:
        top, pick = log_probs.max(1)
        conf, right = top.exp().to(self.sums.dtype), (pick == labels).to(self.sums.dtype)
        loss = -log_probs.gather(1, labels[:, None])[:, 0].to(self.sums.dtype)
        self.sums += torch.stack([torch.ones_like(right).sum(), right.sum(), loss.sum(), conf.sum()])
        self.gaps.index_add_(0, bin_of(top.exp(), self.bins), conf - right)

    def merge(self, other: TopLabel) -> None:
        self.sums += other.sums
        self.gaps += other.gaps

    def compute(self) -> dict[str, float]:
        n, right, loss, conf = self.sums.tolist()
        return {"acc": right / n, "nll": loss / n, "conf": conf / n, "ece": float(self.gaps.abs().sum()) / n}
