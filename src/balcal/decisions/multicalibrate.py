"""A calibrator that knows groups: it lowers the worst group's error and does not raise the overall NLL.

Each group's log-probabilities are multiplied by a factor of its own: softmax((1 + sum of theta_g) log p), over the
groups g that a sample belongs to. The NLL is convex in theta. A penalty draws the factors to each other. Its strength
is chosen by cross-validation, and so is whether to change anything at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from balcal.core import BalcalError, Predictions
from balcal.decisions.threshold import held_out_rows
from balcal.metrics.groups import masks
from balcal.metrics.inputs import finite_scores, read_unlabelled
from balcal.metrics.metric import by_name
from balcal.runtime.values import check_whole

Floats = NDArray[np.float64]
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
LEAST_FACTOR = 0.02
FEW = 50
"""samples below which a group says too little of its own"""


@dataclass(frozen=True, eq=False)
class GroupCalibrator:
    """Fitted factors of groups. Figures are cross-validated: of samples that were not fitted on.

    >>> fitted = GroupCalibrator({"a": 1.5, "b": 1.0}, 1.0, 0.09, 0.01, 0.55, 0.5, ())
    >>> fitted.changed, fitted.predict([[0.8, 0.2]] * 2, groups=["a", "b"]).round(3)[:, 0]
    (True, array([0.889, 0.8  ]))
    """

    factors: Mapping[Hashable, float]
    """what the log-probabilities of a group are multiplied by, beside those of other groups; all ones: unchanged"""
    base: float
    """what those of every sample are multiplied by"""
    worst_before: float
    """largest gap of any group, mean confidence against accuracy"""
    worst_after: float
    nll_before: float
    nll_after: float
    small: tuple[Hashable, ...]
    """groups of fewer than 50 samples: their numbers say little"""

    @property
    def changed(self) -> bool:
        return self.base != 1 or any(factor != 1 for factor in self.factors.values())

    def predict(self, probs: Any = None, *, log_probs: Any = None, groups: Any) -> Floats:
        """(N, K) calibrated probabilities. Groups that were not fitted on get what every sample gets."""
        rows = read_unlabelled(probs, log_probs)
        theta = np.array([self.base - 1, *(factor - 1 for factor in self.factors.values())])
        inside = _named(groups, len(rows))
        empty = np.zeros(len(rows))
        table = np.column_stack([np.ones(len(rows)), *(inside.get(name, empty) for name in self.factors)])
        scores = finite_scores(rows.log_probs().cpu().double()).numpy()
        scaled: Floats = special.softmax(_scale(table, theta)[:, None] * scores, axis=1)
        return scaled

    def __str__(self) -> str:
        if not self.changed:
            return "left as it was: no factors of groups lower the worst group's error without raising the overall NLL"
        lines = [
            f"worst group's gap {self.worst_before:.1%} -> {self.worst_after:.1%}, "
            f"NLL {self.nll_before:.4f} -> {self.nll_after:.4f} (cross-validated)"
        ]
        for name, factor in self.factors.items():
            few = f"; fewer than {FEW} samples, this says little" if name in self.small else ""
            lines.append(f"  {name}: log-probabilities times {self.base + factor - 1:.3f}{few}")
        return "\n".join(lines)


@by_name
def multicalibrate(
    predictions: Predictions | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    groups: Any,
    folds: int = 5,
    seed: int = 0,
) -> GroupCalibrator:
    """Fit a calibrator that treats groups differently, on held-out samples.

    Parameters
    ----------
    predictions
        Of held-out data; or pass arrays by name.
    probs, log_probs
        (N, K); one of the two.
    labels
        (N,) class indices.
    groups
        (N,) names, or a mapping of names to masks, which may overlap.
    folds, seed
        Of the cross-validation.

    Examples
    --------
    One group is right in nine of ten cases, the other in six, and both say 0.8:

    >>> fitted = multicalibrate(
    ...     probs=[[0.8, 0.2]] * 1000,
    ...     labels=[0, 0, 0, 0, 1, 0, 0, 0, 0, 0] * 50 + [0, 1, 0, 1, 0, 1, 0, 1, 0, 0] * 50,
    ...     groups=["a"] * 500 + ["b"] * 500,
    ... )
    >>> fitted.predict([[0.8, 0.2]] * 2, groups=["a", "b"]).round(1)
    array([[0.9, 0.1],
           [0.6, 0.4]])
    """
    rows = held_out_rows(predictions, probs, log_probs, labels)
    inside = masks(groups, len(rows))
    check_whole(folds, "folds", 2, 100)
    if len(rows) < 10 * folds:
        raise BalcalError(f"{len(rows)} samples are too few for {folds} folds: bring at least {10 * folds}")
    scores = finite_scores(rows.log_probs().cpu().double()).numpy()
    truth = rows.labels.cpu().numpy()
    table = np.column_stack([np.ones(len(rows)), *inside.values()]).astype(np.float64)
    fold = np.random.default_rng(seed).permutation(len(rows)) % folds
    before = np.ones(len(rows))
    best: tuple[float, float, float | None] = (_worst(before, scores, truth, inside), _nll(before, scores, truth), None)
    unchanged = best
    for strength in STRENGTHS:
        scale = np.empty(len(rows))
        for number in range(folds):
            out = fold == number
            scale[out] = _scale(table[out], _fitted(table[~out], scores[~out], truth[~out], strength))
        worst, nll = _worst(scale, scores, truth, inside), _nll(scale, scores, truth)
        if worst < best[0] and nll <= unchanged[1]:
            best = (worst, nll, strength)
    theta = np.zeros(table.shape[1]) if best[2] is None else _fitted(table, scores, truth, best[2])
    small = tuple(name for name, mask in inside.items() if mask.sum() < FEW)
    factors = {name: float(1 + x) for name, x in zip(inside, theta[1:], strict=True)}
    return GroupCalibrator(factors, float(1 + theta[0]), unchanged[0], best[0], unchanged[1], best[1], small)


def _scale(table: Floats, theta: Floats) -> Floats:
    return np.maximum(1 + table @ theta, LEAST_FACTOR)


def _fitted(table: Floats, scores: Floats, truth: NDArray[np.int64], strength: float) -> Floats:
    own = scores[np.arange(len(truth)), truth]

    def loss(theta: Floats) -> tuple[float, Floats]:
        scale = _scale(table, theta)
        scaled = scale[:, None] * scores
        norm = special.logsumexp(scaled, axis=1)
        slope = (np.exp(scaled - norm[:, None]) * scores).sum(1) - own
        slope *= scale > LEAST_FACTOR
        value = float((norm - scale * own).sum()) + strength / 2 * float(theta[1:] @ theta[1:])
        return value, table.T @ slope + strength * np.append(0.0, theta[1:])

    found: Floats = optimize.minimize(loss, np.zeros(table.shape[1]), jac=True, method="L-BFGS-B").x
    return found


def _nll(scale: Floats, scores: Floats, truth: NDArray[np.int64]) -> float:
    scaled = scale[:, None] * scores
    return float((special.logsumexp(scaled, axis=1) - scaled[np.arange(len(truth)), truth]).mean())


def _worst(
    scale: Floats, scores: Floats, truth: NDArray[np.int64], inside: Mapping[Hashable, NDArray[np.bool_]]
) -> float:
    conf = special.softmax(scale[:, None] * scores, axis=1).max(1)
    gap = conf - (scores.argmax(1) == truth)
    return max(abs(float(gap[mask].mean())) for mask in inside.values())


def _named(groups: Any, n: int) -> dict[Hashable, Floats]:
    """As `masks`, but groups may be small: these are new samples."""
    if isinstance(groups, Mapping):
        found = {name: np.asarray(mask) for name, mask in groups.items()}
    else:
        names = np.asarray(groups)
        found = {name.item(): names == name for name in np.unique(names)}
    if any(mask.shape != (n,) for mask in found.values()):
        raise BalcalError(f"groups must name the group of each of {n:,} samples, or give masks of that length")
    return {name: mask.astype(np.float64) for name, mask in found.items()}
