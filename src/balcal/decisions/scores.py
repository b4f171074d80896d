"""Conformity scores of prediction sets, in pieces: a low score says that a class fits.

`lac`: 1 - probability of the class (Sadinle, Lei, Wasserman, JASA 2019); kept without the 1, which only rounds.
`aps`: probability of all classes ahead of it, plus a random share of its own (Romano, Sesia, Candès, NeurIPS 2020).
`raps`: that, plus a penalty for each rank beyond the first few (Angelopoulos et al., ICLR 2021).

Of equal probabilities the class with the lower index is ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.metrics.inputs import Rows

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
AT_ONCE = 1 << 16
"""numbers held in double precision at once"""


@dataclass(frozen=True)
class Score:
    """A kind of score and its settings."""

    method: str
    penalty: float = 0.0
    free_ranks: int = 0

    def of_labels(self, rows: Rows, randomness: Floats) -> Floats:
        """(N,): the score of each sample's label."""
        scores, done = [], 0
        for _, whole, labels in rows.pieces():
            for part in _slices(whole):
                probs, truth = _probs(whole[part], rows.logs), labels[part].cpu().numpy()
                own = np.take_along_axis(probs, truth[:, None], 1)
                if self.method == "lac":
                    scores.append(-own[:, 0].astype(np.float64))
                else:
                    u = randomness[done : done + len(probs)]
                    scores.append(self._of_label(probs, own, truth, u))
                done += len(probs)
        return np.concatenate(scores)

    def _of_label(self, probs: NDArray[np.floating], own: NDArray[np.floating], truth: Floats, u: Floats) -> Floats:
        ahead = probs > own
        tied = probs == own
        if tied.sum() > len(probs):
            ahead |= tied & (np.arange(probs.shape[1]) < truth[:, None])
        mass = np.einsum("nk,nk->n", probs, ahead, dtype=np.float64, casting="unsafe")
        extra = self.penalty * np.maximum(0, ahead.sum(1) + 1 - self.free_ranks) if self.penalty else 0.0
        scores: Floats = mass + (1 - u) * own[:, 0] + extra
        return scores

    def sets(self, rows: Rows, limits: Floats, randomness: Floats, empty: bool) -> Bools:
        """(N, K): whether each class has a score of at most its limit. `limits` has one, or one of each class."""
        found = np.empty((len(rows), rows.num_classes), dtype=np.bool_)
        done = 0
        for _, whole, _ in rows.pieces():
            for part in _slices(whole):
                probs, here = _probs(whole[part], rows.logs), slice(done, done + len(whole[part]))
                if self.method == "lac":
                    np.greater_equal(probs, (-limits).astype(probs.dtype), out=found[here])
                elif len(limits) == 1:
                    self._prefix(probs, float(limits[0]), randomness[here], found[here])
                else:
                    found[here] = self._of_all(probs, randomness[here]) <= limits
                if not empty:
                    found[here][np.arange(len(probs)), probs.argmax(1)] |= ~found[here].any(1)
                done = here.stop
        return found

    def _extra(self, num_classes: int) -> Floats:
        return self.penalty * np.maximum(0, np.arange(1, num_classes + 1) - self.free_ranks)

    def _prefix(self, probs: NDArray[np.floating], limit: float, u: Floats, out: Bools) -> None:
        """Scores rise with the rank, so the set is all classes down to some probability."""
        ranked = np.sort(probs, axis=1)[:, ::-1]
        scores = np.cumsum(ranked, axis=1, dtype=np.float64)
        scores -= u[:, None] * ranked
        if self.penalty:
            scores += self._extra(probs.shape[1])
        size = (scores <= limit).sum(1)
        rows = np.arange(len(probs))
        last = ranked[rows, np.maximum(size - 1, 0)]
        np.greater_equal(probs, np.where(size > 0, last, np.inf).astype(probs.dtype)[:, None], out=out)
        tied = np.flatnonzero((size > 0) & (size < probs.shape[1]))
        tied = tied[ranked[tied, size[tied]] == last[tied]]
        if len(tied):
            out[tied] = self._of_all(probs[tied], u[tied]) <= limit

    def _of_all(self, probs: NDArray[np.floating], u: Floats) -> Floats:
        """(N, K): the score of every class."""
        order = np.argsort(-probs, axis=1, kind="stable")
        ranked = np.take_along_axis(probs, order, 1)
        scores = np.cumsum(ranked, axis=1, dtype=np.float64) - u[:, None] * ranked + self._extra(probs.shape[1])
        found = np.empty_like(scores)
        np.put_along_axis(found, order, scores, 1)
        return found


def _probs(whole: torch.Tensor, logs: bool) -> NDArray[np.floating]:
    wide = whole.to(torch.promote_types(whole.dtype, torch.float32))
    table: NDArray[np.floating] = (wide.exp() if logs else wide).cpu().numpy()
    return table


def _slices(whole: torch.Tensor) -> list[slice]:
    step = max(1, AT_ONCE // whole.shape[1])
    return [slice(start, start + step) for start in range(0, len(whole), step)]
