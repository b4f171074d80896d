"""Risk and coverage against an average over all orders of ties."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import draw

from balcal import metrics


def slow_risks(right):
    """`right` from the most confident sample to the least."""
    return [1 - sum(right[:k]) / k for k in range(1, len(right) + 1)]


@given(st.integers(0, 10**6))
def test_risk_is_its_definition(seed):
    p, y = draw(seed, n=50)
    order = np.argsort(-p.max(1))
    risks = slow_risks((p.argmax(1) == y)[order])
    coverage, risk = metrics.risk_coverage(probs=p, labels=y)
    assert risk == pytest.approx(risks, abs=1e-12)
    assert coverage == pytest.approx(np.arange(1, 51) / 50)
    assert metrics.aurc(probs=p, labels=y) == pytest.approx(np.mean(risks), abs=1e-12)
    assert risk[-1] == pytest.approx(1 - metrics.accuracy(probs=p, labels=y))


def test_ties_are_an_average_over_their_orders():
    conf, right = [0.9, 0.8, 0.8, 0.8, 0.6], [1, 1, 0, 0, 1]
    p = np.array([[c, 1 - c] for c in conf])
    y = [1 - r for r in right]
    over_orders = [slow_risks([right[0], *(right[1 + i] for i in order), right[4]]) for order in permutations(range(3))]
    assert metrics.risk_coverage(probs=p, labels=y)[1] == pytest.approx(np.mean(over_orders, axis=0), abs=1e-12)


def test_one_sample():
    assert metrics.aurc(probs=[[0.9, 0.1]], labels=[1]) == 1.0
    assert metrics.aurc(probs=[[0.9, 0.1]], labels=[0]) == 0.0
