"""NLL and Brier score in two parts, where the parts are known."""

import json

import numpy as np
import pytest
import torch
from samples import draw
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression

import balcal
from balcal import metrics
from balcal.core import BalcalError
from balcal.metrics.decomposition import fit_temperature


def model(seed, n, power):
    """A perfect model's probabilities to a power: their temperature is known."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5)) * 1.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=4)
    hot = p**power / (p**power).sum(1, keepdims=True)
    return p, hot, y


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_what_a_temperature_has_spoilt_is_miscalibration(power):
    p, hot, y = model(0, 4000, power)
    found = metrics.decomposition(probs=hot, labels=y)
    for name in ("nll", "brier"):
        score, rest, loss = (getattr(found, name + part) for part in ("", "_refinement", "_miscalibration"))
        assert score == pytest.approx(getattr(metrics, name)(probs=hot, labels=y), abs=1e-12)
        assert rest == pytest.approx(getattr(metrics, name)(probs=p, labels=y), abs=0.002)
        assert loss == pytest.approx(score - rest, abs=1e-12)
        low, high = getattr(found, f"{name}_interval")
        assert 0 < low < loss < high
    perfect = metrics.decomposition(probs=p, labels=y)
    assert perfect.nll_interval[0] <= 0.001
    assert abs(perfect.nll_miscalibration) < 0.001


def test_the_temperature_is_the_minimum():
    _, hot, y = model(1, 300, 3.0)
    rng = np.random.default_rng(0)
    w = rng.integers(1, 4, 300)
    seen = []

    def spy(log_probs, labels, weights):
        fitted = fit_temperature(log_probs, labels, weights)
        seen.append((log_probs, labels, weights, fitted))
        return fitted

    metrics.decomposition(probs=hot, labels=y, recalibrate=spy, sample_weight=w, folds=2)
    for log_probs, labels, weights, fitted in seen:

        def objective(log_scale, z=log_probs, y=labels, w=weights):
            scores = (z * np.exp(log_scale)).log_softmax(1)
            return float(-(w * scores[torch.arange(len(y)), y]).sum()) + log_scale**2

        best = minimize_scalar(objective, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8}).x
        expected = (log_probs * np.exp(best)).log_softmax(1)
        assert (fitted(log_probs) - expected).abs().max() < 1e-4


def test_no_sample_is_scored_by_a_map_that_has_seen_it():
    _, hot, y = model(2, 101, 2.0)
    scored = []

    def way(log_probs, labels, weights):
        assert weights is None
        rows = {tuple(row) for row in log_probs.numpy().round(9)}

        def fitted(others):
            assert not rows & {tuple(row) for row in others.numpy().round(9)}
            assert len(rows) + len(others) == 101
            scored.append(len(others))
            return others

        return fitted

    same = metrics.decomposition(probs=hot, labels=y, recalibrate=way, folds=4)
    assert sorted(scored) == [25, 25, 25, 26]
    assert same.nll_miscalibration == pytest.approx(0, abs=1e-12)
    groups = np.arange(101) // 10
    fold_of = {}

    def by_group(log_probs, labels, weights):
        number = len(fold_of)

        def fitted(others):
            rows = torch.from_numpy(hot).log()
            at = (rows[:, None] - others[None]).abs().sum(2).argmin(0)
            fold_of[number] = set(groups[at.numpy()])
            return others

        return fitted

    metrics.decomposition(probs=hot, labels=y, recalibrate=by_group, folds=4, groups=groups)
    assert sum(map(len, fold_of.values())) == 11, "a group is in one fold"


def test_the_best_recalibrator_is_taken():
    p, hot, y = model(3, 1500, 2.0)
    shifted = hot * np.array([3, 1, 1, 1, 0.3])  # no temperature mends it
    shifted /= shifted.sum(1, keepdims=True)
    ways = {"ts": None, "vs": balcal.Calibrator("vs"), "logistic": LogisticRegression()}
    found = metrics.decomposition(probs=shifted, labels=y, recalibrate=ways)
    alone = {name: metrics.decomposition(probs=shifted, labels=y, recalibrate=way) for name, way in ways.items()}
    assert found.by == min(alone, key=lambda name: alone[name].nll_refinement) != "ts"
    assert found.nll_refinement == pytest.approx(metrics.nll(probs=p, labels=y), abs=0.02)
    assert alone["vs"].by == "vs"
    logits = metrics.decomposition(probs=hot, labels=y, recalibrate=balcal.Calibrator("ts", inputs="logits"))
    assert logits.nll_refinement == pytest.approx(metrics.decomposition(probs=hot, labels=y).nll_refinement, abs=1e-3)
    told = metrics.verdict(probs=shifted, labels=y, details=True, recalibrate=ways)
    assert told.details.decomposition == found
    assert "by vs" in str(told) or "by logistic" in str(told)


def test_weights_and_an_infinite_loss():
    _, hot, y = model(4, 500, 2.0)
    four = metrics.decomposition(probs=hot, labels=y, sample_weight=np.full(500, 4.0))
    once = metrics.decomposition(probs=hot, labels=y)
    assert four.nll_interval == pytest.approx(once.nll_interval, abs=1e-3)
    hot[0], y[0] = [1, 0, 0, 0, 0], 3
    found = metrics.decomposition(probs=hot, labels=y)
    assert found.nll == found.nll_miscalibration == np.inf
    assert np.isfinite(found.nll_refinement)
    assert metrics.Decomposition.of(json.loads(json.dumps(found.as_dict(), allow_nan=False))) == found


def test_what_cannot_be_done_is_said():
    p, y = draw(0, n=20)
    for more, complaint in (
        ({"recalibrate": 3}, "recalibrate= must be a function"),
        ({"recalibrate": {}}, "recalibrate= is empty"),
        ({"folds": 1}, "the number of folds must be at least 2"),
        ({"folds": 21}, "21 folds need as many samples, and there are 20"),
        ({"groups": [0, 1] * 10}, "5 folds need as many groups, and there are 2"),
        ({"groups": [0, 1]}, "groups must name the group of each sample"),
        ({"recalibrate": lambda *_: lambda z: z * 3}, "are these logits"),
    ):
        with pytest.raises(BalcalError, match=complaint):
            metrics.decomposition(probs=p, labels=y, **more)
