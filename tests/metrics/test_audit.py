"""The audit's own conventions, without the libraries: the paper's code by a plain loop."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw

from balcal import metrics
from balcal.metrics.audit import audit


def found(p, y):
    return {f.name: f for f in audit(probs=p, labels=y).findings}


@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_the_papers_adaptive_ece_by_a_loop(seed, make):
    """15 edges interpolated between the sorted confidences at positions 0, N/15, ..., N; bins (lo, hi]."""
    p, y = make(seed, n=90)
    conf, right = p.max(1), p.argmax(1) == y
    ordered = sorted(conf)
    edges = []
    for k in range(16):
        at = min(k * 90 / 15, 89)
        low = int(at)
        high = min(low + 1, 89)
        edges.append(ordered[low] + (at - low) * (ordered[high] - ordered[low]))
    total = 0.0
    for lo, hi in pairwise(edges):
        inside = (conf > lo) & (conf <= hi)
        total += abs((conf - right)[inside].sum())
    assert found(p, y)["adaptive, paper"].value == pytest.approx(total / 90, abs=1e-9)


def test_every_line_explains_itself_and_is_measured_against_ours():
    p, y = awkward(3)
    ours = metrics.ece(probs=p, labels=y)
    report = audit(probs=p, labels=y)
    for finding in report.findings:
        assert finding.why
        assert finding.difference == pytest.approx(finding.value - ours)
    assert found(p, y)["10 bins"].value == pytest.approx(metrics.ece(probs=p, labels=y, bins=10))
    assert found(p, y)["adaptive"].value == pytest.approx(metrics.adaptive_ece(probs=p, labels=y))
    assert 0 < report.floor_mean < report.floor_high


def test_gaps_of_one_sign_make_bins_matter_not():
    p = np.array([[0.9, 0.1]] * 50 + [[0.6, 0.4]] * 50)
    y = np.array([0] * 30 + [1] * 70)
    assert "their number does not matter" in found(p, y)["10 bins"].why
    assert "no confidence is exactly 1" in found(p, y)["torchmetrics"].why


def test_two_classes_are_asked_twice():
    p, y = draw(1, n=80, k=2)
    assert found(p, y)["class 1"].value == pytest.approx(metrics.binary_ece(probs=p[:, 1], labels=y), abs=1e-12)
    assert "class 1" not in found(*draw(1))
