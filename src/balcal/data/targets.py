"""Labels of a batch where they are not one class index each: samples that count differently, and soft labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from balcal.core import BalcalError, Loss, Outputs, Sums, Tally
from balcal.runtime.labels import check_labels


@dataclass(frozen=True, eq=False)
class Weighted:
    """Labels that count differently: class indices (N,), or soft labels (N, K), and how much each sample counts."""

    labels: Tensor
    weights: Tensor
    """(N,)"""

    def __len__(self) -> int:
        return len(self.labels)

    def map(self, change: Callable[[Tensor], Tensor]) -> Weighted:
        return Weighted(change(self.labels), change(self.weights))

    def to(self, device: Any, non_blocking: bool = False) -> Weighted:
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def cpu(self) -> Weighted:
        return self.to("cpu")

    def numbers(self) -> Tensor:
        """The number of each sample. Where a method permutes labels, these find labels and weights again."""
        return torch.arange(len(self), device=self.labels.device)

    def rows(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(row, label, weight) of the samples with these numbers; a soft label becomes a row for each of its classes.

        >>> soft = Weighted(torch.tensor([[0.25, 0.75], [1.0, 0.0]]), torch.tensor([1.0, 2.0]))
        >>> [each.tolist() for each in soft.rows(torch.tensor([0, 1]))]
        [[0, 0, 1], [0, 1, 0], [0.25, 0.75, 2.0]]
        """
        labels, weights = self.labels[numbers], self.weights[numbers]
        if labels.ndim == 1:
            return torch.arange(len(numbers), device=labels.device), labels, weights
        row, label = labels.nonzero(as_tuple=True)
        return row, label, labels[row, label].to(weights.dtype) * weights[row]

    def take(self, numbers: Tensor) -> Weighted:
        return self.map(lambda tensor: tensor[numbers])

    def hard(self) -> Tensor:
        """The likeliest class of each sample."""
        return self.labels if self.labels.ndim == 1 else self.labels.argmax(1)


Labels = Tensor | Weighted


def as_rows(labels: Labels) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """(row, label, weight); None where each row has one label, and where all count the same."""
    return labels.rows(labels.numbers()) if isinstance(labels, Weighted) else (None, labels, None)


def soft_labels(labels: Tensor, where: str) -> Tensor:
    """Rows of probabilities; rows of zeros and a single one are class indices.

    >>> soft_labels(torch.tensor([[0, 1], [1, 0]]), "batch 1")
    tensor([1, 0])
    """
    rows = labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
    if not bool(((rows >= 0) & rows.isfinite()).all()) or bool(((rows.sum(1) - 1).abs() > 1e-3).any()):
        raise BalcalError(f"soft labels in {where} must be rows of probabilities: none below 0, each row's sum 1")
    if bool(((rows == 0) | (rows == 1)).all()):
        return rows.argmax(1)
    return rows / rows.sum(1, keepdim=True)


def weighted_loss(loss: Loss, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of a loss over samples. A loss that compares samples says itself how: `weighted(...)`."""
    own = getattr(loss, "weighted", None)
    if not bool((weights > 0).any()):
        return 0 * logits.sum()
    if own is not None:
        return cast(Tensor, own(logits, labels, weights))

    def of_one(row: Tensor, label: Tensor) -> Tensor:
        return loss(row[None], label[None])

    try:
        each = torch.vmap(of_one)(logits, labels)
    except RuntimeError:  # what cannot be vectorised is computed sample by sample
        each = torch.stack([of_one(row, label) for row, label in zip(logits, labels, strict=True)])
    with torch.no_grad():
        whole, mean = loss(logits, labels), each.mean()
    if not torch.allclose(whole, mean, rtol=1e-3, atol=1e-4):
        raise BalcalError(
            f"{loss} is no mean over samples, so it must say how samples are weighted: give it `weighted`"
        )
    return (weights * each).sum() / weights.sum()


def tally_rows(tally: Tally, sums: Sums, outputs: Outputs, labels: Labels) -> None:
    """Let a tally count a batch, whose samples may have weights or soft labels."""
    row, hard, weights = as_rows(labels)
    if row is None or weights is None:
        tally.add(sums, outputs, hard)
    else:
        tally.add(sums, replace(outputs, logits=outputs.logits[:, row]), hard, weights)


def check_targets(labels: Labels, num_classes: int, where: str) -> None:
    if not isinstance(labels, Weighted):
        check_labels(labels, num_classes, where)
    elif labels.labels.ndim == 1:
        check_labels(labels.labels, num_classes, where)
