"""Real predictions: ten thousand images that a network had not seen, through everything that measures or mends."""

import numpy as np
import pytest
import torch
from shared_files import CIFAR_LABELS, CIFAR_PROBS, HUMAN_VOTES, needs

import balcal
from balcal import metrics
from balcal.build import calibrators
from balcal.core import Predictions
from balcal.metrics.audit import audit

pytestmark = needs(CIFAR_PROBS, CIFAR_LABELS)


@pytest.fixture(scope="module")
def fixture():
    return np.load(CIFAR_PROBS)["probs"], np.load(CIFAR_LABELS)["test"].astype(np.int64)


def test_every_metric(fixture):
    p, y = fixture
    figures = metrics.summary(probs=p, labels=y)
    assert figures["accuracy"] == pytest.approx(0.9294, abs=1e-6)
    assert figures["ece"] == pytest.approx(0.0326, abs=5e-5)
    for name, value in figures.items():
        assert np.isfinite(value), name
        assert value == pytest.approx(getattr(metrics, name)(probs=p, labels=y), abs=1e-9), name
    assert figures["over_confidence"] + figures["under_confidence"] == pytest.approx(figures["ece"])
    gap = figures["mean_confidence"] - figures["accuracy"]
    for name in ("ece", "adaptive_ece", "smooth_ece", "ks"):
        assert gap - 1e-9 <= figures[name] <= figures["mce"]
    assert 0.8 < metrics.failure_auroc(probs=p, labels=y) < 1


def test_the_verdict_and_the_audit(fixture):
    p, y = fixture
    verdict = metrics.verdict(probs=p, labels=y)
    assert verdict.kind == "over"
    assert verdict.floor_high < verdict.ece_interval[0] < verdict.ece < verdict.ece_interval[1]
    assert 0.002 < verdict.floor_mean < 0.006
    found = {f.name: f.value for f in audit(probs=p, labels=y).findings}
    assert found["Guo et al."] == pytest.approx(found["balcal"], abs=1e-6)
    assert found["torchmetrics"] == pytest.approx(0.0326, abs=5e-4)


@pytest.mark.parametrize(
    "method", [n for n in calibrators() if n not in ("gamma", "laplace", "beta", "platt", "quadratic")]
)
def test_every_calibrator_improves_it(fixture, method):
    p, y = fixture
    half = len(y) // 2
    fitted = balcal.Calibrator(method).fit(p[:half], y[:half])
    before = Predictions(torch.from_numpy(p[half:]).log(), torch.from_numpy(y[half:]))
    after = Predictions(torch.from_numpy(fitted.predict_proba(p[half:])).log(), before.labels)
    found = metrics.compare(before, after, resamples=200)
    assert found.ece.value < 0
    if method != "histogram":  # fifteen bins for each class lose too much
        assert found.ece.high < 0
        assert found.nll.high < 0


@needs(HUMAN_VOTES)
def test_the_distance_to_human_uncertainty(fixture):
    """A temperature brings the network nearer to what people say, and people are nearest to themselves."""
    p, y = fixture
    votes = np.load(HUMAN_VOTES)["counts"]
    half = len(y) // 2
    cooler = balcal.Calibrator("ts").fit(p[:half], y[:half]).predict_proba(p[half:])
    raw = metrics.soft_kl(probs=p[half:], soft_labels=votes[half:])
    assert 0 < metrics.soft_kl(probs=cooler, soft_labels=votes[half:]) < raw
    human = votes[half:] / votes[half:].sum(1, keepdims=True)
    assert metrics.soft_kl(probs=human, soft_labels=votes[half:]) == pytest.approx(0, abs=1e-12)
    assert metrics.soft_nll(probs=cooler, soft_labels=votes[half:]) >= metrics.entropy(probs=human)
