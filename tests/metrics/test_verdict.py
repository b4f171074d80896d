"""Verdicts of models whose calibration is known."""

import json

import numpy as np
import pytest
import torch
from samples import draw, known

from balcal import metrics
from balcal.core import BalcalError, Predictions
from balcal.metrics import bootstrap as resample
from balcal.metrics.bins import bin_table


def predictions(top):
    """Twelve classes; the first is predicted with the given confidence, the second is the label where that is wrong."""
    rest = (1 - top.conf) / 11
    probs = torch.stack([top.conf, *[rest] * 11], 1)
    return Predictions(probs.log(), (~top.right).long())


def over(conf):
    return (conf - 0.05).clip(0, 1)


def test_a_perfect_model_stays_below_its_own_noise_floor_97_times_in_100():
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(400):
        top = known(rng, 1000)
        floor = resample.noise_floor(top, resamples=400, seed=trial)
        inside += bin_table(top, 15).ece() <= np.quantile(floor, 0.975)
    assert 0.955 <= inside / 400 <= 0.99


@pytest.mark.parametrize(
    ("n", "accuracy", "shape"),
    [
        (1000, lambda c: c, (6, 1)),
        (1000, over, (6, 1)),
        (2000, lambda c: c - 0.01, (6, 1)),
        (2000, lambda c: c / (c + 1.5 * (1 - c)), (2, 1.5)),
        (2000, lambda c: (c + 0.04 * np.sin(6 * c)).clip(0, 1), (2, 1.5)),
    ],
    ids=["perfect", "over by 5 %", "over by 1 %", "too hot", "both ways"],
)
def test_the_interval_of_ece_holds_the_truth_95_times_in_100(n, accuracy, shape):
    """The plain percentile bootstrap, for comparison, never holds it for a perfect model."""
    rng = np.random.default_rng(7)
    conf = 0.1 + 0.9 * rng.beta(*shape, 2_000_000)
    where = np.ceil(conf * 15).astype(int) - 1
    truth = np.abs(np.bincount(where, conf - accuracy(conf), minlength=15)).sum() / len(conf)
    trials = 250
    held = 0
    for trial in range(trials):
        top = known(rng, n, accuracy, shape)
        ece = bin_table(top, 15).ece()
        draws = resample.Resamples([top], {}, resamples=300, seed=trial).ece[0]
        found = resample.around_ece(ece, draws, resample.noise_floor(top, resamples=400, seed=trial))
        assert found.low <= ece
        held += found.low <= truth <= found.high
    assert 0.92 <= held / trials <= 0.985


def test_intervals_of_means_hold_the_truth():
    """Accuracy, gap and NLL of a simulator whose truth is an integral."""
    rng = np.random.default_rng(3)
    conf = 0.1 + 0.9 * rng.beta(2, 1.5, 2_000_000)
    right = over(conf)
    truth = {
        "accuracy": right.mean(),
        "gap": (conf - right).mean(),
        "nll": -(right * np.log(conf) + (1 - right) * np.log((1 - conf) / 11)).mean(),
    }
    held = dict.fromkeys(truth, 0)
    trials = 150
    for trial in range(trials):
        judged = metrics.verdict(predictions(known(rng, 800, over, (2, 1.5))), resamples=300, seed=trial)
        for name, value in truth.items():
            low, high = getattr(judged, f"{name}_interval")
            held[name] += low <= value <= high
    assert all(0.90 <= count / trials <= 0.99 for count in held.values()), held


def test_resampling_groups_is_resampling_samples():
    """Mean and spread of the draws against a bootstrap that resamples the arrays one by one."""
    rng = np.random.default_rng(5)
    top = known(rng, 1500, over, (2, 1.5))
    losses = -np.log(np.where(top.right, top.conf, (1 - top.conf) / 2))
    drawn = resample.Resamples([top], {"nll": losses}, resamples=2000, seed=0)
    slow = {"ece": [], "gap": [], "nll": []}
    gap, where = top.gap.numpy(), np.ceil(top.conf.numpy() * 15).astype(int) - 1
    for _ in range(2000):
        rows = rng.integers(1500, size=1500)
        slow["ece"].append(np.abs(np.bincount(where[rows], gap[rows], 15)).sum() / 1500)
        slow["gap"].append(gap[rows].mean())
        slow["nll"].append(losses[rows].mean())
    for name, fast in (("ece", drawn.ece[0]), ("gap", drawn.gap[0]), ("nll", drawn.means["nll"])):
        assert fast.mean() == pytest.approx(np.mean(slow[name]), abs=5 * np.std(slow[name]) / 40), name
        assert fast.std() == pytest.approx(np.std(slow[name]), rel=0.1), name


def test_the_noise_floor_is_the_score_of_perfect_models():
    rng = np.random.default_rng(6)
    top = known(rng, 700, over)
    where = np.ceil(top.conf.numpy() * 15).astype(int) - 1
    slow = []
    for _ in range(2000):
        gap = top.conf.numpy() - (rng.random(700) < top.conf.numpy())
        slow.append(np.abs(np.bincount(where, gap, 15)).sum() / 700)
    fast = resample.noise_floor(top, resamples=4000)
    assert fast.mean() == pytest.approx(np.mean(slow), rel=0.03)
    assert np.quantile(fast, 0.975) == pytest.approx(np.quantile(slow, 0.975), rel=0.05)


def test_the_sentence_names_what_is_wrong():
    rng = np.random.default_rng(1)
    kinds = {
        "perfect": lambda c: c,
        "over": over,
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
        judged = metrics.verdict(predictions(known(rng, 20_000, accuracy, shape)))
        assert judged.kind == kind, str(judged)
        assert words[kind] in judged.sentence()
        assert words[kind] in str(judged)
    assert "a perfect model scores" in str(judged)


def test_perfect_on_the_whole_but_leaning_is_said_so():
    """ECE cannot tell it from perfect; the mean can."""
    judged = metrics.verdict(predictions(known(np.random.default_rng(2), 4000, lambda c: c - 0.02, (2, 1.5))))
    assert judged.kind == "perfect"
    assert judged.ece_interval[0] == 0
    assert "indistinguishable from perfect, though over-confident by" in judged.sentence()


def test_same_seed_same_verdict_and_arrays_do():
    p, y = draw(0)
    told = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    assert metrics.verdict(told) == metrics.verdict(told)
    assert metrics.verdict(probs=p, labels=y).ece == pytest.approx(metrics.verdict(told).ece)
    assert metrics.Verdict(**metrics.verdict(told).as_dict()).sentence() == metrics.verdict(told).sentence()
    with pytest.raises(BalcalError, match="not both"):
        metrics.verdict(told, labels=y)
    with pytest.raises(BalcalError, match="at least 100 resamples"):
        metrics.verdict(told, resamples=10)


def test_certainty_has_honest_bounds():
    """All right at confidence 1: accuracy may still be lower on other samples; a label of probability 0 is infinite."""
    sure = metrics.verdict(probs=[[1.0, 0.0]] * 50, labels=[0] * 50)
    assert sure.accuracy_interval[0] == pytest.approx(0.929, abs=0.001)
    assert sure.kind == "perfect"
    fooled = metrics.verdict(probs=[[1.0, 0.0]] * 50, labels=[0] * 49 + [1])
    assert fooled.nll == np.inf
    assert fooled.nll_interval == (np.inf, np.inf)
    assert fooled.kind == "over"


def test_paired_differences_hold_the_truth_and_call_a_tie_a_tie():
    """One network, two temperatures: same answers, other confidences."""
    rng = np.random.default_rng(4)

    def pair(n):
        cool = known(rng, n, over, (4, 1), least=0.4)
        odds = (cool.conf / (1 - cool.conf + 1e-12)) ** 1.5
        return cool, type(cool)(odds / (1 + odds), cool.right)

    truth = np.subtract(*(bin_table(top, 15).ece() for top in reversed(pair(2_000_000))))
    held = 0
    for trial in range(120):
        cool, hot = pair(1500)
        found = metrics.compare(predictions(cool), predictions(hot), resamples=200, seed=trial)
        held += found.ece.low <= truth <= found.ece.high
        assert found.accuracy.bounds == (0, 0)
    assert held / 120 >= 0.92
    assert "accuracy the same, NLL worse, ECE worse" in found.sentence()
    same = metrics.compare(predictions(cool), predictions(cool))
    assert same.ece.value == same.nll.value == 0
    assert "ECE the same" in str(same)
    assert metrics.Comparison.of(json.loads(json.dumps(found.as_dict()))) == found
    with pytest.raises(BalcalError, match="not of the same samples"):
        metrics.compare(predictions(cool), predictions(pair(1500)[0]))


def test_one_sample_leaves_all_open():
    """Right at a confidence of 0.9: the accuracy may be anything from 21 % on, and nothing bounds the NLL."""
    judged = metrics.verdict(probs=[[0.9, 0.1]], labels=[0])
    low, high = judged.accuracy_interval
    assert (low, high) == pytest.approx((0.2065, 1), abs=1e-4)
    assert judged.gap_interval == pytest.approx((-0.1, 0.9 - low))
    assert judged.ece_interval == pytest.approx((0, 0.9 - low))
    assert judged.nll_interval[0] < judged.nll < judged.nll_interval[1] == np.inf
    assert judged.brier_interval[0] < judged.brier < 1.5 < judged.brier_interval[1] < 2
    assert "[0.02" in str(judged)
    assert "inf]" in str(judged)
    told = json.loads(json.dumps(judged.as_dict(), allow_nan=False))
    assert told["nll_interval"][1] is None
    assert metrics.Verdict.of(told) == judged


@pytest.mark.parametrize(("n", "right"), [(1, True), (3, True), (200, True), (200, False)])
def test_no_doubt_is_doubted(n, right):
    """Samples that are all alike, and all right or all wrong, say little of what others may be."""
    judged = metrics.verdict(probs=[[0.9, 0.1]] * n, labels=[0 if right else 1] * n)
    for name in ("accuracy", "gap", "ece", "nll", "brier"):
        low, high = getattr(judged, f"{name}_interval")
        assert low <= getattr(judged, name) <= high
        assert high - low > 1 / (n + 10), name


def test_intervals_of_sets_that_are_all_right_hold_the_truth():
    """30 samples at 0.9, and 95 % are right: about one set in five has no mistake, and resampling sees no doubt."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(60):
        wrong = rng.random(30) > 0.95
        judged = metrics.verdict(probs=[[0.9, 0.1]] * 30, labels=wrong.astype(int), resamples=100)
        if not wrong.any():
            held.append(judged.gap_interval[0] <= -0.05 <= judged.gap_interval[1])
            assert judged.ece_interval[0] <= 0.05 <= judged.ece_interval[1]
    assert len(held) > 5
    assert all(held)


def test_an_infinite_nll_survives_json():
    judged = metrics.verdict(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0])
    told = json.loads(json.dumps(judged.as_dict(), allow_nan=False))
    assert told["nll"] is None
    assert metrics.Verdict.of(told) == judged


@pytest.mark.parametrize(
    "bad",
    [
        {"resamples": 0},
        {"resamples": -5},
        {"resamples": 99},
        {"resamples": 1e3},
        {"resamples": 10**12},
        {"seed": -1},
        {"seed": 0.5},
        {"seed": None},
        {"bins": 5000},
    ],
)
def test_settings_of_resampling_are_checked(bad):
    p, y = draw(0)
    told = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    with pytest.raises(BalcalError, match=r"resamples|the seed must be|the number of bins"):
        metrics.verdict(probs=p, labels=y, **bad)
    with pytest.raises(BalcalError, match=r"resamples|the seed must be|the number of bins"):
        metrics.compare(told, told, **bad)


def test_what_cannot_be_compared_is_said():
    p, y = draw(0)
    told = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    with pytest.raises(BalcalError, match="expected predictions, got ndarray: pass arrays by name"):
        metrics.verdict(p)
    with pytest.raises(BalcalError, match="expected predictions, got ndarray"):
        metrics.compare(told, p)
    with pytest.raises(BalcalError, match="names must be those of the two models"):
        metrics.compare(told, told, names=("a",))
    one = Predictions(told.log_probs[:1], told.labels[:1])
    other = Predictions(told.log_probs[:1].flip(1), told.labels[:1])
    with pytest.raises(BalcalError, match="resampling cannot say how sure it is: compare the models on more"):
        metrics.compare(one, other)
    same = Predictions(torch.tensor([[0.9, 0.1]] * 5).log(), torch.zeros(5, dtype=torch.long))
    less = Predictions(torch.tensor([[0.8, 0.2]] * 5).log(), same.labels)
    with pytest.raises(BalcalError, match="the difference is the same in all of 5 samples"):
        metrics.compare(same, less)
    for wrong in (None, [], {}, 3, {"names": 3}, {"samples": 3}):
        with pytest.raises(BalcalError, match="this is not a comparison"):
            metrics.Comparison.of(wrong)
