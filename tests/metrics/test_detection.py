"""Detection against scikit-learn, ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from balcal import metrics
from balcal.core import BalcalError
from balcal.metrics import detection


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 10, 10**9]))
def test_agrees_with_scikit_learn(seed, n, m, levels):
    rng = np.random.default_rng(seed)
    id_scores, ood_scores = (
        (rng.integers(0, levels, n) / levels + 0.1).round(9),
        (rng.integers(0, levels, m) / levels).round(9),
    )
    truth, scores = np.r_[np.ones(n), np.zeros(m)], np.r_[id_scores, ood_scores]
    given_as = {"scores_in": id_scores, "scores_out": torch.from_numpy(ood_scores)}
    assert metrics.auroc(**given_as) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert metrics.aupr_in(**given_as) == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    assert metrics.aupr_out(**given_as) == pytest.approx(average_precision_score(1 - truth, -scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert metrics.fpr95(**given_as) == pytest.approx(fpr[np.argmax(tpr >= 0.95 - 1e-12)], abs=1e-12)


def test_failure_auroc():
    p, y = awkward(1)
    right = p.argmax(1) == y
    assert metrics.failure_auroc(probs=p, labels=y) == pytest.approx(roc_auc_score(right, p.max(1)))
    for label, kind in ((0, "right"), (1, "wrong")):
        with pytest.raises(BalcalError, match=f"all 1 answers are {kind}: there are no others"):
            metrics.failure_auroc(probs=[[0.9, 0.1]], labels=[label])


@given(st.integers(0, 10**6), st.integers(1, 19))
def test_streaming_scores(seed, cut):
    rng = np.random.default_rng(seed)
    id_scores, ood_scores = rng.random(20), rng.random(20)
    first, second = metrics.DetectionScores(), metrics.DetectionScores()
    first.update(scores_in=id_scores[:cut], scores_out=ood_scores[cut:])
    second.update(scores_out=ood_scores[:cut])
    second.update(scores_in=id_scores[cut:])
    first.merge(second)
    for name, value in first.compute().items():
        assert value == pytest.approx(getattr(metrics, name)(scores_in=id_scores, scores_out=ood_scores), abs=1e-12)


def test_bad_scores_are_refused():
    with pytest.raises(BalcalError, match="scores_out contains NaN"):
        metrics.auroc(scores_in=[1.0], scores_out=[np.nan])
    with pytest.raises(BalcalError, match="scores_in must be a list of at least one"):
        metrics.fpr95(scores_in=[], scores_out=[1.0])
    with pytest.raises(BalcalError, match="both sets"):
        metrics.DetectionScores().compute()


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
)
def test_counting_scores_gives_the_figures(id_scores, ood_scores):
    counts = [np.bincount(scores, minlength=7) for scores in (id_scores, ood_scores)]
    for name, value in detection._counted(*counts).items():
        expected = detection.DETECTION_METRICS[name](
            scores_in=np.array(id_scores, float), scores_out=np.array(ood_scores, float)
        )
        assert value == pytest.approx(expected), name


def test_draws_lie_around_the_figures():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.normal(1, 1, 400), rng.normal(0, 1, 300)
    draws = detection.detection_draws(scores_in=id_scores, scores_out=ood_scores, resamples=300)
    hand = [
        detection.auroc(scores_in=rng.choice(id_scores, 400), scores_out=rng.choice(ood_scores, 300))
        for _ in range(300)
    ]
    assert draws["auroc"].mean() == pytest.approx(np.mean(hand), abs=0.005)
    assert draws["auroc"].std() == pytest.approx(np.std(hand), rel=0.2)


def test_bad_scores_and_settings_are_said():
    with pytest.raises(BalcalError, match="scores_in must be a list"):
        metrics.DetectionScores().update(scores_in=0.5)
    with pytest.raises(BalcalError, match="tpr must be a finite number"):
        metrics.fpr95(scores_in=[0.5], scores_out=[0.4], tpr="all")
    with pytest.raises(BalcalError, match="cannot be read as an array of numbers"):
        metrics.auroc(scores_in=[[0.5], [0.5, 0.4]], scores_out=[0.4])
    meter = metrics.DetectionScores()
    with pytest.raises(BalcalError, match="cannot merge a dict"):
        meter.merge({})
    meter.update(scores_in=[], scores_out=[0.4])
    meter.update(scores_in=[0.5])
    assert meter.compute()["auroc"] == 1
