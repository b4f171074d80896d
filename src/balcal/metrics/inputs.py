"""What metrics accept: probabilities or log-probabilities, said by name, as arrays or tensors of any kind.

A table of predictions is read once, in pieces that fit the processor's cache, on the device where it lies, and checked
on the way; what is kept of it is a few numbers per sample, in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balcal.core import BalcalError, check_labels

CELLS = 1 << 21
"""numbers read at once"""
TOLERANCE = 0.01
"""how far from one a row may sum: half precision with many classes needs some room"""


@dataclass(frozen=True, eq=False)
class TopLabels:
    """Of each sample its confidence, and whether its most probable class (the first, of equal ones) is the label."""

    conf: Tensor
    """(N,) float64, on the CPU"""
    right: Tensor
    """(N,) bool"""
    dtype: torch.dtype = torch.float64
    """the precision in which the confidences were given: bin edges are rounded to it too"""

    def __len__(self) -> int:
        return len(self.conf)

    @property
    def gap(self) -> Tensor:
        """conf - right: positive where the sample makes the model look over-confident."""
        return self.conf - self.right.double()


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of predictions (N, K) and its labels."""

    table: Tensor
    logs: bool
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return self.table.shape[1]

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Checked pieces: (the table as given, its probabilities in at least float32, labels)."""
        step = max(1, CELLS // self.num_classes)
        for start in range(0, len(self), step):
            given = self.table[start : start + step]
            wide = given.float() if given.dtype.itemsize < 4 else given
            probs = wide.exp() if self.logs else wide
            off = float((probs.sum(1) - 1).abs().max())
            if not off <= TOLERANCE or float(probs.min()) < 0:
                _complain(probs, off)
            yield given, probs, self.labels[start : start + step]

    def top(self) -> TopLabels:
        conf, right = [], []
        for given, _, labels in self.chunks():
            pick = first_largest(given)
            best = given.gather(1, pick[:, None])[:, 0].double()
            conf.append((best.exp() if self.logs else best).clamp(max=1).cpu())
            right.append((pick == labels).cpu())
        return TopLabels(torch.cat(conf), torch.cat(right), self.table.dtype)


def first_largest(table: Tensor) -> Tensor:
    """The column of each row's largest number, the first of equal ones. numpy's is twice as fast as torch's."""
    if table.device.type == "cpu" and table.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(table.numpy().argmax(1))
    return table.max(1).indices


def _complain(probs: Tensor, off: float) -> None:
    if not bool(probs.isfinite().all()):
        raise BalcalError("the predictions contain NaN or infinite values")
    raise BalcalError(f"rows must be probabilities that sum to one (one is off by {off:.2g}): are these logits?")


def read(probs: Any, log_probs: Any, labels: Any) -> Rows:
    """The table and its labels, of fitting shape; its numbers are checked when they are read."""
    if (probs is None) == (log_probs is None):
        raise BalcalError("pass exactly one of probs= and log_probs=")
    table = as_tensor(probs if log_probs is None else log_probs)
    if not table.is_floating_point():
        table = table.double()
    answers = as_tensor(labels).to(table.device)
    if table.ndim != 2 or answers.ndim != 1 or len(table) != len(answers):
        raise BalcalError(
            f"expected probabilities (N, K) and N labels, got {tuple(table.shape)} and {tuple(answers.shape)}"
        )
    if not len(answers):
        raise BalcalError("there are no samples to measure")
    if table.shape[1] < 2:
        raise BalcalError("one column is not a distribution: of two classes pass both, np.stack([1 - p, p], axis=1)")
    check_labels(answers, table.shape[1], "the data")
    return Rows(table, log_probs is not None, answers.long())


def as_tensor(values: Any) -> Tensor:
    """Tensors stay where they are; arrays share their memory; lists are read in float64, as numpy does."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype == np.longdouble or not array.dtype.isnative:
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    if array.dtype.kind not in "biuf":
        raise BalcalError(f"expected numbers, got an array of {array.dtype}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a read-only array: we do not write
        return torch.from_numpy(np.ascontiguousarray(array))
