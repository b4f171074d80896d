"""NLL and Brier score in two parts: what a recalibration would gain (miscalibration), and what it leaves (refinement).

A score is what it would be after the best recalibration, plus what is lost by not recalibrating. The best map is not
known, so it is fitted: in folds, so that no sample is scored by a map that was fitted on it. The estimate of
miscalibration is then a lower bound, up to noise; a better recalibrator raises it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from balcal.core import BalcalError
from balcal.metrics.bootstrap import mean_of
from balcal.metrics.inputs import Rows, finite_scores, read
from balcal.metrics.metric import by_name
from balcal.metrics.scoring import per_sample_scores
from balcal.runtime.values import as_tensor, check_whole

Map = Callable[[Tensor], Tensor]
"""log-probabilities (N, K) -> the same, recalibrated"""
Recalibrate = Callable[[Tensor, Tensor, Tensor | None], Map]
"""(log-probabilities (N, K), labels (N,), weights (N,) or None) -> a fitted map"""
COLDEST = 5.0
"""log of the largest and of the smallest 1 / T that is tried"""


MOST_CELLS = 1 << 23
"""numbers that a temperature is fitted on"""


@dataclass(frozen=True)
class Decomposition:
    """score = refinement + miscalibration, for NLL and Brier score. `..._interval` are 95 %, of the miscalibration.

    Miscalibration at or below 0: this recalibration has nothing to gain.

    >>> print(Decomposition(0.65, 0.57, 0.08, (0.04, 0.13), 0.42, 0.38, 0.04, (0.02, 0.07)))
    NLL 0.6500 = 0.5700 refinement + 0.0800 miscalibration [0.0400, 0.1300], by ts
    Brier 0.4200 = 0.3800 refinement + 0.0400 miscalibration [0.0200, 0.0700], by ts
    """

    nll: float
    nll_refinement: float
    nll_miscalibration: float
    nll_interval: tuple[float, float]
    brier: float
    brier_refinement: float
    brier_miscalibration: float
    brier_interval: tuple[float, float]
    by: str = "ts"
    """the recalibrator: the one with the lowest NLL, if there were several"""
    folds: int = 5

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: None stands for it."""
        return {name: _known(value) for name, value in asdict(self).items()}

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Decomposition:
        """From what `as_dict` returned, also if it was stored as JSON in between."""
        return Decomposition(**{name: _or_infinite(value) for name, value in fields.items()})

    def __str__(self) -> str:
        lines = []
        for title, name in (("NLL", "nll"), ("Brier", "brier")):
            score, rest, loss = (getattr(self, f"{name}{part}") for part in ("", "_refinement", "_miscalibration"))
            low, high = getattr(self, f"{name}_interval")
            lines.append(
                f"{title} {score:.4f} = {rest:.4f} refinement {'-+'[loss >= 0]} {abs(loss):.4f} miscalibration "
                f"[{low:.4f}, {high:.4f}], by {self.by}"
            )
        return "\n".join(lines)


@by_name
def decomposition(
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any,
    recalibrate: Any = None,
    folds: int = 5,
    seed: int = 0,
    sample_weight: Any = None,
    groups: Any = None,
) -> Decomposition:
    """Split NLL and Brier score into refinement and miscalibration, by cross-fitted recalibration.

    Parameters
    ----------
    probs, log_probs
        (N, K); of two classes (N,) will do, the probability of class 1.
    labels
        (N,) class indices.
    recalibrate
        How to recalibrate; temperature scaling, if left out. A function `(log_probs, labels, weights) -> map`, whose
        map takes log-probabilities to log-probabilities; or an estimator with `fit(probs, labels)` and
        `predict_proba(probs)`, such as `balcal.Calibrator("vs")`; or a dict of several, of which the best is taken.
    folds
        Each sample is recalibrated by a map that was fitted on the other folds.
    seed
        Of the folds.
    sample_weight
        (N,): how often each sample counts.
    groups
        (N,): samples of one group are in one fold, such as frames of one film.

    Returns
    -------
    Decomposition
        With 95 % intervals of the miscalibration.

    A model that says 0.9 and is right in three of four cases. At best it would say 0.75:

    >>> found = decomposition(probs=[[0.9, 0.1]] * 400, labels=[0, 0, 0, 1] * 100)
    >>> print(found)
    NLL 0.6547 = 0.5653 refinement + 0.0894 miscalibration [0.0439, 0.1349], by ts
    Brier 0.4200 = 0.3772 refinement + 0.0428 miscalibration [0.0181, 0.0675], by ts
    """
    rows = read(probs, log_probs, labels, sample_weight)
    kept = None
    if groups is not None:
        kept = _groups(groups, sample_weight, len(rows))
    return decompose(rows, recalibrate, folds, seed, kept)


def decompose(
    rows: Rows, recalibrate: Any = None, folds: int = 5, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> Decomposition:
    """The same of checked predictions. `groups`: a number for each sample."""
    ways = recalibrate if isinstance(recalibrate, Mapping) else {_name(recalibrate): recalibrate}
    if not ways:
        raise BalcalError("recalibrate= is empty: name at least one way to recalibrate")
    check_whole(folds, "the number of folds", 2), check_whole(seed, "the seed")
    fold = _folds(len(rows), folds, seed, groups)
    before, scores = per_sample_scores(rows), rows.log_probs()
    tried = {name: _cross_fitted(way or fit_temperature, scores, rows, fold) for name, way in ways.items()}
    best = min(tried, key=lambda name: mean_of(tried[name]["nll"], rows.weights))
    found: dict[str, Any] = {"by": best, "folds": int(fold.max()) + 1}
    for name, after in tried[best].items():
        score, rest = (mean_of(each, rows.weights) for each in (before[name], after))
        loss = score - rest
        error = 1.96 * _standard_error(before[name] - after, rows) if math.isfinite(loss) else 0.0
        found |= {name: score, f"{name}_refinement": rest, f"{name}_miscalibration": loss}
        found[f"{name}_interval"] = (loss - error, loss + error)
    return Decomposition(**found)


def fit_temperature(log_probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Map:
    """Temperature scaling: the minimum of NLL, as the root of its derivative by log(1 / T).

    log(T)^2 is added to the sum of the losses. A few samples, all of them right, would make T as small as it may get.
    Of very large tables every second row is read, or every third, and so on: one number needs no more.

    >>> calibrated = fit_temperature(torch.tensor([[0.9, 0.1]] * 400).log(), torch.tensor([0, 0, 0, 1] * 100))
    >>> calibrated(torch.tensor([[0.9, 0.1]]).log()).exp().round(decimals=2)
    tensor([[0.7500, 0.2500]])
    """
    step = max(1, log_probs.numel() // MOST_CELLS)
    log_probs, labels, weights = log_probs[::step], labels[::step], None if weights is None else weights[::step]
    z = finite_scores(log_probs)
    z = z - z.amax(1, keepdim=True)
    mine = z.gather(1, labels[:, None])[:, 0]
    mass = torch.ones_like(mine) if weights is None else weights.to(mine)

    def slope(log_scale: float) -> float:
        scale = math.exp(log_scale)
        expected = ((z * scale).softmax(1) * z).sum(1)
        return scale * float(((expected - mine) * mass).sum(dtype=torch.float64)) + 2 * log_scale

    ends = slope(-COLDEST), slope(COLDEST)
    if ends[0] >= 0 or ends[1] <= 0:
        chosen = -COLDEST if ends[0] >= 0 else COLDEST
    else:
        chosen = float(brentq(slope, -COLDEST, COLDEST, xtol=1e-5))
    return lambda others: (finite_scores(others) * math.exp(chosen)).log_softmax(1)


def _name(recalibrate: Any) -> str:
    if recalibrate is None:
        return "ts"
    named = getattr(recalibrate, "method", None) or getattr(recalibrate, "__name__", None)
    return named if isinstance(named, str) else type(recalibrate).__name__


def _cross_fitted(way: Any, scores: Tensor, rows: Rows, fold: NDArray[np.int64]) -> dict[str, Any]:
    """NLL and Brier score of each sample, after a map that was fitted on the other folds."""
    after = {name: np.empty(len(rows)) for name in ("nll", "brier")}
    for number in range(int(fold.max()) + 1):
        inside = torch.from_numpy(fold == number)
        here = inside.to(scores.device)
        weights = None if rows.weights is None else rows.weights[~inside]
        calibrated = _applied(way, scores[~here], rows.labels[~here], weights, scores[here])
        checked = read(None, calibrated, rows.labels[here])
        for name, values in per_sample_scores(checked).items():
            after[name][inside.numpy()] = values
    return after


def _applied(way: Any, scores: Tensor, labels: Tensor, weights: Tensor | None, others: Tensor) -> Tensor:
    """Log-probabilities of `others`, from a map fitted on `scores`."""
    if hasattr(way, "fit") and hasattr(way, "predict_proba"):
        estimator, more = copy.deepcopy(way), {} if weights is None else {"sample_weight": weights.numpy()}
        reads = getattr(way, "inputs", "probs")  # log-probabilities are valid logits
        given, asked = (
            each.cpu() if reads in ("logits", "log_probs") else each.exp().cpu() for each in (scores, others)
        )
        estimator.fit(given.numpy(), labels.cpu().numpy(), **more)
        return as_tensor(estimator.predict_proba(asked.numpy()), "the recalibrated probabilities").log()
    if not callable(way):
        raise BalcalError(
            "recalibrate= must be a function (log_probs, labels, weights) -> map, or an estimator with fit and "
            f"predict_proba, not {way!r:.60}"
        )
    with torch.no_grad():
        calibrated: Tensor = way(scores, labels, weights)(others)
    return calibrated


def _groups(given: Any, sample_weight: Any, samples: int) -> NDArray[np.int64]:
    """A number for each group, of the samples that have weight."""
    names = np.asarray(given)
    if sample_weight is not None:
        weights = as_tensor(sample_weight, "sample_weight").cpu().numpy()
        names = names[weights > 0] if names.shape == weights.shape else names
    if names.ndim != 1 or len(names) != samples:
        raise BalcalError(f"groups must name the group of each sample, not have the shape {names.shape}")
    numbers: NDArray[np.int64] = np.unique(names, return_inverse=True)[1]
    return numbers


def _folds(samples: int, folds: int, seed: int, groups: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The fold of each sample: whole groups, the largest first, into the smallest fold."""
    units = np.arange(samples) if groups is None else groups
    sizes = np.bincount(units)
    if len(sizes) < folds:
        what = "samples" if groups is None else "groups"
        raise BalcalError(f"{folds} folds need as many {what}, and there are {len(sizes)}")
    order = np.random.default_rng(seed).permutation(len(sizes))
    place = np.empty(len(sizes), dtype=np.int64)
    if groups is None:
        place[order] = np.arange(samples) % folds
        return place
    filled = np.zeros(folds)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        place[unit] = int(filled.argmin())
        filled[place[unit]] += sizes[unit]
    return place[units]


def _standard_error(values: NDArray[np.float64], rows: Rows) -> float:
    """Of the mean: samples are observations, however heavy."""
    if rows.weights is None:
        return float(values.std(ddof=1) / math.sqrt(len(values)))
    share = rows.weights.numpy() / rows.total
    return float(np.sqrt((share**2 * (values - share @ values) ** 2).sum()))


def _known(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_known, value))
    return None if isinstance(value, float) and math.isinf(value) else value


def _or_infinite(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_or_infinite, value))
    return math.inf if value is None else value
