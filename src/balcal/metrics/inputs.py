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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from balcal.core import BalcalError, Predictions, at_least_float32
from balcal.metrics.reading import decimals_of, effective_size, read_labels, read_table, read_weights

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
    weights: Tensor | None = None
    """(N,) float64, all above 0: how often each sample counts; none, if each counts once"""

    def __len__(self) -> int:
        return len(self.conf)

    @property
    def mass(self) -> Tensor:
        """The weights, or ones."""
        return torch.ones_like(self.conf) if self.weights is None else self.weights

    @property
    def total(self) -> float:
        """The sum of the weights: the number of samples, if each counts once."""
        return len(self) if self.weights is None else float(self.weights.sum())

    @property
    def effective(self) -> float:
        """How many samples of equal weight say as much."""
        return len(self) if self.weights is None else effective_size(self.weights)

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
    weights: Tensor | None = None
    """(N,) float64 on the CPU, all above 0: how often each sample counts; none, if each counts once"""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def total(self) -> float:
        """The sum of the weights: the number of samples, if each counts once."""
        return len(self) if self.weights is None else float(self.weights.sum())

    def mean(self, values: Tensor) -> float:
        """The mean of one number per sample, on the CPU."""
        if self.weights is None:
            return float(values.mean())
        return float((values.double() * self.weights).sum() / self.weights.sum())

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
        return TopLabels(torch.cat(conf), torch.cat(right), self.table.dtype, self.weights)

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


def read(probs: Any, log_probs: Any, labels: Any, sample_weight: Any = None, all_zero: bool = False) -> Rows:
    """The table and its labels, checked. Samples of weight 0 are left out; `all_zero`: they may be all."""
    table, logs, one_column = _given(probs, log_probs)
    answers = read_labels(labels, table, one_column)
    return _weighted(Rows(table, logs, answers, _sums(table, logs)), sample_weight, all_zero)


def read_unlabelled(probs: Any, log_probs: Any, sample_weight: Any = None) -> Rows:
    """The table alone; every sample is given class 0."""
    table, logs, _ = _given(probs, log_probs)
    rows = Rows(table, logs, table.new_zeros(len(table), dtype=torch.long), _sums(table, logs))
    return _weighted(rows, sample_weight)


def _given(probs: Any, log_probs: Any) -> tuple[Tensor, bool, bool]:
    """(the table, whether it holds logarithms, whether it was given as one column)."""
    if (probs is None) == (log_probs is None):
        raise BalcalError("pass exactly one of probs= and log_probs=")
    logs = probs is None
    table, one_column = read_table(log_probs if logs else probs, "log_probs" if logs else "probs")
    return table, logs, one_column


def _weighted(rows: Rows, sample_weight: Any, all_zero: bool = False) -> Rows:
    weights = read_weights(sample_weight, len(rows), all_zero=all_zero)
    if weights is None or bool((weights > 0).all()):
        return replace(rows, weights=weights)
    kept = (weights > 0).to(rows.table.device)
    sums = None if rows.sums is None else rows.sums[kept]
    return Rows(rows.table[kept], rows.logs, rows.labels[kept], sums, weights[weights > 0])


def read_predictions(predictions: Any, sample_weight: Any = None) -> Rows:
    """The predictions of a model, checked like all others."""
    if not isinstance(predictions, Predictions):
        raise BalcalError(
            f"expected predictions, got {type(predictions).__name__}: pass arrays by name, probs= and labels="
        )
    return read(None, predictions.log_probs, predictions.labels, sample_weight)


def read_logits(logits: Any) -> Tensor:
    """Logits (N, K), in at least float32. -inf is the logit of an impossible class; NaN and +inf are refused.

    Of two classes one column is enough, the log-odds of class 1.
    """
    table = at_least_float32(read_table(logits, "logits")[0])
    for part in _parts(table):
        top = table[part].amax(1)
        if not bool(top.isfinite().all()) or bool(table[part].isnan().any()):
            raise BalcalError(f"expected finite logits (N, K), got {tuple(table.shape)} with NaN or infinite values")
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
            _complain(probs, off, logs)
        if off > ROUNDING:
            total = (wide.double().exp() if logs else wide.double()).sum(1)
            sums = table.new_ones(len(table), dtype=torch.float64) if sums is None else sums
            sums[part] = torch.where((total - 1).abs() > ROUNDING, total, 1.0)
        worst = max(worst, off)
    if worst > _explained(table, logs):
        decimals = None if logs else decimals_of(at_least_float32(table[:1000]))
        rounded = "" if decimals is None else f"; they seem to be rounded to {decimals} decimals"
        warnings.warn(
            "rows of these predictions do not sum to one "
            f"(one is off by {worst:.2g}): they are divided by their sum{rounded}",
            stacklevel=5,
        )
    return sums


def _explained(table: Tensor, logs: bool) -> float:
    """How far from one the precision of the table may have brought a row; a logarithm's error grows with its size."""
    if table.dtype.itemsize >= 4:
        return ROUNDING
    return torch.finfo(table.dtype).eps * (1 + math.log(table.shape[1]) if logs else 1)


def _complain(probs: Tensor, off: float, logs: bool) -> None:
    if not bool(probs.isfinite().all()):
        raise BalcalError("the predictions contain NaN or infinite values")
    if float(probs.min()) < 0:
        raise BalcalError(f"a probability is negative ({float(probs.min()):.2g}): are these logits?")
    decimals = None if logs else decimals_of(probs)
    if decimals is not None and off <= probs.shape[1] * 0.5 * 10**-decimals + ROUNDING:
        raise BalcalError(
            f"these probabilities are rounded to {decimals} decimals, so that rows no longer sum to one (one is off "
            f"by {off:.2g}): store more digits, or divide each row by its sum"
        )
    percent = not logs and bool(((probs.sum(1) - 100).abs() < 2).all())
    guess = "are these percent? Divide them by 100" if percent else "are these logits?"
    raise BalcalError(f"rows must be probabilities that sum to one (one is off by {off:.2g}): {guess}")


def are_finite(scores: Tensor, lowest: Tensor | float = LOWEST) -> bool:
    """Whether `finite_scores` leaves all scores as they are; not if one is NaN."""
    low, top = scores.amin(-1), scores.amax(-1)
    return bool(((top.abs() <= LARGE) & (top - low <= lowest)).all())


def finite_scores(scores: Tensor, lowest: Tensor | float = LOWEST) -> Tensor:
    """Logits or log-probabilities (..., K) without -inf and without huge numbers.

    -inf becomes the least finite score of its row, at least 104 below the largest one. No score stays more than
    `lowest` below the largest. Rows of very large scores are shifted so that their largest is 0. Scores
    that need no change are returned themselves, on the CPU.

    >>> finite_scores(torch.tensor([[0.0, -3.0, -torch.inf], [0.0, -200.0, -torch.inf]]))
    tensor([[   0.,   -3., -104.],
            [   0., -200., -200.]])
    >>> finite_scores(torch.tensor([[1e20, 0.0]]))
    tensor([[     0., -10000.]])
    """
    if scores.device.type == "cpu" and not torch.compiler.is_compiling() and are_finite(scores, lowest):
        return scores
    top = scores.amax(-1, keepdim=True)
    shift = torch.where(top.abs() > LARGE, top, torch.zeros_like(top))
    scores, top = scores - shift, top - shift
    void = scores == -torch.inf
    least = torch.minimum(scores.masked_fill(void, torch.inf).amin(-1, keepdim=True), top - FAINT)
    return torch.maximum(torch.where(void, least, scores), top - lowest)
