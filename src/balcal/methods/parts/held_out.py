"""The held-out set that a post-hoc method is fitted on: checked, weighted, and split into folds.

A weight of 2 counts as two samples. `prior` counts samples too: so many imagined ones, distributed as the model itself
says, draw a fit towards doing nothing. Without them ten right answers of ten would make a model sure of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError, Outputs
from balcal.metrics.inputs import LARGE, LOWEST, are_finite, finite_scores
from balcal.runtime.labels import check_labels
from balcal.runtime.values import as_tensor, at_least

FEW = 5.0
"""samples that doing nothing weighs, by default"""
UNIFORM = 0.1
"""samples of the uniform distribution that are mixed into what a fitted map says, so that no probability is 0"""

PIECE = 2**18
"""numbers of a piece: two megabytes, which stay in the caches of two cores"""

Prior = Annotated[float, at_least(0, most=1e9)]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores (N, K) in float64 on the CPU, lifted; labels, weights and groups (N,). Made by `check_held_out`."""

    scores: Tensor
    labels: Tensor
    weights: Tensor
    groups: Tensor | None = None

    @property
    def size(self) -> float:
        """how many samples these count as"""
        return float(self.weights.sum())

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    @property
    def shares(self) -> Tensor:
        """weights that sum to one"""
        return self.weights / self.weights.sum()

    def uniform(self, prior: float = FEW) -> float:
        """How much of the uniform distribution a fitted map should mix in; nothing, where no prior is wanted."""
        return UNIFORM / (self.size + UNIFORM) if prior else 0.0

    def targets(self, log_probs: Tensor, prior: float) -> Tensor:
        """(N, K): the labels, and with the weight of `prior` samples what the model says."""
        hard = F.one_hot(self.labels, self.classes).to(log_probs)
        return torch.lerp(hard, log_probs.exp(), prior / (self.size + prior)) if prior else hard

    def at(self, keep: Tensor) -> HeldOut:
        """The samples where `keep` is true."""
        groups = None if self.groups is None else self.groups[keep]
        return HeldOut(self.scores[keep], self.labels[keep], self.weights[keep], groups)

    def of(self, scores: Tensor) -> HeldOut:
        """The same samples with other scores."""
        return replace(self, scores=scores)

    def folds(self, count: int) -> Tensor:
        """The fold (N,) of each sample, by chance. The order of samples and of classes does not matter.

        Folds are not stratified: with equal class counts in all folds, biases that fit the counts of a small sample
        would seem to hold for other samples. Samples of a group share a fold: groups are dealt whole, the largest
        first, each to the fold that has least.
        """
        if self.groups is not None:
            return self._group_folds(count)
        own = self.scores.gather(1, self.labels[:, None])[:, 0]
        largest = self.scores.topk(min(3, self.classes), dim=1).values
        order = torch.from_numpy(np.lexsort([*largest.T.numpy(), own.numpy()]))
        fold = torch.empty_like(self.labels)
        fold[order] = torch.randperm(len(order), generator=torch.Generator().manual_seed(0)) % count
        return fold

    def _group_folds(self, count: int) -> Tensor:
        assert self.groups is not None
        names, member = self.groups.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if len(names) < count:
            raise BalcalError(f"cross-validation in {count} folds needs at least {count} groups, not {len(names)}")
        sizes = torch.zeros(len(names), dtype=torch.float64).index_add_(0, member, self.weights)
        filled, fold = [0.0] * count, torch.empty(len(names), dtype=torch.long)
        for group in sizes.argsort(descending=True, stable=True).tolist():
            fold[group] = least = filled.index(min(filled))
            filled[least] += float(sizes[group])
        return fold[member]


def in_pieces(table: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of a table (N, K), and of others, a piece at a time: many steps on one piece cost less than each on all.

    >>> [len(rows) for rows, _ in in_pieces(torch.zeros(300, 1000), torch.zeros(300))]
    [262, 38]
    """
    rows = max(1, PIECE // table.shape[1])
    return zip(*(torch.split(each, rows) for each in (table, *others)), strict=True)


def large(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A table, not yet filled. numpy asks for huge pages, which the system hands out four times as fast."""
    return torch.from_numpy(np.empty((rows, columns), str(dtype).removeprefix("torch.")))


def piece_by_piece(change: Callable[[Tensor], Tensor], table: Tensor) -> Tensor:
    """A table (N, K), changed row by row, in float64."""
    changed = large(*table.shape)
    for rows, out in in_pieces(table, changed):
        out.copy_(change(rows))
    return changed


def read_scores(scores: Tensor, who: str) -> Tensor:
    """Held-out scores (N, K) in float64 on the CPU, lifted; -inf is the log of 0 and allowed, NaN and +inf are not.

    Scores that are as they should be are not copied.
    """
    if len(scores) == 0:
        raise BalcalError(f"cannot fit `{who}` on an empty split: hold out some validation data")
    z = scores.detach().double().cpu()
    if are_finite(z):
        return z
    bad = ~z.amax(1).isfinite()  # the largest of a row with NaN is NaN
    if bool(bad.any()):
        raise BalcalError(f"cannot fit `{who}`: the scores of sample {int(bad.nonzero()[0])} are NaN or infinite")
    best, second = z.topk(2, dim=1).values.T
    apart = torch.where(second == -torch.inf, 0.0, best - second)
    if float(apart.max()) > LOWEST:
        raise BalcalError(
            f"cannot fit `{who}`: the two largest scores of sample {int(apart.argmax())} differ by "
            f"{float(apart.max()):.2g}: divide all logits by a constant, or leave that sample out"
        )
    return piece_by_piece(finite_scores, z)


def check_size(scores: Tensor, who: str) -> None:
    """For maps that take scores as they are: refuse scores so large that their differences are lost in rounding."""
    best, second = scores.topk(2, dim=1).values.T
    size = float(torch.maximum(best.abs(), torch.where(second == -torch.inf, 0.0, best - second)).max())
    if size > LARGE:
        raise BalcalError(
            f"`{who}` takes logits as they are, and {size:.2g} is too large: divide by a constant, or pass log_probs"
        )


def check_weights(weights: Tensor | None, n: int) -> Tensor:
    """A weight for each sample; one, if none are given."""
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    w = as_tensor(weights, "the sample weights").detach().double().cpu()
    if w.shape != (n,):
        raise BalcalError(f"there must be one weight for each of {n:,} samples, not an array of {tuple(w.shape)}")
    if not bool(w.isfinite().all()) or float(w.min()) < 0 or not float(w.max()) > 0:
        raise BalcalError("sample weights must be finite, at least 0, and not all 0")
    return w


def check_held_out(
    outputs: Outputs,
    labels: Tensor,
    who: str,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
    least: int = 10,
    per_class: int = 0,
    each_class: str = "",
    as_they_are: bool = False,
) -> HeldOut:
    """The calibration set as the fits take it, or one sentence on what is wrong. Samples of weight 0 are left out.

    `least` is the smallest set that the fit accepts, or `per_class` samples times K. `each_class` names what is fitted
    for every class by itself, if anything is: then every class must occur. `as_they_are`: see `PostHoc`.
    """
    scores = outputs.log_probs()
    if scores.ndim != 2 or scores.shape[1] < 2 or labels.shape != scores.shape[:1]:
        raise BalcalError(
            f"cannot fit `{who}` on scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)}: "
            "it takes a row of K scores (N, K) for each of N labels"
        )
    z = read_scores(scores, who)
    if as_they_are:
        check_size(scores, who)
    check_labels(labels, z.shape[1], "the calibration set")
    found = HeldOut(z, labels.long().cpu(), check_weights(weights, len(z)), _groups(groups, len(z)))
    if bool((found.weights == 0).any()):
        found = found.at(found.weights > 0)
    n, k, y = len(found.labels), found.classes, found.labels
    instead = "hold out more data" if who == "ts" else "use `ts`, or hold out more data"
    least = per_class * k or least
    if n < least:
        raise BalcalError(f"`{who}` needs at least {least} calibration samples for {k} classes, not {n}: {instead}")
    count = y.bincount(minlength=k)
    if int(count.max()) == n:
        raise BalcalError(
            f"the {n} calibration labels are all class {int(y[0])}: "
            "a calibrator learns from errors, so hold out samples of every class"
        )
    if each_class and int(count.min()) == 0:
        missing = int((count == 0).nonzero()[0])
        raise BalcalError(
            f"class {missing} does not occur in the calibration set, so `{who}` cannot fit its {each_class}: {instead}"
        )
    return found


def _groups(groups: Tensor | None, n: int) -> Tensor | None:
    if groups is None:
        return None
    if groups.shape != (n,):
        raise BalcalError(f"there must be one group for each of {n:,} samples, not an array of {tuple(groups.shape)}")
    return groups.cpu()
