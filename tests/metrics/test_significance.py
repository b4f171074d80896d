"""Tests of perfect calibration: right for perfect models, and able to see others."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw
from scipy.stats import binom, kstest

from balcal import metrics
from balcal.metrics.significance import beyond, range_beyond

NAMES = ("spiegelhalter", "ks", "kuiper")


def predictions(rng, n, k, spread, decimals=None):
    """Probabilities, and labels drawn from them: a perfect model."""
    z = rng.normal(size=(n, k)) * spread
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    if decimals is not None:  # many samples of equal confidence
        conf = p.max(1).round(decimals).clip(1 / k + 0.01, 0.99)
        p = np.repeat(((1 - conf) / (k - 1))[:, None], k, 1)
        p[:, 0] = conf
    return p, (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=k - 1)


@pytest.mark.parametrize(
    ("n", "k", "spread", "decimals", "weighted"),
    [
        (40, 3, 1.5, None, False),
        (300, 4, 5, None, False),
        (200, 3, 2, None, True),
        (6000, 5, 1, None, False),
        (1000, 4, 2, 2, False),
    ],
    ids=["few", "certain", "weights", "a Brownian motion", "two decimals"],
)
def test_p_values_of_perfect_models_are_uniform(n, k, spread, decimals, weighted):
    rng, trials = np.random.default_rng(0), 150
    found = {name: [] for name in NAMES}
    for _ in range(trials):
        p, y = predictions(rng, n, k, spread, decimals)
        weights = np.exp(rng.normal(size=n)) if weighted else None
        for name, test in metrics.calibration_tests(probs=p, labels=y, sample_weight=weights).items():
            found[name].append(test.p)
    for name, values in found.items():
        assert kstest(values, "uniform").pvalue > 0.003, name
        assert np.mean(np.array(values) <= 0.05) <= 0.10, name


def test_miscalibration_is_seen():
    rng = np.random.default_rng(1)
    p, y = predictions(rng, 2000, 4, 1.5)
    hot = p**1.5 / (p**1.5).sum(1, keepdims=True)
    for test in metrics.calibration_tests(probs=hot, labels=y).values():
        assert test.p < 0.001
    assert metrics.spiegelhalter(probs=hot, labels=y) > 5
    cold = p**0.6 / (p**0.6).sum(1, keepdims=True)
    assert metrics.spiegelhalter(probs=cold, labels=y) < -5
    assert all(test.p > 0.001 for test in metrics.calibration_tests(probs=p, labels=y).values())


@given(st.integers(0, 10**6))
def test_two_classes_give_the_formula_of_1986(seed):
    rng = np.random.default_rng(seed)
    p = rng.beta(1.2, 2, 30)
    y = rng.random(30) < 0.4
    z = ((y - p) * (1 - 2 * p)).sum() / np.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum())
    assert metrics.spiegelhalter(probs=p, labels=y) == pytest.approx(z, abs=1e-9)


@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_errors_by_hand_and_copies_that_are_no_evidence(seed, make):
    p, y = make(seed, n=60)
    conf, right = p.max(1), p.argmax(1) == y
    walk = [0.0, *((conf - right)[conf <= c].sum() for c in np.unique(conf))]
    found = metrics.calibration_tests(probs=p, labels=y)
    assert metrics.ks(probs=p, labels=y) == pytest.approx(np.abs(walk).max() / 60, abs=1e-12)
    assert metrics.kuiper(probs=p, labels=y) == pytest.approx((max(walk) - min(walk)) / 60, abs=1e-12)
    assert found["ks"].statistic == pytest.approx(metrics.ks(probs=p, labels=y), abs=1e-12)
    assert found["kuiper"].statistic == pytest.approx(metrics.kuiper(probs=p, labels=y), abs=1e-12)
    order = np.random.default_rng(seed).permutation(60)
    heavy = metrics.calibration_tests(probs=p[order], labels=y[order], sample_weight=np.full(60, 3.0))
    for name in NAMES:
        assert heavy[name].p == pytest.approx(found[name].p, abs=1e-9)
        one_of_three = {"spiegelhalter": 0, "ks": 1, "kuiper": 2}[name]
        single = (metrics.spiegelhalter_p, metrics.ks_p, metrics.kuiper_p)[one_of_three]
        assert single(probs=p, labels=y) == found[name].p
    assert metrics.spiegelhalter(probs=p, labels=y) == found["spiegelhalter"].statistic


def test_one_confidence_is_a_binomial_test():
    """All samples at 0.8: the walk is one step, and the p-value that of a binomial, up to simulation."""
    for hits in (150, 155, 165, 172):
        p = metrics.ks_p(probs=[[0.8, 0.2]] * 200, labels=[0] * hits + [1] * (200 - hits))
        off = abs(hits - 160)
        assert p == pytest.approx(binom.cdf(160 - off, 200, 0.8) + binom.sf(159 + off, 200, 0.8), abs=0.035)


def test_the_series_are_those_of_a_brownian_motion():
    rng = np.random.default_rng(3)
    walk = np.cumsum(rng.normal(size=(4000, 2000)) / np.sqrt(2000), 1)
    far, wide = np.abs(walk).max(1), walk.max(1).clip(min=0) - walk.min(1).clip(max=0)
    for x in (0.6, 0.9, 1.0, 1.1, 1.5, 2.0, 2.5):
        assert beyond(x) == pytest.approx((far >= x - 0.013).mean(), abs=0.03)
        assert range_beyond(x) == pytest.approx((wide >= x - 0.026).mean(), abs=0.03)
    assert beyond(0.999999) == pytest.approx(beyond(1.000001), abs=1e-5)
    assert beyond(20.0) < 1e-80
    assert range_beyond(20.0) < 1e-80


def test_certainty():
    """Nothing is left to chance: right answers are what was promised, and a wrong one is impossible."""
    for labels, p in (([0, 0, 0], 1.0), ([0, 0, 1], 0.0)):
        found = metrics.calibration_tests(probs=[[1.0, 0.0]] * 3, labels=labels)
        assert [test.p for test in found.values()] == [p] * 3
    assert found["spiegelhalter"].statistic == np.inf
    verdict = metrics.verdict(probs=[[1.0, 0.0]] * 12, labels=[0] * 11 + [1], details=True)
    assert metrics.Verdict.of(json.loads(json.dumps(verdict.as_dict(), allow_nan=False))) == verdict
    assert metrics.spiegelhalter_p(probs=[[0.25] * 4] * 30, labels=[0] * 30) == 1.0


def test_the_verdict_shows_them():
    p, y = draw(0, n=400)
    verdict = metrics.verdict(probs=p, labels=y, details=True)
    assert vars(verdict.details)["ks"] == metrics.calibration_tests(probs=p, labels=y)["ks"]
    assert "Spiegelhalter < 0.001 (z +" in str(verdict)
    assert "details" not in metrics.verdict(probs=p, labels=y).as_dict()
    assert metrics.Verdict.of(json.loads(json.dumps(verdict.as_dict()))) == verdict
    assert metrics.verdict(probs=p[:8], labels=y[:8], details=True).details.decomposition is None
