"""Labels are class indices: a check that they are."""

from __future__ import annotations

import torch
from torch import Tensor

from balcal.core import BalcalError


def check_labels(labels: Tensor, num_classes: int | None, where: str) -> None:
    """Labels must be a list of whole numbers; from 0 to K-1, if K is given."""
    if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1:
        kind = f"{labels.dtype} {tuple(labels.shape)}"
        raise BalcalError(f"labels in {where} must be a list of class indices, not {kind}")
    whole = labels.long()
    if num_classes is None or not len(labels) or 0 <= whole.min() <= whole.max() < num_classes:
        return
    bad = int(whole[(whole < 0) | (whole >= num_classes)][0])
    bad += 2**64 if bad < 0 and labels.dtype == torch.uint64 else 0
    classes = f"with {num_classes} classes labels run from 0 to {num_classes - 1}"
    raise BalcalError(f"label {bad} in {where} is out of range: {classes}")
