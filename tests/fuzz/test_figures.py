"""Metrics, verdicts, comparisons and their settings, whatever is passed."""

import json
import math

import numpy as np
import torch
from fuzzing import answers, distributions, law, mostly, numbers, odd, outcome, softmax, spoilt
from hypothesis import strategies as st

from balcal import metrics
from balcal.core import Predictions
from balcal.metrics.audit import audit
from balcal.registry import table

OF_SCORES = ("auroc", "fpr95", "aupr_in", "aupr_out")
OF_VOTES = ("soft_nll", "soft_kl")
OF_PREDICTIONS = [name for name in table("metrics") if name not in OF_SCORES + OF_VOTES]
BINNED = [
    "binary_ece",
    "ece",
    "mce",
    "rmsce",
    "debiased_ece",
    "over_confidence",
    "under_confidence",
    "adaptive_ece",
    "classwise_ece",
]
MOST = {"nll": math.inf, "entropy": math.log(6) + 1e-4, "brier": 2 + 1e-4} | dict.fromkeys(OF_VOTES, math.inf)


def by_hand(p, y, bins=15):
    """The definitions, one sample at a time."""
    n, conf, right = len(y), p.max(1), p.argmax(1) == y
    sums = np.zeros(bins)
    for c, r in zip(conf, right, strict=True):
        edges = [k for k in range(bins) if k / bins < c <= (k + 1) / bins]
        sums[edges[0] if edges else 0] += c - r
    with np.errstate(divide="ignore"):
        return {
            "accuracy": right.mean(),
            "mean_confidence": conf.mean(),
            "ece": np.abs(sums).sum() / n,
            "nll": -np.log(p[np.arange(n), y]).mean(),
            "brier": ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean(),
            "entropy": -np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(1).mean(),
        }


@law(both=distributions(), factor=st.sampled_from([1.0, 1 + 1e-7, 1.004, 0.995]))
def test_valid_predictions_get_the_value_of_the_definition(both, factor):
    p, y = both
    expected = by_hand(p, y)
    found = outcome(metrics.summary, probs=p * factor, labels=y)
    for name, value in found.items():
        assert -1e-12 <= value <= MOST.get(name, 1 + 1e-5), name
    at_edge = np.abs(p.max(1) * 15 - np.round(p.max(1) * 15)).min() < 1e-6
    for name, value in expected.items():
        if name != "ece" or not at_edge:
            assert math.isclose(found[name], value, abs_tol=2e-6, rel_tol=2e-6), (name, found[name], value)
    assert found["over_confidence"] + found["under_confidence"] >= found["ece"] - 1e-9


@law(
    examples=150,
    name=st.sampled_from(OF_PREDICTIONS),
    both=distributions(),
    data=st.data(),
    logs=st.booleans(),
)
def test_whatever_is_passed_for_predictions(name, both, data, logs):
    p, y = both
    with np.errstate(divide="ignore"):
        table = np.log(p) if logs else p
    given = data.draw(mostly(spoilt(table), odd))
    labels = data.draw(mostly(answers(y, p.shape[1]), odd))
    more = {"bins": data.draw(mostly(st.integers(1, 40), numbers))} if name in BINNED else {}
    found = outcome(getattr(metrics, name), **{"log_probs" if logs else "probs": given}, labels=labels, **more)
    if found is not None and name != "spiegelhalter":
        assert -1e-12 <= found <= MOST.get(name, 1 + 1e-5)


@law(both=distributions(), votes=distributions(), data=st.data(), name=st.sampled_from(OF_VOTES))
def test_whatever_is_passed_for_votes(both, votes, data, name):
    p, _ = both
    q = votes[0] if votes[0].shape == p.shape else softmax(p)
    found = outcome(getattr(metrics, name), probs=data.draw(spoilt(p)), soft_labels=data.draw(mostly(spoilt(q), odd)))
    assert found is None or found >= 0


@law(
    id_scores=st.lists(st.floats(), max_size=12),
    ood_scores=st.lists(st.floats(-2, 2), max_size=12),
    what=mostly(st.none(), odd),
    tpr=mostly(st.floats(0.01, 1), numbers),
)
def test_whatever_is_passed_for_scores(id_scores, ood_scores, what, tpr):
    id_scores = id_scores if what is None else what
    for name in OF_SCORES:
        more = {"tpr": tpr} if name == "fpr95" else {}
        found = outcome(getattr(metrics, name), scores_in=id_scores, scores_out=ood_scores, **more)
        assert found is None or 0 <= found <= 1
        if found is not None and name == "auroc" and what is None:
            pairs = [(a > b) + (a == b) / 2 for a in id_scores for b in ood_scores]
            assert math.isclose(found, sum(pairs) / len(pairs), abs_tol=1e-12)


@law(
    both=distributions(),
    data=st.data(),
    bins=mostly(st.integers(1, 40), numbers),
    resamples=mostly(st.just(100), numbers),
    seed=mostly(st.integers(0, 2**64), numbers),
)
def test_a_verdict_is_honest_and_valid_json(both, data, bins, resamples, seed):
    p, y = both
    resamples = resamples if not isinstance(resamples, int) or resamples < 1000 else 1000
    given, labels = data.draw(spoilt(p)), data.draw(answers(y, p.shape[1]))
    more = {"details": data.draw(st.booleans())}
    verdict = outcome(metrics.verdict, probs=given, labels=labels, bins=bins, resamples=resamples, seed=seed, **more)
    if verdict is None:
        return
    fields = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert metrics.Verdict.of(fields) == verdict
    assert "nan" not in str(verdict)
    for name in ("accuracy", "gap", "ece", "nll", "brier"):
        low, high = getattr(verdict, f"{name}_interval")
        assert low <= high
    assert verdict.accuracy_interval[0] < verdict.accuracy_interval[1], "there is always some doubt"
    assert 0 <= verdict.floor_mean <= 1
    assert verdict.samples > 1
    assert verdict.kind != "perfect", "so few samples cannot rule out a gap of 3 points"


@law(
    both=distributions(most=25, classes=3), others=distributions(least=25, most=25, classes=3), bins=st.integers(1, 30)
)
def test_a_comparison_has_two_sides(both, others, bins):
    (p, y), q = both, others[0]
    first = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    second = Predictions(torch.from_numpy(q[: len(y)]).log(), first.labels)
    there, back = (
        outcome(metrics.compare, *pair, bins=bins, resamples=100) for pair in ((first, second), (second, first))
    )
    assert (there is None) == (back is None)
    if there is None:
        return
    for name in ("accuracy", "nll", "brier", "ece"):
        one, two = getattr(there, name), getattr(back, name)
        assert math.isclose(one.value, -two.value, abs_tol=1e-9)
        assert one.low <= one.high
    fields = json.loads(json.dumps(there.as_dict(), allow_nan=False))
    assert metrics.Comparison.of(fields) == there


@law(both=distributions(), data=st.data())
def test_batches_say_what_the_whole_says(both, data):
    p, y = both
    cut = data.draw(st.integers(0, len(y)))
    for kind in (metrics.BinSums, metrics.ScoreSums, metrics.SmoothSums, metrics.Ranked):
        meter, whole = kind(), kind()
        whole.update(probs=p, labels=y)
        for part in (slice(0, cut), slice(cut, None)):
            outcome(meter.update, probs=p[part], labels=y[part])
        outcome(meter.update, probs=data.draw(odd), labels=y + 0.5)  # refused, and nothing of it is counted
        expected = whole.compute()
        for name, value in meter.compute().items():
            assert math.isclose(value, expected[name], abs_tol=1e-7), name


@law(both=distributions(), data=st.data())
def test_an_audit_is_finite(both, data):
    p, y = both
    found = outcome(audit, probs=data.draw(spoilt(p)), labels=data.draw(answers(y, p.shape[1])))
    if found is not None:
        assert all(0 <= each.value <= 1 + 1e-5 for each in found.findings)
        json.dumps(found.as_dict(), allow_nan=False)
