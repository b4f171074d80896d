"""Metrics against plain loops and against scikit-learn; streaming against the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from balcal import metrics
from balcal.core import BalcalError, Predictions


def draw(seed, n=300, k=4, spread=2.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * spread
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return p, rng.integers(k, size=n)


def slow_ece(p, y, bins):
    """By the definition: bins (lo, hi], one after the other."""
    total = over = under = 0.0
    for b in range(bins):
        lo, hi = b / bins, (b + 1) / bins
        inside = [i for i in range(len(y)) if lo < max(p[i]) <= hi or (b == 0 and max(p[i]) == 0)]
        if inside:
            conf = sum(max(p[i]) for i in inside) / len(inside)
            acc = sum(int(np.argmax(p[i]) == y[i]) for i in inside) / len(inside)
            share = len(inside) / len(y)
            total += share * abs(conf - acc)
            over += share * max(conf - acc, 0)
            under += share * max(acc - conf, 0)
    return total, over, under


@given(st.integers(0, 10**6), st.integers(1, 30))
def test_ece_is_its_definition_and_splits_into_over_and_under(seed, bins):
    p, y = draw(seed)
    total, over, under = slow_ece(p, y, bins)
    assert metrics.ece(probs=p, labels=y, bins=bins) == pytest.approx(total, abs=1e-12)
    assert metrics.over_confidence(probs=p, labels=y, bins=bins) == pytest.approx(over, abs=1e-12)
    assert metrics.under_confidence(probs=p, labels=y, bins=bins) == pytest.approx(under, abs=1e-12)


@given(st.integers(0, 10**6))
def test_scores_agree_with_scikit_learn(seed):
    p, y = draw(seed)
    assert metrics.nll(probs=p, labels=y) == pytest.approx(log_loss(y, p, labels=range(4)), rel=1e-9)
    assert metrics.brier(probs=p, labels=y) == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    assert metrics.accuracy(probs=p, labels=y) == np.mean(p.argmax(1) == y)


def test_the_edges_belong_where_the_docs_say():
    """Confidence 1.0 sits in the last bin with its neighbours: torchmetrics gives it a bin of its own."""
    p = [[1.0, 0.0], [0.95, 0.05]]
    assert metrics.ece(probs=p, labels=[1, 0], bins=10) == pytest.approx(abs(1.95 - 1) / 2)
    thirds = [[1 / 3, 2 / 3], [2 / 3, 1 / 3]]
    assert metrics.ece(probs=thirds, labels=[1, 1], bins=3) == pytest.approx(abs(4 / 3 - 1) / 2)


@given(st.integers(0, 10**6), st.integers(1, 299))
def test_streaming_is_exact_under_any_split(seed, cut):
    p, y = draw(seed)
    log_p, labels = torch.from_numpy(p).log(), torch.from_numpy(y)
    whole, first, second = metrics.TopLabel(), metrics.TopLabel(), metrics.TopLabel()
    whole.update(log_p, labels)
    first.update(log_p[:cut], labels[:cut])
    second.update(log_p[cut:], labels[cut:])
    first.merge(second)
    for name, value in whole.compute().items():
        assert first.compute()[name] == pytest.approx(value, abs=1e-12)
    assert whole.compute()["ece"] == pytest.approx(metrics.ece(probs=p, labels=y), abs=1e-9)
    assert whole.compute()["nll"] == pytest.approx(metrics.nll(probs=p, labels=y), abs=1e-9)


def test_inputs_are_never_guessed():
    p, y = draw(0)
    with pytest.raises(BalcalError, match="exactly one of probs= and log_probs="):
        metrics.ece(labels=y)
    with pytest.raises(BalcalError, match="are these logits"):
        metrics.ece(probs=p * 3, labels=y)
    with pytest.raises(BalcalError, match="label 4 in the data is out of range"):
        metrics.ece(probs=p, labels=np.full(300, 4))
    with pytest.raises(BalcalError, match="NaN or infinite"):
        metrics.nll(probs=np.full((3, 2), np.nan), labels=[0, 1, 0])
    with pytest.raises(BalcalError, match="no samples"):
        metrics.accuracy(probs=np.zeros((0, 2)), labels=np.zeros(0, int))


def test_verdict_says_over_and_under():
    p, y = draw(0)
    told = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    assert "over-confident by" in str(metrics.verdict(told))
    right = Predictions(told.log_probs, told.log_probs.argmax(1))
    assert "under-confident by" in str(metrics.verdict(right))
    assert metrics.verdict(right).accuracy == 1.0
