"""Binned metrics against plain loops, and the laws they obey."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw

from balcal import metrics
from balcal.core import BalcalError

SEEDS = st.integers(0, 10**6)


def slow_bins(p, y, bins):
    """(count, mean confidence, accuracy) of the bins (lo, hi], one after the other."""
    for b in range(bins):
        lo, hi = b / bins, (b + 1) / bins
        inside = [i for i in range(len(y)) if lo < max(p[i]) <= hi or (b == 0 and max(p[i]) == 0)]
        if inside:
            conf = sum(max(p[i]) for i in inside) / len(inside)
            acc = sum(int(np.argmax(p[i]) == y[i]) for i in inside) / len(inside)
            yield len(inside), conf, acc


@given(SEEDS, st.integers(1, 30), st.sampled_from([draw, awkward]))
def test_binned_metrics_are_their_definitions(seed, bins, make):
    p, y = make(seed)
    rows, n = list(slow_bins(p, y, bins)), len(y)
    expected = {
        "ece": sum(c / n * abs(conf - acc) for c, conf, acc in rows),
        "over_confidence": sum(c / n * max(conf - acc, 0) for c, conf, acc in rows),
        "under_confidence": sum(c / n * max(acc - conf, 0) for c, conf, acc in rows),
        "mce": max(abs(conf - acc) for _, conf, acc in rows),
        "rmsce": sum(c / n * (conf - acc) ** 2 for c, conf, acc in rows) ** 0.5,
    }
    for name, value in expected.items():
        assert getattr(metrics, name)(probs=p, labels=y, bins=bins) == pytest.approx(value, abs=1e-12), name
    assert expected["ece"] <= expected["rmsce"] + 1e-12
    assert expected["rmsce"] <= expected["mce"] + 1e-12
    assert expected["over_confidence"] + expected["under_confidence"] == pytest.approx(expected["ece"])


@given(SEEDS, st.integers(1, 12))
def test_classwise_ece_is_its_definition(seed, bins):
    p, y = awkward(seed, n=60)
    total = 0.0
    for k in range(p.shape[1]):
        for b in range(bins):
            inside = [i for i in range(len(y)) if b / bins < p[i, k] <= (b + 1) / bins or (b == 0 and p[i, k] == 0)]
            total += abs(sum(p[i, k] - (y[i] == k) for i in inside)) / len(y)
    assert metrics.classwise_ece(probs=p, labels=y, bins=bins) == pytest.approx(total / p.shape[1], abs=1e-12)


@given(SEEDS, st.integers(1, 20))
def test_adaptive_bins_hold_equal_shares_where_no_two_are_equal(seed, bins):
    p, y = draw(seed, n=240)
    order = np.argsort(p.max(1))
    gap = (p.max(1) - (p.argmax(1) == y))[order]
    edges = [-(-k * 240 // bins) for k in range(bins + 1)]
    total = sum(abs(gap[a:b].sum()) for a, b in itertools.pairwise(edges)) / 240
    assert metrics.adaptive_ece(probs=p, labels=y, bins=bins) == pytest.approx(total, abs=1e-12)


def test_adaptive_bins_keep_equal_confidences_together():
    """Half of the samples say 1.0: however they are ordered, they share a bin."""
    p = np.array([[1.0, 0.0]] * 6 + [[0.6, 0.4]] * 6)
    y = np.array([0, 1] * 6)
    assert metrics.adaptive_ece(probs=p, labels=y, bins=4) == pytest.approx((abs(6 - 3) + abs(3.6 - 3)) / 12)


def test_debiasing_takes_off_what_noise_adds():
    """Perfect models of 500 samples: the mean of ECE lies far from 0, of the debiased one much nearer; and a known
    ECE of 0.10 is met on average."""
    rng = np.random.default_rng(0)
    plain, debiased, off = [], [], []
    for _ in range(300):
        conf = 0.5 + 0.5 * rng.random(500)
        for shift, shifted in ((0.0, None), (0.10, off)):
            right = rng.random(500) < conf - shift
            p = np.stack([conf, 1 - conf], 1)
            value = metrics.debiased_ece(probs=p, labels=(~right).astype(int))
            if shifted is None:
                debiased.append(value)
                plain.append(metrics.ece(probs=p, labels=(~right).astype(int)))
            else:
                shifted.append(value)
    assert np.mean(plain) > 0.04
    assert np.mean(debiased) < 0.65 * np.mean(plain)
    assert np.mean(off) == pytest.approx(0.10, abs=0.005)


@given(SEEDS)
def test_debiasing_is_its_definition(seed):
    """By drawing the noise: E|N(m, s)| of each bin from a large sample."""
    p, y = draw(seed, n=400)
    noise = np.random.default_rng(1).standard_normal(20_000)
    value = 0.0
    for c, conf, acc in slow_bins(p, y, 15):
        m, s = abs(conf - acc), (acc * (1 - acc) / c) ** 0.5
        value += c / 400 * (2 * m - np.abs(m + s * noise).mean())
    assert metrics.debiased_ece(probs=p, labels=y) == pytest.approx(max(0, value), abs=0.003)


def test_the_edges_belong_where_the_docs_say():
    """Confidence 1.0 sits in the last bin with its neighbours: torchmetrics gives it a bin of its own."""
    p = [[1.0, 0.0], [0.95, 0.05]]
    assert metrics.ece(probs=p, labels=[1, 0], bins=10) == pytest.approx(abs(1.95 - 1) / 2)
    thirds = [[1 / 3, 2 / 3], [2 / 3, 1 / 3]]
    assert metrics.ece(probs=thirds, labels=[1, 1], bins=3) == pytest.approx(abs(4 / 3 - 1) / 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_edge_is_an_edge_in_every_precision(dtype):
    """0.6 rounds up in float16 and float32; it still belongs to (0.4, 0.6], together with 0.5."""
    p = torch.tensor([[0.6, 0.4], [0.5, 0.5], [0.7, 0.3]], dtype=dtype)
    sums = p.double().sum(1) if dtype.itemsize == 2 else torch.ones(3)
    confidences = p.double().max(1).values / sums
    expected = (abs(confidences[:2].sum() - 1) + abs(confidences[2] - 1)) / 3
    assert metrics.ece(probs=p, labels=[0, 1, 0], bins=5) == pytest.approx(float(expected), abs=1e-12)


def test_bins_must_be_bins():
    with pytest.raises(BalcalError, match="at least one bin"):
        metrics.ece(probs=[[0.9, 0.1]], labels=[0], bins=0)
    with pytest.raises(BalcalError, match="at least one bin"):
        metrics.adaptive_ece(probs=[[0.9, 0.1]], labels=[0], bins=0)
