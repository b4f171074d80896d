"""Smooth ECE against closed forms and a slow sum of kernels; KS against its definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import awkward, draw
from scipy.special import ndtr

from balcal import metrics
from balcal.core import BalcalError


def grouped(groups):
    """Predictions from (confidence, how many, how many right)."""
    p, y = [], []
    for conf, n, right in groups:
        p += [[conf, 1 - conf]] * n
        y += [0] * right + [1] * (n - right)
    return np.array(p), np.array(y)


@pytest.mark.parametrize(("certain", "gap"), [(3500, 0.0724), (6700, 0.1312)])
def test_where_all_residuals_have_one_sign_it_is_the_mean_gap(certain, gap):
    """Many confidences equal to 1.0, every group over-confident: a kernel that loses nothing must return the mean gap.
    The reference library returns 0.1033 and 0.2017 on data like these."""
    wrong_at_one = round(certain * 0.19)
    groups = [(1.0, certain, certain - wrong_at_one)]
    rest = 10_000 - certain
    for conf in (0.6, 0.7, 0.8, 0.9):
        n = rest // 4
        groups.append((conf, n, int(conf * n - 0.01 * n)))
    p, y = grouped(groups)
    mean_gap = metrics.mean_confidence(probs=p, labels=y) - metrics.accuracy(probs=p, labels=y)
    assert metrics.smooth_ece(probs=p, labels=y) == pytest.approx(mean_gap, abs=1e-9)
    assert mean_gap == pytest.approx(gap, abs=0.01)


def reflected_mass(a, b, centre, sigma):
    """Mass in (a, b) of a Gaussian at `centre`, folded back at 0 and 1."""
    total = 0.0
    for shift in range(-6, 7):
        for mirrored in (centre, -centre):
            total += ndtr((b - 2 * shift - mirrored) / sigma) - ndtr((a - 2 * shift - mirrored) / sigma)
    return total


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2, 0.6])
def test_two_opposite_groups_cancel_as_their_kernels_overlap(sigma):
    """Gaps +0.2 and -0.2 at 0.6 and 0.9: the smeared difference changes sign once. At 0.75, if nothing is reflected;
    in general where the two kernels are equal, found here by bisection."""
    p, y = grouped([(0.6, 1000, 400), (0.9, 1000, 1000), (0.9, 1000, 1000)])
    weights = [0.2 * 1000 / 3000, -0.1 * 2000 / 3000]

    def density(t):
        return sum(w * reflected_mass(t - 1e-5, t + 1e-5, c, sigma) for w, c in zip(weights, (0.6, 0.9), strict=True))

    grid = np.linspace(1e-4, 1 - 1e-4, 20_001)
    signs = np.sign([density(t) for t in grid[::100]])
    turns = [grid[::100][i] for i in np.flatnonzero(np.diff(signs) != 0)]
    edges = [0.0]
    for t in turns:
        low, high = t, t + 0.01
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if density(low) * density(middle) > 0 else (low, middle)
        edges.append(low)
    edges.append(1.0)
    expected = sum(
        abs(sum(w * reflected_mass(a, b, c, sigma) for w, c in zip(weights, (0.6, 0.9), strict=True)))
        for a, b in itertools.pairwise(edges)
    )
    assert metrics.smooth_ece(probs=p, labels=y, sigma=sigma) == pytest.approx(expected, abs=2e-5)


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_smooth_ece_is_a_slow_sum_of_kernels_at_the_width_that_equals_it(seed):
    p, y = draw(seed, n=60)
    conf, gap = p.max(1), p.max(1) - (p.argmax(1) == y)
    value = metrics.smooth_ece(probs=p, labels=y)
    t = (np.arange(4000) + 0.5) / 4000
    field = np.zeros_like(t)
    for c, g in zip(conf, gap, strict=True):
        for shift in range(-3, 4):
            for mirrored in (c, -c):
                field += g * np.exp(-(((t - 2 * shift - mirrored) / value) ** 2) / 2)
    expected = np.abs(field).sum() / 4000 / (value * np.sqrt(2 * np.pi)) / len(y)
    assert value == pytest.approx(expected, abs=1e-4)


@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_smoothing_more_never_adds_error(seed, make):
    p, y = make(seed, n=100)
    errors = [metrics.smooth_ece(probs=p, labels=y, sigma=s) for s in (0.01, 0.03, 0.1, 0.3, 1.0)]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(errors))
    gap = abs(metrics.mean_confidence(probs=p, labels=y) - metrics.accuracy(probs=p, labels=y))
    assert errors[-1] >= gap - 1e-9
    assert gap - 1e-9 <= metrics.smooth_ece(probs=p, labels=y) <= 1


def test_a_model_without_error_scores_nothing():
    assert metrics.smooth_ece(probs=[[1.0, 0.0]] * 5, labels=[0] * 5) == 0
    with pytest.raises(BalcalError, match="sigma"):
        metrics.smooth_ece(probs=[[1.0, 0.0]], labels=[0], sigma=0)


@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_ks_is_its_definition(seed, make):
    p, y = make(seed, n=60)
    conf, right = p.max(1), p.argmax(1) == y
    expected = max(abs((conf - right)[conf <= c].sum()) for c in conf) / 60
    assert metrics.ks(probs=p, labels=y) == pytest.approx(expected, abs=1e-12)
