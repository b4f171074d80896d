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
from balcal.metrics.metric import Metric, by_name
from balcal.metrics.reading import read_weights
from balcal.runtime.values import as_tensor, check_number, check_whole


@by_name
def auroc(*, scores_in: Any, scores_out: Any, sample_weight_in: Any = None, sample_weight_out: Any = None) -> float:
    """Chance that an in-distribution sample scores above an OOD one, ties counted half. Higher is better.

    >>> auroc(scores_in=[0.9, 0.8, 0.6], scores_out=[0.7, 0.6])  # 2 + 2 + 0.5 of 6 pairs
    0.75
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    if sample_weight_in is not None or sample_weight_out is not None:
        return _weighted(id_scores, ood_scores, sample_weight_in, sample_weight_out)["auroc"]
    id_scores, ood_scores = np.sort(id_scores), np.sort(ood_scores)
    below, not_above = (np.searchsorted(ood_scores, id_scores, side).sum() for side in ("left", "right"))
    return float((below + not_above) / 2 / (len(id_scores) * len(ood_scores)))


@by_name
def fpr95(
    *,
    scores_in: Any,
    scores_out: Any,
    tpr: float = 0.95,
    sample_weight_in: Any = None,
    sample_weight_out: Any = None,
) -> float:
    """Share of OOD samples that reach the highest threshold that 95 % of ID samples reach. Lower is better.

    >>> fpr95(scores_in=[0.9, 0.8, 0.7, 0.6], scores_out=[0.95, 0.5, 0.4, 0.3])
    0.25
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    if not 0 < check_number(tpr, "tpr") <= 1:
        raise BalcalError(f"tpr must lie in (0, 1], not {tpr}")
    if sample_weight_in is not None or sample_weight_out is not None:
        return _weighted(id_scores, ood_scores, sample_weight_in, sample_weight_out, tpr)["fpr95"]
    needed = max(1, int(np.ceil(tpr * len(id_scores) - 1e-9)))
    threshold = np.sort(id_scores)[len(id_scores) - needed]
    return float((ood_scores >= threshold).mean())


@by_name
def aupr_in(*, scores_in: Any, scores_out: Any, sample_weight_in: Any = None, sample_weight_out: Any = None) -> float:
    """Average precision with in-distribution as the positive class. Higher is better; chance is its share.

    >>> round(aupr_in(scores_in=[0.9, 0.7], scores_out=[0.8]), 6)  # (1/1 + 2/3) / 2
    0.833333
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    if sample_weight_in is not None or sample_weight_out is not None:
        return _weighted(id_scores, ood_scores, sample_weight_in, sample_weight_out)["aupr_in"]
    return _average_precision(id_scores, ood_scores)


@by_name
def aupr_out(*, scores_in: Any, scores_out: Any, sample_weight_in: Any = None, sample_weight_out: Any = None) -> float:
    """Average precision with OOD as the positive class. Higher is better; chance is its share.

    >>> aupr_out(scores_in=[0.9, 0.7], scores_out=[0.8])
    0.5
    """
    id_scores, ood_scores = _scores(scores_in, scores_out)
    if sample_weight_in is not None or sample_weight_out is not None:
        return _weighted(id_scores, ood_scores, sample_weight_in, sample_weight_out)["aupr_out"]
    return _average_precision(-ood_scores, -id_scores)


@by_name
def failure_auroc(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Chance that a right answer is more confident than a wrong one. Higher is better.

    There must be both: right answers and wrong ones.

    >>> failure_auroc(probs=[[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], labels=[0, 1, 1])
    1.0
    """
    top = read(probs, log_probs, labels, sample_weight).top()
    if bool(top.right.all()) or not bool(top.right.any()):
        kind = "right" if bool(top.right.any()) else "wrong"
        raise BalcalError(f"all {len(top):,} answers are {kind}: there are no others to tell them from")
    scores = {"scores_in": top.conf[top.right], "scores_out": top.conf[~top.right]}
    if top.weights is None:
        return auroc(**scores)
    weights = {"sample_weight_in": top.weights[top.right], "sample_weight_out": top.weights[~top.right]}
    return auroc(**scores, **weights)


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


def _weighted(
    id_scores: Floats, ood_scores: Floats, weights_in: Any, weights_out: Any, tpr: float = 0.95
) -> dict[str, float]:
    """The figures where a sample counts as often as its weight says. Only one set need have weights."""
    values = np.unique(np.concatenate([id_scores, ood_scores]))
    counts = []
    for scores, given, name in ((id_scores, weights_in, "_in"), (ood_scores, weights_out, "_out")):
        weights = read_weights(given, len(scores), f"sample_weight{name}")
        mass = np.ones(len(scores)) if weights is None else weights.numpy()
        counts.append(np.bincount(np.searchsorted(values, scores), mass, len(values)))
    return _counted(counts[0], counts[1], tpr)


def _counted(count_in: NDArray[Any], count_out: NDArray[Any], tpr: float = 0.95) -> dict[str, float]:
    """The figures from how many samples have each score, lowest first."""
    n_in, n_out = count_in.sum(), count_out.sum()
    out_up, in_up = (np.cumsum(count) for count in (count_out, count_in))  # this score or lower
    in_down, out_down = (np.cumsum(count[::-1])[::-1] for count in (count_in, count_out))  # this score or higher
    needed = tpr * n_in * (1 - 1e-12)
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
        self.weights_in: list[Floats | None] = []
        self.weights_out: list[Floats | None] = []

    @by_name
    def update(
        self,
        *,
        scores_in: Any = None,
        scores_out: Any = None,
        sample_weight_in: Any = None,
        sample_weight_out: Any = None,
    ) -> None:
        new = [_batch("in", scores_in, sample_weight_in), _batch("out", scores_out, sample_weight_out)]
        self.scores_in += [scores for scores, _ in new[0]]
        self.weights_in += [weights for _, weights in new[0]]
        self.scores_out += [scores for scores, _ in new[1]]
        self.weights_out += [weights for _, weights in new[1]]

    def merge(self, other: DetectionScores) -> None:
        if not isinstance(other, DetectionScores):
            raise BalcalError(f"cannot merge a {type(other).__name__} into a DetectionScores")
        for name in ("scores_in", "scores_out", "weights_in", "weights_out"):
            getattr(self, name).extend(getattr(other, name))

    def compute(self) -> dict[str, float]:
        if not self.scores_in or not self.scores_out:
            raise BalcalError("there is nothing to measure yet: update with scores of both sets")
        given: dict[str, Any] = {
            "scores_in": np.concatenate(self.scores_in),
            "scores_out": np.concatenate(self.scores_out),
        }
        if any(each is not None for each in self.weights_in + self.weights_out):
            given["sample_weight_in"] = _joined(self.scores_in, self.weights_in)
            given["sample_weight_out"] = _joined(self.scores_out, self.weights_out)
        return {name: figure(**given) for name, figure in DETECTION_METRICS.items()}


def _batch(side: str, given: Any, sample_weight: Any) -> list[tuple[Floats, Floats | None]]:
    """The scores of a batch and their weights; nothing, if none are given."""
    if given is None:
        if sample_weight is not None:
            raise BalcalError(f"sample_weight_{side}= needs scores_{side}=")
        return []
    scores = _checked(f"scores_{side}", given, least=0)
    weights = read_weights(sample_weight, len(scores), f"sample_weight_{side}", all_zero=True)
    return [(scores, None if weights is None else weights.numpy())]


def _joined(scores: list[Floats], weights: list[Floats | None]) -> Floats:
    pairs = zip(scores, weights, strict=True)
    return np.concatenate([np.ones(len(each)) if mass is None else mass for each, mass in pairs])


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
