"""Resampling against slow loops; the noise floor and the interval of ECE against simulated models; joint draws."""

import numpy as np
import pytest
import torch
from samples import draw, known, over_confident

from balcal import metrics
from balcal.core import BalcalError, Predictions
from balcal.metrics import bootstrap
from balcal.metrics.bins import bin_table
from balcal.metrics.bootstrap import eces, joint_draws
from balcal.metrics.inputs import TopLabels


def test_a_perfect_model_stays_below_its_own_noise_floor_97_times_in_100():
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(400):
        top = known(rng, 1000)
        floor = bootstrap.noise_floor(top, resamples=400, seed=trial)
        inside += bin_table(top, 15).ece() <= np.quantile(floor, 0.975)
    assert 0.955 <= inside / 400 <= 0.99


@pytest.mark.parametrize(
    ("n", "accuracy", "shape"),
    [
        (1000, lambda c: c, (6, 1)),
        (1000, over_confident, (6, 1)),
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
        draws = bootstrap.Resamples([top], {}, resamples=300, seed=trial).ece[0]
        found = bootstrap.ece_interval(ece, draws, bootstrap.noise_floor(top, resamples=400, seed=trial))
        assert found.low <= ece
        held += found.low <= truth <= found.high
    assert 0.92 <= held / trials <= 0.985


def test_resampling_groups_is_resampling_samples():
    """Mean and spread of the draws against a bootstrap that resamples the arrays one by one."""
    rng = np.random.default_rng(5)
    top = known(rng, 1500, over_confident, (2, 1.5))
    losses = -np.log(np.where(top.right, top.conf, (1 - top.conf) / 2))
    drawn = bootstrap.Resamples([top], {"nll": losses}, resamples=2000, seed=0)
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
    top = known(rng, 700, over_confident)
    where = np.ceil(top.conf.numpy() * 15).astype(int) - 1
    slow = []
    for _ in range(2000):
        gap = top.conf.numpy() - (rng.random(700) < top.conf.numpy())
        slow.append(np.abs(np.bincount(where, gap, 15)).sum() / 700)
    fast = bootstrap.noise_floor(top, resamples=4000)
    assert fast.mean() == pytest.approx(np.mean(slow), rel=0.03)
    assert np.quantile(fast, 0.975) == pytest.approx(np.quantile(slow, 0.975), rel=0.05)


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
    predictions = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    with pytest.raises(BalcalError, match=r"resamples|the seed must be|the number of bins"):
        metrics.verdict(predictions, **bad)
    with pytest.raises(BalcalError, match=r"resamples|the seed must be|the number of bins"):
        metrics.compare(predictions, predictions, **bad)


def versions(n, count, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.random(n)
    return [
        TopLabels(torch.from_numpy(np.clip(0.3 + 0.7 * shared + 0.02 * number, 0, 1)), torch.from_numpy(shared > 0.4))
        for number in range(count)
    ]


def by_hand(conf, right, bins=15):
    total = 0.0
    for number in range(bins):
        inside = [i for i in range(len(conf)) if number / bins < conf[i] <= (number + 1) / bins]
        total += abs(sum(conf[i] - right[i] for i in inside)) / len(conf)
    return total


def test_each_resample_takes_the_same_images_of_every_version():
    tops = versions(40, 3)
    draws, accuracy = joint_draws(tops, resamples=5, seed=4)
    counts = np.random.default_rng(4).multinomial(40, np.full(40, 1 / 40), size=5)
    for row, count in enumerate(counts):
        chosen = np.repeat(np.arange(40), count)
        for column, top in enumerate(tops):
            conf, right = top.conf.numpy()[chosen], top.right.numpy()[chosen]
            assert draws[row, column] == pytest.approx(by_hand(conf, right.astype(float)))
            assert accuracy[row, column] == pytest.approx(right.mean())
    assert (accuracy[:, 0] == accuracy[:, 2]).all()  # the versions are right on the same images


def test_values_are_those_of_each_version():
    tops = versions(50, 2)
    assert eces(tops) == pytest.approx([by_hand(t.conf.numpy(), t.right.numpy().astype(float)) for t in tops])


def test_versions_of_different_samples_are_refused():
    with pytest.raises(BalcalError, match="not versions of the same samples"):
        joint_draws([*versions(10, 1), *versions(11, 1)])
