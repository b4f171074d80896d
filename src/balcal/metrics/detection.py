"""Detection by a score: in-distribution samples from out-of-distribution ones, right answers from wrong ones.

Higher scores mean in-distribution (ID), lower ones out-of-distribution (OOD): confidence, negative entropy, or the log
of the sum of exponential logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.metrics.bins import Floats
from balcal.metrics.inputs import read
from balcal.metrics.metric import Metric
from balcal.runtime.values import as_tensor, check_number, check_whole


def auroc(*, scores_in: Any, scores_out: Any) -> float:
    """Chance that an in-distribution sample scores above an OOD one, ties counted half. Higher is better.

    >>> auroc(scores_in=[0.9, 0.8, 0.6], scores_out=[0.7, 0.6])  # 2 + 2 + 0.5 of 6 pairs
    0.75
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    id_scores, ood_scores = np.sort(id_scores), np.sort(ood_scores)
    below, not_above = (np.searchsorted(ood_scores, id_scores, side).sum() for side in ("left", "right"))
    return float((below + not_above) / 2 / (len(id_scores) * len(ood_scores)))


def fpr95(*, scores_in: Any, scores_out: Any, tpr: float = 0.95) -> float:
    """Share of OOD samples that reach the highest threshold that 95 % of ID samples reach. Lower is better.

    >>> fpr95(scores_in=[0.9, 0.8, 0.7, 0.6], scores_out=[0.95, 0.5, 0.4, 0.3])
    0.25
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    if not 0 < check_number(tpr, "tpr") <= 1:
        raise BalcalError(f"tpr must lie in (0, 1], not {tpr}")
    needed = max(1, int(np.ceil(tpr * len(id_scores) - 1e-9)))
    threshold = np.sort(id_scores)[len(id_scores) - needed]
    return float((ood_scores >= threshold).mean())


def aupr_in(*, scores_in: Any, scores_out: Any) -> float:
    """Average precision with in-distribution as the positive class. Higher is better; chance is its share.

    >>> round(aupr_in(scores_in=[0.9, 0.7], scores_out=[0.8]), 6)  # (1/1 + 2/3) / 2
    0.833333
    """
    return _average_precision(*_scores(scores_in, scores_out))


def aupr_out(*, scores_in: Any, scores_out: Any) -> float:
    """Average precision with OOD as the positive class. Higher is better; chance is its share.

    >>> aupr_out(scores_in=[0.9, 0.7], scores_out=[0.8])
    0.5
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    return _average_precision(-ood_scores, -id_scores)


def failure_auroc(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """Chance that a right answer is more confident than a wrong one. Higher is better.

    There must be both: right answers and wrong ones.

    >>> failure_auroc(probs=[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], labels=[0, 1, 1])
    1.0
    """
    top = read(probs, log_probs, labels).top()
    if bool(top.right.all()) or not bool(top.right.any()):
        kind = "right" if bool(top.right.any()) else "wrong"
        raise BalcalError(f"all {len(top):,} answers are {kind}: there are no others to tell them from")
    return auroc(scores_in=top.conf[top.right], scores_out=top.conf[~top.right])


DETECTION_METRICS = {"auroc": auroc, "fpr95": fpr95, "aupr_in": aupr_in, "aupr_out": aupr_out}


def _scores(scores_in: Any, scores_out: Any) -> tuple[Floats, Floats]:
    return _checked("scores_in", scores_in), _checked("scores_out", scores_out)


def _checked(name: str, given: Any, least: int = 1) -> Floats:
    scores: Floats = as_tensor(given, name).cpu().double().numpy()
    if scores.ndim != 1 or len(scores) < least:
        raise BalcalError(f"{name} must be a list of at least one score, not an array of shape {scores.shape}")
    if np.isnan(scores).any():
        raise BalcalError(f"{name} contains NaN")
    return scores


def _average_precision(positive: Floats, negative: Floats) -> float:
    """Sum over thresholds of (recall gained) x precision. A threshold takes all samples of one score."""
    thresholds, gained = np.unique(positive, return_counts=True)
    hits = len(positive) - np.cumsum(gained) + gained
    alarms = len(negative) - np.searchsorted(np.sort(negative), thresholds, "left")
    return float(gained @ (hits / (hits + alarms)) / len(positive))


def detection_draws(*, scores_in: Any, scores_out: Any, resamples: int = 200, seed: int = 0) -> dict[str, Floats]:
    """Each figure under resamples of both sets. Scores are sorted once; a resample only counts them anew."""
    id_scores, ood_scores = _scores(scores_in, scores_out)
    check_whole(resamples, "the number of resamples", 1), check_whole(seed, "the seed")
    values = np.unique(np.concatenate([id_scores, ood_scores]))
    place_in, place_out = (np.searchsorted(values, scores) for scores in (id_scores, ood_scores))
    rng = np.random.default_rng(seed)
    draws = {name: np.empty(resamples) for name in DETECTION_METRICS}
    for number in range(resamples):
        gained_in, gained_out = (
            np.bincount(place[rng.integers(len(place), size=len(place))], minlength=len(values))
            for place in (place_in, place_out)
        )
        for name, value in _counted(gained_in, gained_out).items():
            draws[name][number] = value
    return draws


def _counted(count_in: NDArray[np.int64], count_out: NDArray[np.int64]) -> dict[str, float]:
    """The figures from how many samples have each score, lowest first."""
    n_in, n_out = count_in.sum(), count_out.sum()
    in_up, out_up = (np.cumsum(count) for count in (count_in, count_out))  # this score or lower
    in_down, out_down = n_in - in_up + count_in, n_out - out_up + count_out  # this score or higher
    needed = max(1, int(np.ceil(0.95 * n_in - 1e-9)))
    threshold = np.searchsorted(-in_down, -needed, "right") - 1  # the highest score that enough ID samples reach
    with np.errstate(invalid="ignore"):
        precision_in = np.where(count_in > 0, in_down / (in_down + out_down), 0.0)
        precision_out = np.where(count_out > 0, out_up / (in_up + out_up), 0.0)
    return {
        "auroc": float(count_in @ (out_up - count_out / 2) / (n_in * n_out)),
        "fpr95": float(out_down[threshold] / n_out),
        "aupr_in": float(count_in @ precision_in / n_in),
        "aupr_out": float(count_out @ precision_out / n_out),
    }


class DetectionScores:
    """AUROC, FPR95 and AUPR batch by batch. They rank the samples, so every score is kept.

    >>> meter = DetectionScores()
    >>> meter.update(scores_in=[0.9, 0.8, 0.6])
    >>> meter.update(scores_out=[0.7, 0.6])
    >>> meter.compute()["auroc"]
    0.75
    """

    def __init__(self) -> None:
        self.scores_in: list[Floats] = []
        self.scores_out: list[Floats] = []

    def update(self, *, scores_in: Any = None, scores_out: Any = None) -> None:
        given = {"scores_in": scores_in, "scores_out": scores_out}
        new = {name: _checked(name, scores, least=0) for name, scores in given.items() if scores is not None}
        self.scores_in += [new[name] for name in new if name == "scores_in"]
        self.scores_out += [new[name] for name in new if name == "scores_out"]

    def merge(self, other: DetectionScores) -> None:
        if not isinstance(other, DetectionScores):
            raise BalcalError(f"cannot merge a {type(other).__name__} into a DetectionScores")
        self.scores_in += other.scores_in
        self.scores_out += other.scores_out

    def compute(self) -> dict[str, float]:
        if not self.scores_in or not self.scores_out:
            raise BalcalError("there is nothing to measure yet: update with scores of both sets")
        scores = {"scores_in": np.concatenate(self.scores_in), "scores_out": np.concatenate(self.scores_out)}
        return {name: figure(**scores) for name, figure in DETECTION_METRICS.items()}


_DETECT = "Hendrycks, Gimpel, ICLR 2017"
_AP = "sum_t (R_t - R_{t-1}) P_t"
_HIGH = {"scores": "higher means in-distribution"}

METRICS = {
    "auroc": Metric(auroc, "higher", "fraction", "P(in > out) + P(in = out)/2", _DETECT, _HIGH),
    "fpr95": Metric(
        fpr95,
        "lower",
        "fraction",
        "P(out >= t), t the highest threshold with P(in >= t) >= 0.95",
        "Liang, Li, Srikant, ICLR 2018",
        {**_HIGH, "interpolation": "none"},
    ),
    "aupr_in": Metric(aupr_in, "higher", "fraction", _AP, _DETECT, {"positive": "in-distribution"}),
    "aupr_out": Metric(aupr_out, "higher", "fraction", _AP, _DETECT, {"positive": "out-of-distribution"}),
    "failure_auroc": Metric(
        failure_auroc, "higher", "fraction", "P(conf right > conf wrong) + ties/2", _DETECT, {"score": "confidence"}
    ),
}
