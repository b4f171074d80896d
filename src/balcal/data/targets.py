"""Labels of a batch where they are not one class index each: samples that count differently, and soft labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


def weights_of(given: Any, count: int, where: str) -> Tensor:
    """How much each of a batch's samples counts; once, if nothing is said."""
    if given is None:
        return torch.ones(count)
    try:
        found = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    found = found if found.is_floating_point() else found.float()
    if found.shape != (count,) or not bool((found.isfinite() & (found >= 0)).all()):
        kind = f"{found.dtype} {tuple(found.shape)}" if found.numel() else type(given).__name__
        raise BalcalError(
            f"the third part of {where} must be the weights of its {count} samples, finite and none below 0, not "
            f"{kind}: for several inputs give ((x1, x2), y), or say target="
        )
    return found


def class_weights(given: Any, num_classes: int, labels: Callable[[], Iterable[Labels]]) -> Tensor | None:
    """(K,) from `class_weight=`: "balanced", a mapping from class to weight, or one number for each class.

    "balanced" is scikit-learn's n / (K n_k); it reads the training labels once.
    """
    if given is None:
        return None
    must = f'class_weight must be "balanced", a mapping or {num_classes} numbers, not '
    if isinstance(given, str):
        if given != "balanced":
            raise BalcalError(f'{must}"{given}"')
        counts = torch.zeros(num_classes, dtype=torch.float64)
        for each in labels():
            hard = each.hard()[each.weights > 0] if isinstance(each, Weighted) else each
            check_labels(hard, num_classes, "the training data")
            counts += torch.bincount(hard.cpu(), minlength=num_classes)
        return (counts.sum() / (num_classes * counts)).where(counts > 0, 1.0).float()
    strange = [key for key in given if key not in range(num_classes)] if isinstance(given, Mapping) else []
    try:
        numbers = [given.get(k, 1.0) for k in range(num_classes)] if isinstance(given, Mapping) else list(given)
        found = torch.tensor([float(number) for number in numbers])
    except (TypeError, ValueError):
        raise BalcalError(f"{must}{given!r:.80}") from None
    if strange or len(numbers) != num_classes:
        what = f"class {strange[0]!r}" if strange else f"{len(numbers)} numbers"
        raise BalcalError(f"class_weight has {what}, and there are {num_classes} classes, 0 to {num_classes - 1}")
    if not bool((found.isfinite() & (found >= 0)).all()) or not bool(found.any()):
        raise BalcalError("class_weight must be finite, none below 0, and not all 0")
    return found
