"""A weight of 2 counts as two samples; resampling draws samples, not copies."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw, known, predictions_of

from balcal import metrics
from balcal.core import BalcalError, Predictions
from balcal.metrics.audit import audit
from balcal.registry import table

DETECTION = ("auroc", "fpr95", "aupr_in", "aupr_out")
SOFT = ("soft_nll", "soft_kl")
TESTS = ("spiegelhalter", "spiegelhalter_p", "ks_p", "kuiper_p")
"""A test counts observations, and copies are none: see test_significance.py."""
SEEDS = st.integers(0, 10**6)
MAKERS = st.sampled_from([draw, awkward])


def weights_of(seed, n, most=4):
    """Whole numbers from 0; a few samples are left out."""
    return np.random.default_rng(seed + 1).integers(0, most, n)


def of_predictions(name):
    return name not in DETECTION + SOFT + TESTS


@pytest.mark.parametrize("name", [name for name in table("metrics") if of_predictions(name)])
@given(SEEDS, MAKERS, st.sampled_from([7, 60]))
def test_weights_are_numbers_of_samples(name, seed, make, n):
    p, y = make(seed, n=n, k=2 if name == "binary_ece" else 4)
    w = weights_of(seed, n)
    w[0], y[0] = 1, p[0].argmax()  # one right and one wrong answer have weight
    w[1], y[1] = 2, p[1].argmin()
    measure = getattr(metrics, name)
    given_as = {"probs": p, "labels": y, "sample_weight": w.tolist() if seed % 2 else torch.from_numpy(w)}
    assert measure(**given_as) == pytest.approx(measure(probs=p.repeat(w, 0), labels=y.repeat(w)), abs=1e-12, rel=1e-12)


@given(SEEDS, MAKERS)
def test_all_at_once_and_batch_by_batch(seed, make):
    p, y = make(seed, n=120)
    w = weights_of(seed, 120)
    w[:40] *= seed % 3 > 0  # a batch without weight
    w[-1] = 1
    whole = metrics.summary(probs=p.repeat(w, 0), labels=y.repeat(w))
    assert metrics.summary(probs=p, labels=y, sample_weight=w) == pytest.approx(whole, abs=1e-12)
    top = metrics.top_label(log_probs=np.log(np.maximum(p, 1e-300)), labels=y, sample_weight=w)
    assert top["ece"] == pytest.approx(whole["ece"], abs=1e-9)
    found = {}
    for make_meter in (metrics.BinSums, lambda: metrics.ClassBinSums(4), metrics.ScoreSums, metrics.SmoothSums):
        meters = [make_meter(), make_meter()]
        for start in range(0, 120, 40):
            part = slice(start, start + 40)
            meters[start % 80 > 0].update(probs=p[part], labels=y[part], sample_weight=w[part])
        meters[0].merge(meters[1])
        found |= meters[0].compute()
    ranked, rest = metrics.Ranked(), metrics.Ranked()
    ranked.update(probs=p[:60], labels=y[:60], sample_weight=w[:60])
    rest.update(probs=p[60:].repeat(w[60:], 0), labels=y[60:].repeat(w[60:]))
    ranked.merge(rest)
    found |= ranked.compute()
    for name, value in found.items():
        assert value == pytest.approx(whole[name], abs=1e-12), name


@given(SEEDS, st.sampled_from([7, 50]), st.sampled_from([0.5, 0.95, 1.0]))
def test_scores_and_votes(seed, n, tpr):
    rng = np.random.default_rng(seed)
    inside, outside = rng.integers(0, 9, n) / 4, rng.integers(-4, 5, n) / 4
    w, v = weights_of(seed, n), weights_of(seed + 1, n)
    w[0], v[0] = 2, 1
    for name in DETECTION:
        more = {"tpr": tpr} if name == "fpr95" else {}
        found = getattr(metrics, name)(
            scores_in=inside, scores_out=outside, sample_weight_in=w, sample_weight_out=v, **more
        )
        expected = getattr(metrics, name)(scores_in=inside.repeat(w), scores_out=outside.repeat(v), **more)
        assert found == pytest.approx(expected, abs=1e-12), name
    meter = metrics.DetectionScores()
    meter.update(scores_in=inside, scores_out=outside, sample_weight_out=v)
    assert meter.compute()["aupr_in"] == pytest.approx(
        metrics.aupr_in(scores_in=inside, scores_out=outside.repeat(v)), abs=1e-12
    )
    p, _ = draw(seed, n=n)
    q, _ = awkward(seed, n=n)
    for name in SOFT:
        found = getattr(metrics, name)(probs=p, soft_labels=q, sample_weight=w)
        assert found == pytest.approx(
            getattr(metrics, name)(probs=p.repeat(w, 0), soft_labels=q.repeat(w, 0)), abs=1e-12
        )


@given(SEEDS, MAKERS)
def test_the_weighted_curve_lies_on_that_of_the_copies(seed, make):
    p, y = make(seed, n=50)
    w = weights_of(seed, 50) + 1
    coverage, risk = metrics.risk_coverage(probs=p, labels=y, sample_weight=w)
    many = metrics.risk_coverage(probs=p.repeat(w, 0), labels=y.repeat(w))
    assert len(coverage) == 50
    at = np.round(coverage * w.sum()).astype(int) - 1
    assert coverage == pytest.approx(many[0][at], abs=1e-12)
    assert risk == pytest.approx(many[1][at], abs=1e-12)


def test_figures_of_the_verdict_count_copies_but_its_doubts_do_not():
    """Four copies of each sample are no more evidence than one."""
    p, y = draw(1, n=500)
    four = metrics.verdict(probs=p, labels=y, sample_weight=np.full(500, 4.0))
    once, copied = metrics.verdict(probs=p, labels=y), metrics.verdict(probs=p.repeat(4, 0), labels=y.repeat(4))
    assert four.effective_samples == pytest.approx(500)
    assert four.debiased_ece == pytest.approx(once.debiased_ece, abs=1e-12)
    for name in ("accuracy", "gap", "ece", "nll", "brier"):
        low, high = getattr(four, f"{name}_interval")
        assert (low, high) == pytest.approx(getattr(once, f"{name}_interval"), abs=0.01), name
        assert high - low > 1.5 * np.diff(getattr(copied, f"{name}_interval"))[0], name
    assert four.floor_mean == pytest.approx(once.floor_mean, rel=0.05)
    w = weights_of(0, 500)
    some = metrics.verdict(probs=p, labels=y, sample_weight=w)
    many = metrics.verdict(probs=p.repeat(w, 0), labels=y.repeat(w))
    for name in ("accuracy", "mean_confidence", "gap", "ece", "over", "under", "nll", "brier"):
        assert getattr(some, name) == pytest.approx(getattr(many, name), abs=1e-12), name
    assert some.samples == (w > 0).sum()
    assert some.effective_samples == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert "weighted, worth" in str(some)
    assert metrics.Verdict.of(some.as_dict()) == some


def test_weighted_intervals_hold_the_truth_and_the_floor_is_that_of_weighted_models():
    """Weights from 0.1 to 10. The gap of the weighted population is 3 points by construction."""
    rng, held, floors, means = np.random.default_rng(0), 0, [], []
    for trial in range(150):
        top = known(rng, 600, lambda conf: conf - 0.03, (3, 1.5))
        w = np.exp(rng.normal(size=600).clip(-2.3, 2.3))
        verdict = metrics.verdict(predictions_of(top), sample_weight=w, resamples=200, seed=trial)
        held += verdict.gap_interval[0] <= 0.03 <= verdict.gap_interval[1]
        perfect = known(rng, 600, shape=(3, 1.5))
        floors.append(verdict.floor_mean)
        means.append(metrics.ece(**_named(predictions_of(perfect)), sample_weight=w))
    assert 0.90 <= held / 150 <= 0.99
    assert np.mean(floors) == pytest.approx(np.mean(means), rel=0.05)


def _named(predictions):
    return {"log_probs": predictions.log_probs, "labels": predictions.labels}


def test_two_models_are_compared_with_weights():
    p, y = draw(2, n=400)
    labels = torch.from_numpy(y)
    first = Predictions(torch.from_numpy(p).log(), labels)
    second = Predictions((first.log_probs / 2).log_softmax(1), labels)
    w = weights_of(3, 400)
    found = metrics.compare(first, second, sample_weight=w)
    copies = metrics.compare(
        *(
            Predictions(
                each.log_probs.repeat_interleave(torch.from_numpy(w), 0), labels.repeat_interleave(torch.from_numpy(w))
            )
            for each in (first, second)
        )
    )
    for name in ("accuracy", "nll", "brier", "ece"):
        one, many = getattr(found, name), getattr(copies, name)
        assert one.value == pytest.approx(many.value, abs=1e-12), name
        if name != "accuracy":
            assert one.high - one.low > many.high - many.low
    assert found.samples == (w > 0).sum()


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ([1.0], "one number for each of 3 samples"),
        ([[1.0, 1, 1]], "one number for each of 3 samples"),
        ([1.0, -1, 1], "finite and not negative"),
        ([1.0, np.nan, 1], "finite and not negative"),
        ([1.0, np.inf, 1], "finite and not negative"),
        ([0.0, 0, 0], "is 0 for every sample"),
        ([1e200, 1, 1], "scale it"),
        (["a", "b", "c"], "expected numbers in sample_weight"),
    ],
)
def test_weights_are_checked(weights, complaint):
    p, y = draw(0, n=3)
    for measure in (metrics.ece, metrics.nll, metrics.summary, metrics.verdict, metrics.aurc):
        with pytest.raises(BalcalError, match=complaint):
            measure(probs=p, labels=y, sample_weight=weights)
    with pytest.raises(
        BalcalError,
        match=complaint.replace("sample_weight", "sample_weight_in").replace("for each of 3", "for each of 3"),
    ):
        metrics.auroc(scores_in=[1.0, 2, 3], scores_out=[1.0], sample_weight_in=weights)


def test_what_has_no_weighted_version_says_so():
    p, y = draw(0, n=3)
    with pytest.raises(BalcalError, match="audit has no weighted version"):
        audit(probs=p, labels=y, sample_weight=[1, 1, 1])
