"""Scores against scikit-learn and scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from balcal import metrics
from balcal.core import BalcalError


@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_scores_agree_with_scikit_learn_and_scipy(seed, make):
    p, y = make(seed)
    assert metrics.accuracy(probs=p, labels=y) == pytest.approx(accuracy_score(y, p.argmax(1)), abs=1e-12)
    assert metrics.entropy(probs=p) == pytest.approx(scipy_entropy(p, axis=1).mean(), abs=1e-9)
    expected = brier_score_loss(y, p, labels=range(4), scale_by_half=False)
    assert metrics.brier(probs=p, labels=y) == pytest.approx(expected, abs=1e-9)
    assert metrics.brier_per_class(probs=p, labels=y) == pytest.approx(expected / 4, abs=1e-9)
    if make is draw:
        assert metrics.nll(probs=p, labels=y) == pytest.approx(log_loss(y, p, labels=range(4)), rel=1e-9)


def test_nll_is_not_clipped():
    """scikit-learn clips a probability of 0 and prints 36; ours says what it is."""
    p, y = np.array([[1.0, 0.0], [0.5, 0.5]]), [1, 0]
    assert metrics.nll(probs=p, labels=y) == np.inf
    assert log_loss(y, p) < 40
    with np.errstate(divide="ignore"):
        assert metrics.nll(log_probs=np.log(p), labels=y) == np.inf
    assert metrics.entropy(probs=p) == pytest.approx(np.log(2) / 2)


@given(st.integers(0, 10**6))
def test_distance_to_soft_labels(seed):
    p, _ = draw(seed, n=40)
    votes = np.random.default_rng(seed).integers(0, 50, size=p.shape) + np.eye(4, dtype=int)[np.zeros(40, int)]
    q = votes / votes.sum(1, keepdims=True)
    kl = metrics.soft_kl(probs=p, soft_labels=votes)
    assert kl == pytest.approx(scipy_entropy(q, p, axis=1).mean(), abs=1e-9)
    assert metrics.soft_nll(probs=p, soft_labels=votes) == pytest.approx(kl + metrics.entropy(probs=q), abs=1e-9)
    assert metrics.soft_kl(log_probs=np.log(p), soft_labels=q) == pytest.approx(kl, abs=1e-9)


def test_soft_labels_must_be_votes():
    with pytest.raises(BalcalError, match="no row without any"):
        metrics.soft_kl(probs=[[0.5, 0.5]], soft_labels=[[0, 0]])
    with pytest.raises(BalcalError, match="like the predictions"):
        metrics.soft_nll(probs=[[0.5, 0.5]], soft_labels=[[1, 0, 0]])


@pytest.mark.parametrize("votes", [[[np.inf, 1.0]], [[np.nan, 1.0]], [[-1.0, 2.0]], [[0.0, 0.0]], [[1e308, 1e308]]])
@pytest.mark.parametrize("name", ["soft_nll", "soft_kl"])
def test_votes_must_be_votes(name, votes):
    with pytest.raises(BalcalError, match="soft labels must be votes or probabilities: finite, nothing negative"):
        getattr(metrics, name)(probs=[[0.5, 0.5]], soft_labels=votes)


def test_certainty_costs_nothing_not_less():
    """float32 may put a certain class a little above 1, and the logarithm of 1 may be -0."""
    lifted = np.array([[np.float32(1.0000001), 0.0]], dtype=np.float32)
    for predictions in ({"probs": lifted}, {"log_probs": np.log(lifted + 1e-30)}, {"probs": [[1.0, 0.0]]}):
        assert str(metrics.nll(**predictions, labels=[0])) == "0.0"
