"""Verdicts of models whose calibration is known."""

import json

import numpy as np
import pytest
import torch
from samples import draw, known, over_confident, predictions_of

from balcal import metrics
from balcal.core import BalcalError, Predictions


def test_intervals_of_means_hold_the_truth():
    """Accuracy, gap and NLL of a simulator whose truth is an integral."""
    rng = np.random.default_rng(3)
    conf = 0.1 + 0.9 * rng.beta(2, 1.5, 2_000_000)
    right = over_confident(conf)
    truth = {
        "accuracy": right.mean(),
        "gap": (conf - right).mean(),
        "nll": -(right * np.log(conf) + (1 - right) * np.log((1 - conf) / 11)).mean(),
    }
    held = dict.fromkeys(truth, 0)
    trials = 150
    for trial in range(trials):
        verdict = metrics.verdict(predictions_of(known(rng, 800, over_confident, (2, 1.5))), resamples=300, seed=trial)
        for name, value in truth.items():
            low, high = getattr(verdict, f"{name}_interval")
            held[name] += low <= value <= high
    assert all(0.90 <= count / trials <= 0.99 for count in held.values()), held


def test_the_sentence_names_what_is_wrong():
    rng = np.random.default_rng(1)
    kinds = {
        "perfect": lambda c: c,
        "over": over_confident,
        "under": lambda c: (c + 0.06 * (c < 0.94)).clip(0, 1),
        "mixed": lambda c: np.where(c > 0.6, c - 0.12, (c + 0.12).clip(0, 1)),
    }
    words = {
        "perfect": "indistinguishable from perfect",
        "over": "over-confident by 5.",
        "under": "under-confident by",
        "mixed": "over-confident in some bins",
    }
    for kind, accuracy in kinds.items():
        shape = (3, 3) if kind == "mixed" else (6, 1)
        verdict = metrics.verdict(predictions_of(known(rng, 20_000, accuracy, shape)))
        assert verdict.kind == kind, str(verdict)
        assert words[kind] in verdict.sentence()
        assert words[kind] in str(verdict)
    assert "a perfect model scores" in str(verdict)


def test_perfect_on_the_whole_but_leaning_is_said_so():
    """ECE cannot tell it from perfect; the mean can."""
    predictions = predictions_of(known(np.random.default_rng(2), 4000, lambda c: c - 0.02, (2, 1.5)))
    verdict = metrics.verdict(predictions, matters=0.04)
    assert verdict.kind == "perfect"
    assert verdict.ece_interval[0] == 0
    assert "indistinguishable from perfect, though over-confident by" in verdict.sentence()
    strict = metrics.verdict(predictions, matters=0.01).sentence()
    assert "could hide, though over-confident by" in strict


def test_same_seed_same_verdict_and_arrays_do():
    p, y = draw(0)
    predictions = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    verdict = metrics.verdict(predictions)
    assert metrics.verdict(predictions) == verdict
    assert metrics.verdict(probs=p, labels=y).ece == pytest.approx(verdict.ece)
    assert metrics.Verdict(**verdict.as_dict()).sentence() == verdict.sentence()
    with pytest.raises(BalcalError, match="not both"):
        metrics.verdict(predictions, labels=y)
    with pytest.raises(BalcalError, match="at least 100 resamples"):
        metrics.verdict(predictions, resamples=10)


def test_certainty_has_honest_bounds():
    """All right at confidence 1: accuracy may still be lower on other samples; a label of probability 0 is infinite."""
    sure = metrics.verdict(probs=[[1.0, 0.0]] * 50, labels=[0] * 50)
    assert sure.accuracy_interval[0] == pytest.approx(0.929, abs=0.001)
    assert sure.kind == "few"
    assert sure.could_hide == pytest.approx(0.071, abs=0.001)
    assert "a gap of up to 7.1" in sure.sentence()
    fooled = metrics.verdict(probs=[[1.0, 0.0]] * 50, labels=[0] * 49 + [1])
    assert fooled.nll == np.inf
    assert fooled.nll_interval == (np.inf, np.inf)
    assert fooled.kind == "over"


def test_one_sample_is_refused():
    with pytest.raises(BalcalError, match="one sample says nothing about calibration"):
        metrics.verdict(probs=[[0.9, 0.1]], labels=[0])
    with pytest.raises(BalcalError, match="one sample says nothing"):
        metrics.verdict(probs=[[0.9, 0.1]] * 3, labels=[0, 0, 0], sample_weight=[0, 5, 0])


def test_two_samples_leave_all_open():
    """Right at a confidence of 0.9: the accuracy may be anything from 34 % on, and nothing bounds the NLL."""
    verdict = metrics.verdict(probs=[[0.9, 0.1]] * 2, labels=[0, 0])
    low, high = verdict.accuracy_interval
    assert (low, high) == pytest.approx((0.3424, 1), abs=1e-4)
    assert verdict.gap_interval == pytest.approx((-0.1, 0.9 - low))
    assert verdict.ece_interval == pytest.approx((0, 0.9 - low))
    assert verdict.nll_interval[0] < verdict.nll < verdict.nll_interval[1] == np.inf
    assert verdict.brier_interval[0] < verdict.brier < 1.3 < verdict.brier_interval[1] < 2
    assert "inf]" in str(verdict)
    fields = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert fields["nll_interval"][1] is None
    assert metrics.Verdict.of(fields) == verdict


@pytest.mark.parametrize("shape", [(6, 1), (2, 1.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_ignorance_is_not_praised(shape, sign):
    """Fifty samples and a true error of three points: too few in at least 80 % of draws."""
    rng, few = np.random.default_rng(4), 0
    for trial in range(60):
        top = known(rng, 50, lambda conf: (conf - 0.03 * sign).clip(0, 1), shape)
        verdict = metrics.verdict(predictions_of(top), resamples=200, seed=trial)
        few += verdict.kind == "few"
        if verdict.kind == "few":
            assert verdict.sentence().startswith("too few samples to tell: a gap of up to ")
            assert verdict.could_hide > 0.03
            assert verdict.samples_needed > 50
            assert f"about {verdict.samples_needed:,} would do" in str(verdict)
    assert few / 60 >= 0.8


@pytest.mark.parametrize("shape", [(6, 1), (2, 1.5), (30, 1)])
def test_the_number_that_would_do_does(shape):
    """Perfect models: 100 samples are too few; with as many as the verdict asks for, it can tell; so with 10,000."""
    rng = np.random.default_rng(5)
    asked = [metrics.verdict(predictions_of(known(rng, 100, shape=shape)), resamples=200).samples_needed]
    assert asked[0] is not None
    for n in (asked[0], 10_000):
        kinds = [metrics.verdict(predictions_of(known(rng, n, shape=shape)), resamples=200).kind for _ in range(25)]
        assert kinds.count("perfect") >= 20, (n, kinds)


@pytest.mark.parametrize(("n", "right"), [(3, True), (200, True), (200, False)])
def test_no_doubt_is_doubted(n, right):
    """Samples that are all alike, and all right or all wrong, say little of what others may be."""
    verdict = metrics.verdict(probs=[[0.9, 0.1]] * n, labels=[0 if right else 1] * n)
    for name in ("accuracy", "gap", "ece", "nll", "brier"):
        low, high = getattr(verdict, f"{name}_interval")
        assert low <= getattr(verdict, name) <= high
        assert high - low > 1 / (n + 10), name


def test_intervals_of_sets_that_are_all_right_hold_the_truth():
    """30 samples at 0.9, and 95 % are right: about one set in five has no mistake, and resampling sees no doubt."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        wrong = rng.random(30) > 0.95
        verdict = metrics.verdict(probs=[[0.9, 0.1]] * 30, labels=wrong.astype(int), resamples=100)
        if not wrong.any():
            held.append(verdict.gap_interval[0] <= -0.05 <= verdict.gap_interval[1])
            assert verdict.ece_interval[0] <= 0.05 <= verdict.ece_interval[1]
    assert len(held) > 5
    assert all(held)


def test_an_infinite_nll_survives_json():
    verdict = metrics.verdict(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0])
    fields = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    assert fields["nll"] is None
    assert metrics.Verdict.of(fields) == verdict


def test_arrays_are_passed_by_name():
    p, _ = draw(0)
    with pytest.raises(BalcalError, match="expected predictions, got ndarray: pass arrays by name"):
        metrics.verdict(p)
    with pytest.raises(BalcalError, match=r"pass arrays by name: verdict\(probs=..., labels=...\)"):
        metrics.verdict(p, p)
    for matters in (0, 1, -1, np.nan, "3"):
        with pytest.raises(BalcalError, match="the gap that matters must"):
            metrics.verdict(probs=p, labels=p.argmax(1), matters=matters)
