"""What if class frequencies change? Probabilities for other frequencies, known or estimated without labels.

Known frequencies: p'(k) is proportional to p(k) new(k) / old(k), which is exact if only the frequencies changed.
Unknown: those that make the unlabelled predictions most likely (Saerens, Latinne, Decaestecker 2002, by EM), or those
that explain how often each class is predicted (black box shift estimation, Lipton, Wang, Smola 2018).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.metrics.inputs import Rows, read, read_unlabelled
from balcal.metrics.metric import by_name
from balcal.runtime.values import as_tensor, check_choice

Floats = NDArray[np.float64]
Z = 1.959963984540054
ROUNDS = 5000
CONVERGED = 1e-7
WIDE = 0.5
"""an interval wider than this says nothing: the frequencies cannot be told from these predictions"""
RESAMPLES = 500


@dataclass(frozen=True, eq=False)
class AdjustedPriors:
    """Probabilities for other class frequencies, and these frequencies.

    >>> found = adjust_priors(probs=[[0.5, 0.5]], train_priors=[0.5, 0.5], new_priors=[0.9, 0.1])
    >>> found.probs.round(1), found.method
    (array([[0.9, 0.1]]), 'known')
    """

    probs: Floats
    """(N, K)"""
    priors: Floats
    """(K,)"""
    interval: Floats | None
    """(K, 2), 95 %; None where the frequencies were given"""
    method: Literal["known", "em", "bbse"]
    identifiable: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the probabilities."""
        interval = None if self.interval is None else self.interval.tolist()
        return {
            "priors": self.priors.tolist(),
            "interval": interval,
            "method": self.method,
            "identifiable": self.identifiable,
        }

    def __str__(self) -> str:
        if self.interval is None:
            return f"{len(self.probs):,} predictions, re-weighted to the given class frequencies"
        head = f"{len(self.probs):,} predictions, class frequencies estimated by {self.method.upper()}"
        sure = "" if self.identifiable else ": they cannot be told from these predictions"
        rows = [
            f"  class {k}: {prior:.1%} [{low * 100:.1f}, {high * 100:.1f}]"
            for k, (prior, (low, high)) in enumerate(zip(self.priors, self.interval, strict=True))
        ]
        return "\n".join([head + sure, *rows])


@by_name
def adjust_priors(
    *,
    probs: Any = None,
    log_probs: Any = None,
    train_priors: Any,
    new_priors: Any = None,
    method: Literal["em", "bbse"] = "em",
    held_out_probs: Any = None,
    held_out_labels: Any = None,
    seed: int = 0,
) -> AdjustedPriors:
    """Adapt probabilities to class frequencies other than those of training.

    It assumes that only the frequencies changed: the samples of each class look as they did in training. The same call
    undoes a resampling of the training data: `train_priors` are then the resampled frequencies, `new_priors` the true
    ones.

    Parameters
    ----------
    probs, log_probs
        (N, K) of the new samples, whose labels are not needed; one of the two.
    train_priors
        (K,) class frequencies, or counts, for which the probabilities are right: those of training.
    new_priors
        (K,) new frequencies or counts, if they are known; else they are estimated.
    method
        `em` needs calibrated probabilities; its interval does not count that they may not be. `bbse` needs none, but
        held-out samples.
    held_out_probs, held_out_labels
        For `bbse`: labelled predictions with the old frequencies.
    seed
        Of the resamples that the interval of `bbse` comes from.

    Examples
    --------
    A model was trained on as many ill as healthy people; one in ten is ill:

    >>> found = adjust_priors(probs=[[0.5, 0.5], [0.1, 0.9]], train_priors=[0.5, 0.5], new_priors=[0.9, 0.1])
    >>> found.probs.round(3)
    array([[0.9, 0.1],
           [0.5, 0.5]])
    """
    check_choice(method, "method", ("em", "bbse"))
    rows = read_unlabelled(probs, log_probs)
    old = _frequencies(train_priors, "train_priors", rows.num_classes)
    if new_priors is not None:
        new = _frequencies(new_priors, "new_priors", rows.num_classes)
        if ((old == 0) & (new > 0)).any():
            k = int(np.flatnonzero((old == 0) & (new > 0))[0])
            raise BalcalError(f"class {k} never occurred in training, so its probability cannot be re-weighted")
        return AdjustedPriors(_reweighted(rows, old, new), new, None, "known")
    if (old == 0).any():
        raise BalcalError(
            f"class {int(np.flatnonzero(old == 0)[0])} has a frequency of 0 in train_priors: leave it out"
        )
    if method == "em":
        new, interval = _em(rows, old)
    else:
        if held_out_probs is None or held_out_labels is None:
            raise BalcalError("bbse needs labelled predictions: pass held_out_probs= and held_out_labels=")
        new, interval = _bbse(rows, read(held_out_probs, None, held_out_labels), seed)
    identifiable = bool(np.isfinite(interval).all() and (interval[:, 1] - interval[:, 0]).max() <= WIDE)
    if not identifiable:
        warnings.warn(
            "the new class frequencies cannot be told from these predictions: some interval is wider than half; "
            "pass new_priors=, or bring more samples or a better model",
            stacklevel=2,
        )
    return AdjustedPriors(_reweighted(rows, old, new), new, interval, method, identifiable)


def _frequencies(given: Any, name: str, num_classes: int) -> Floats:
    values: Floats = as_tensor(given, name).cpu().double().numpy()
    if values.shape != (num_classes,) or not np.isfinite(values).all() or values.min() < 0 or values.sum() <= 0:
        raise BalcalError(f"{name} must be {num_classes} frequencies or counts, none of them negative")
    shares: Floats = values / values.sum()
    return shares


def _reweighted(rows: Rows, old: Floats, new: Floats) -> Floats:
    weights = np.divide(new, old, out=np.zeros_like(new), where=old > 0)
    made = np.empty((len(rows), rows.num_classes))
    done = 0
    for _, probs, _ in rows.chunks():
        part = made[done : done + len(probs)]
        np.multiply(probs.cpu().double().numpy(), weights, out=part)
        total = part.sum(1, keepdims=True)
        if (total <= 0).any():
            raise BalcalError("a sample has no class left that the new frequencies allow: its probabilities are all 0")
        part /= total
        done += len(probs)
    return made


def _em(rows: Rows, old: Floats) -> tuple[Floats, Floats]:
    """The most likely frequencies, and Wald's interval from the Fisher information."""
    pieces = [probs.cpu().double().numpy() / old for _, probs, _ in rows.chunks()]
    n, new = len(rows), old.copy()
    for _ in range(ROUNDS):
        total = np.zeros_like(new)
        for ratio in pieces:
            total += (1 / (ratio @ new)) @ ratio
        updated = new * total / n
        updated /= updated.sum()
        change, new = float(np.abs(updated - new).max()), updated
        if change < CONVERGED:
            break
    information = np.zeros((len(new), len(new)))
    for ratio in pieces:
        scaled = ratio / (ratio @ new)[:, None]
        information += scaled.T @ scaled
    basis = np.linalg.qr(np.column_stack([np.ones(len(new)), np.eye(len(new))[:, 1:]]))[0][:, 1:]
    values, vectors = np.linalg.eigh(basis.T @ information @ basis)
    spread = np.where(values > 1e-9 * n, 1 / np.maximum(values, 1e-300), np.inf)
    directions = basis @ vectors
    with np.errstate(invalid="ignore"):
        variance = np.where(directions**2 > 1e-12, directions**2 * spread, 0.0).sum(1)
    half = Z * np.sqrt(variance)
    return new, np.column_stack([np.maximum(new - half, 0), np.minimum(new + half, 1)])


def _bbse(rows: Rows, held_out: Rows, seed: int) -> tuple[Floats, Floats]:
    """The frequencies that explain how often each class is predicted, and the middle 95 % of resamples."""
    k = rows.num_classes
    if held_out.num_classes != k:
        raise BalcalError(f"the held-out predictions have {held_out.num_classes} classes, the new ones {k}")
    counts = np.zeros((k, k))
    np.add.at(counts, (_predicted(held_out), held_out.labels.cpu().numpy()), 1)
    if (counts.sum(0) == 0).any():
        missing = int(np.flatnonzero(counts.sum(0) == 0)[0])
        raise BalcalError(f"class {missing} has no held-out samples: bbse needs some of every class")
    seen = np.bincount(_predicted(rows), minlength=k).astype(np.float64)
    rng = np.random.default_rng(seed)
    of_class, n = counts.sum(0), int(seen.sum())
    draws = np.array(
        [
            _solved(
                np.column_stack([rng.multinomial(int(of_class[j]), counts[:, j] / of_class[j]) for j in range(k)]),
                rng.multinomial(n, seen / n).astype(np.float64),
            )
            for _ in range(RESAMPLES)
        ]
    )
    return _solved(counts, seen), np.quantile(draws, (0.025, 0.975), axis=0).T


def _solved(counts: Floats, seen: Floats) -> Floats:
    confusion = counts / counts.sum(0)
    found = np.linalg.lstsq(confusion, seen / seen.sum(), rcond=None)[0]
    clipped: Floats = np.maximum(found, 0)
    return clipped / clipped.sum() if clipped.sum() > 0 else np.full(len(found), 1 / len(found))


def _predicted(rows: Rows) -> NDArray[np.int64]:
    return np.concatenate([given.cpu().float().numpy().argmax(1) for given, _, _ in rows.pieces()])
