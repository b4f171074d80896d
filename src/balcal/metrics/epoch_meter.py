"""Figures of an epoch for the training loop: a few sums on the batches' device, without checks or synchronisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from balcal.core import Record
from balcal.metrics.bins import BinSums, zeros
from balcal.metrics.inputs import finite_scores


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
    def add(self, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        top, pick = log_probs.max(1)
        self.bins.add(top.exp(), pick == labels, weights=weights)
        own = log_probs.gather(1, labels[:, None])
        self.loss -= (own if weights is None else own * weights[:, None]).sum(dtype=self.loss.dtype)

    def tensors(self) -> list[Tensor]:
        """The sums that processes add up (all-reduce)."""
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


class TemperedNll:
    """The NLL after temperature scaling, from one sum for each of 36 temperatures: 16 to 1/8, five to the octave.

    A parabola interpolates between them, with an error below one part in a thousand.

    >>> meter = TemperedNll()
    >>> meter.add(torch.tensor([[4.0, 0.0]] * 4).log_softmax(1), torch.tensor([0, 0, 0, 1]))
    >>> round(meter.compute(), 3)  # three of four: the entropy of 3/4 and 1/4 is 0.562
    0.562
    """

    OCTAVES = torch.linspace(-4, 3, 36, dtype=torch.float64)
    """log2 of 1 / T"""

    def __init__(self, device: torch.device | None = None) -> None:
        self.loss = zeros(len(self.OCTAVES), device=device)
        self.count = zeros(1, device=device)

    @torch.no_grad()
    def add(self, log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        z = finite_scores(log_probs)
        z = z - z.gather(1, labels[:, None])
        for number, octave in enumerate(self.OCTAVES.tolist()):
            each = (z * 2.0**octave).logsumexp(1)
            self.loss[number] += (each if weights is None else each * weights).sum(dtype=self.loss.dtype)
        self.count += len(labels) if weights is None else weights.sum()

    def tensors(self) -> list[Tensor]:
        """The sums that processes add up (all-reduce)."""
        return [self.loss, self.count]

    def compute(self) -> float:
        values = (self.loss / self.count).tolist()
        low = min(range(len(values)), key=values.__getitem__)
        if low in (0, len(values) - 1):
            return float(values[low])
        before, here, after = values[low - 1 : low + 2]
        bend = before - 2 * here + after
        return float(here - (after - before) ** 2 / (8 * bend)) if bend > 0 else float(here)


def lowest_tempered(history: Sequence[Record]) -> int:
    """The epoch with the lowest tempered NLL, the first of equal ones. Old records without it do not count."""
    return min(range(len(history)), key=lambda epoch: history[epoch].get("val_nll_ts", math.inf))


def lowest_head_losses(history: Sequence[Record]) -> int:
    """The epoch with the lowest sum of the branches' losses, the first of equal ones. Records without it do not count.

    >>> lowest_head_losses([{"val_head_losses": 3.0}, {"val_head_losses": 2.0}, {}])
    1
    """
    return min(range(len(history)), key=lambda epoch: history[epoch].get("val_head_losses", math.inf))


def most_accurate(history: Sequence[Record]) -> int:
    """The first of the epochs with the highest validation accuracy."""
    return max(range(len(history)), key=lambda epoch: float(history[epoch]["val_acc"]))
