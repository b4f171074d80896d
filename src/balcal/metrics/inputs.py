"""Read and check what metrics accept: probabilities, log-probabilities or logits, as arrays or tensors of any kind.

All predictions pass through `read`, so files, functions and calibrators refuse the same things. A table is checked
once, in pieces that fit the processor's cache, on its own device. It stays as it is; metrics keep a few numbers per
sample, in float64.

Rows must sum to one. Rounding to float32 is left alone. A row that is off by more is divided by its sum: silently if
its precision explains the error, as half precision does, else with a warning. A row that is off by more than 1 % is
refused.

`finite_scores` serves whoever computes with logits or log-probabilities: it removes infinities and huge numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balcal.core import BalcalError, Predictions, at_least_float32, check_labels
from balcal.runtime.values import as_tensor

CELLS = 1 << 21
"""numbers read at once"""
ROUNDING = 1e-5
"""how far from one float32 leaves a row of many classes; such rows stay as they are, to the bit"""
TOLERANCE = 0.01
"""how far from one a row may sum at all"""
FAINT = 104.0
"""A stored probability of 0 is one that float32 cannot tell from 0: below exp(-104). Its log is taken as that, not as
-inf or some huge number, which would drown every other sample."""
LOWEST = 1e4
"""how far below the largest of its row a finite score is kept"""
LARGE = 1e4
"""Scores around a number beyond this lose digits, in the end all that tell them apart. Their largest is made 0."""


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
    """A table of predictions (N, K) and its labels, checked. Made by `read`."""

    table: Tensor
    """as it was given: the largest of a row is the prediction, but rows need not sum to one"""
    logs: bool
    labels: Tensor
    sums: Tensor | None = None
    """(N,) float64: what each row is to be divided by; none, if every row is a distribution as it is"""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return self.table.shape[1]

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(a piece of the table, its probabilities in at least float32, labels). Rows sum to one."""
        for _, whole, labels in self.pieces():
            wide = at_least_float32(whole)
            yield whole, wide.exp() if self.logs else wide, labels

    def pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(a piece of the table as given, the same with rows that sum to one, labels)."""
        for part in _parts(self.table):
            yield self.table[part], self._whole(part), self.labels[part]

    def _whole(self, part: slice) -> Tensor:
        given = self.table[part]
        if self.sums is None:
            return given
        sums = self.sums[part, None]
        return given.double() - sums.log() if self.logs else given.double() / sums

    def top(self) -> TopLabels:
        conf, right = [], []
        for given, whole, labels in self.pieces():
            pick = first_largest(given)
            best = whole.gather(1, pick[:, None])[:, 0].double()
            conf.append((best.exp() if self.logs else best).clamp(max=1).cpu())
            right.append((pick == labels).cpu())
        return TopLabels(torch.cat(conf), torch.cat(right), self.table.dtype)

    def whole(self) -> Tensor:
        """The table with rows that sum to one: as it was given, where they do."""
        return self._whole(slice(None))

    def log_probs(self) -> Tensor:
        """The same as log-probabilities, in at least float32."""
        wide = at_least_float32(self.whole())
        return wide if self.logs else wide.log()


def _parts(table: Tensor) -> Iterator[slice]:
    step = max(1, CELLS // table.shape[1])
    return (slice(start, start + step) for start in range(0, len(table), step))


def first_largest(table: Tensor) -> Tensor:
    """The column of each row's largest number, the first of equal ones. On the CPU numpy is twice as fast as torch."""
    if table.device.type == "cpu":
        return torch.from_numpy(at_least_float32(table).numpy().argmax(1))
    return table.max(1).indices


def read(probs: Any, log_probs: Any, labels: Any) -> Rows:
    """The table and its labels, checked."""
    table, logs = _given(probs, log_probs)
    if labels is None:
        raise BalcalError("pass labels= as well: the class index of each sample")
    answers = as_tensor(labels, "the labels").to(table.device)
    if answers.ndim != 1 or len(table) != len(answers):
        raise BalcalError(
            f"expected probabilities (N, K) and N labels, got {tuple(table.shape)} and {tuple(answers.shape)}"
        )
    check_labels(answers, table.shape[1], "the data")
    return Rows(table, logs, answers.long(), _sums(table, logs))


def read_unlabelled(probs: Any, log_probs: Any) -> Rows:
    """The table alone; every sample is given class 0."""
    table, logs = _given(probs, log_probs)
    return Rows(table, logs, table.new_zeros(len(table), dtype=torch.long), _sums(table, logs))


def _given(probs: Any, log_probs: Any) -> tuple[Tensor, bool]:
    if (probs is None) == (log_probs is None):
        raise BalcalError("pass exactly one of probs= and log_probs=")
    return read_table(log_probs if probs is None else probs, "probabilities"), probs is None


def read_predictions(predictions: Any) -> Rows:
    """The predictions of a model, checked like all others."""
    if not isinstance(predictions, Predictions):
        raise BalcalError(
            f"expected predictions, got {type(predictions).__name__}: pass arrays by name, probs= and labels="
        )
    return read(None, predictions.log_probs, predictions.labels)


def read_logits(logits: Any) -> Tensor:
    """Logits (N, K), in at least float32. -inf is the logit of an impossible class; NaN and +inf are refused."""
    table = at_least_float32(read_table(logits, "logits"))
    for part in _parts(table):
        top = table[part].amax(1)
        if not bool(top.isfinite().all()) or bool(table[part].isnan().any()):
            raise BalcalError(f"expected finite logits (N, K), got {tuple(table.shape)} with NaN or infinite values")
    return table


def read_table(given: Any, what: str) -> Tensor:
    """A table (N, K) of floating-point numbers, with at least one row and two columns."""
    table = as_tensor(given, f"the {what}")
    if not table.is_floating_point():
        table = table.double()
    if table.ndim != 2:
        raise BalcalError(f"expected {what} (N, K), a row for each sample, got an array of shape {tuple(table.shape)}")
    if not len(table):
        raise BalcalError("there are no samples to measure")
    if table.shape[1] < 2:
        raise BalcalError("one column is not a distribution: of two classes pass both, np.stack([1 - p, p], axis=1)")
    return table


def _sums(table: Tensor, logs: bool) -> Tensor | None:
    """What each row sums to; none, if all rows sum to one. Rows that are no distribution are an error."""
    worst, sums = 0.0, None
    for part in _parts(table):
        wide = at_least_float32(table[part])
        probs = wide.exp() if logs else wide
        total = probs.sum(1)
        off = float((total - 1).abs().max())
        if not off <= TOLERANCE or float(probs.min()) < 0:
            _complain(probs, off)
        if off > ROUNDING:
            total = (wide.double().exp() if logs else wide.double()).sum(1)
            sums = table.new_ones(len(table), dtype=torch.float64) if sums is None else sums
            sums[part] = torch.where((total - 1).abs() > ROUNDING, total, 1.0)
        worst = max(worst, off)
    if worst > _explained(table, logs):
        warnings.warn(
            f"rows of these predictions do not sum to one (one is off by {worst:.2g}): they are divided by their sum",
            stacklevel=4,
        )
    return sums


def _explained(table: Tensor, logs: bool) -> float:
    """How far from one the precision of the table may have brought a row; a logarithm's error grows with its size."""
    if table.dtype.itemsize >= 4:
        return ROUNDING
    return torch.finfo(table.dtype).eps * (1 + math.log(table.shape[1]) if logs else 1)


def _complain(probs: Tensor, off: float) -> None:
    if not bool(probs.isfinite().all()):
        raise BalcalError("the predictions contain NaN or infinite values")
    if float(probs.min()) < 0:
        raise BalcalError(f"a probability is negative ({float(probs.min()):.2g}): are these logits?")
    raise BalcalError(f"rows must be probabilities that sum to one (one is off by {off:.2g}): are these logits?")


def finite_scores(scores: Tensor, lowest: Tensor | float = LOWEST) -> Tensor:
    """Logits or log-probabilities (..., K) without -inf and without huge numbers.

    -inf becomes the least finite score of its row, at least 104 below the largest one. No score stays more than
    `lowest` below the largest. Rows of very large scores are shifted so that their largest is 0.

    >>> finite_scores(torch.tensor([[0.0, -3.0, -torch.inf], [0.0, -200.0, -torch.inf]]))
    tensor([[   0.,   -3., -104.],
            [   0., -200., -200.]])
    >>> finite_scores(torch.tensor([[1e20, 0.0]]))
    tensor([[     0., -10000.]])
    """
    top = scores.amax(-1, keepdim=True)
    shift = torch.where(top.abs() > LARGE, top, torch.zeros_like(top))
    scores, top = scores - shift, top - shift
    void = scores == -torch.inf
    least = torch.minimum(scores.masked_fill(void, torch.inf).amin(-1, keepdim=True), top - FAINT)
    return torch.maximum(torch.where(void, least, scores), top - lowest)
