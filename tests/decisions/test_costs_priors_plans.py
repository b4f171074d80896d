"""Costs, class frequencies, sample sizes and groups: against sums by hand and known truths."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import balcal
from balcal import decisions
from balcal.core import BalcalError
from balcal.metrics.exact import coins_p_value
from balcal.metrics.groups import group_verdict
from balcal.metrics.inputs import read

COSTS = [[0.0, 1.0, 0.3], [10.0, 0.0, 0.3]]


def test_costs_by_hand():
    p = np.array([[0.99, 0.01], [0.95, 0.05], [0.9, 0.1], [0.4, 0.6], [0.6, 0.4]])
    y = [0, 1, 0, 1, 1]
    found = decisions.decide(probs=p, costs=COSTS, labels=y)
    expected = [min(range(3), key=lambda a: sum(p[i, k] * COSTS[k][a] for k in range(2))) for i in range(5)]
    assert found.actions.tolist() == expected == [0, 2, 2, 2, 2]
    assert found.realised_cost == pytest.approx(np.mean([COSTS[k][a] for k, a in zip(y, expected, strict=True)]))
    assert found.abstained == 0.8
    same = decisions.decide(probs=p, costs=np.array(COSTS)[:, :2], abstain=0.3)
    assert np.array_equal(same.actions, found.actions)
    assert "abstains in 80.0%" in str(found)


def test_calibration_saves_costs():
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, 20_000)
    y = (rng.random(20_000) < p).astype(int)
    sharp = p**4 / (p**4 + (1 - p) ** 4)
    good, bad = (np.stack([1 - x, x], axis=1) for x in (p, sharp))
    found = decisions.decide(probs=good, costs=COSTS, labels=y, before=bad)
    worse = decisions.decide(probs=bad, costs=COSTS, labels=y)
    assert found.saved == pytest.approx(worse.realised_cost - found.realised_cost)
    assert found.saved_interval[0] > 0
    low, high = found.realised_interval
    assert low < found.expected_cost < high
    assert "the probabilities misjudge it" in str(worse)
    sure = decisions.decide(probs=[[1.0, 0.0]] * 50, costs=[[0, 1], [1, 0]], labels=[0] * 50)
    assert sure.realised_interval[1] == pytest.approx(1 - 0.025 ** (1 / 50)), "50 samples without cost show little"


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_known_frequencies_are_bayes_rule(seed, classes):
    rng = np.random.default_rng(seed)
    like, old, new = rng.random((20, classes)) + 0.01, rng.dirichlet(np.ones(classes)), rng.dirichlet(np.ones(classes))
    before, after = (like * prior / (like @ prior)[:, None] for prior in (old, new))
    found = decisions.adjust_priors(probs=before, train_priors=old * 7, new_priors=new)
    np.testing.assert_allclose(found.probs, after, rtol=1e-9)
    back = decisions.adjust_priors(log_probs=np.log(found.probs), train_priors=new, new_priors=old)
    np.testing.assert_allclose(back.probs, before, rtol=1e-8)


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_unknown_frequencies_are_found(method):
    rng, centres, inside = np.random.default_rng(1), 2.5 * np.eye(4), []

    def posterior(labels):
        x = centres[labels] + rng.standard_normal((len(labels), 4))
        like = np.exp(x @ centres.T - 3.125)
        return like / like.sum(1, keepdims=True)

    for _ in range(60 if method == "em" else 20):
        new = rng.dirichlet(np.full(4, 2.0))
        probs, y = posterior(rng.choice(4, 1500, p=new)), rng.integers(0, 4, 1500)
        held = {"held_out_probs": posterior(y), "held_out_labels": y} if method == "bbse" else {}
        found = decisions.adjust_priors(probs=probs, train_priors=np.ones(4), method=method, **held)
        inside.append((found.interval[:, 0] <= new) & (new <= found.interval[:, 1]))
        assert found.identifiable
    assert np.mean(inside) > 0.9
    assert "class frequencies estimated by" in str(found)


def test_frequencies_that_cannot_be_told_are_said_so():
    with pytest.warns(UserWarning, match="cannot be told from these predictions"):
        found = decisions.adjust_priors(probs=np.full((500, 2), 0.5), train_priors=[1, 1])
    assert not found.identifiable


def test_plans_are_enough_and_not_too_many():
    plan = decisions.plan_samples(accuracy=0.95, expected_accuracy=0.97, coverage=0.5, power=0.8)
    k, rng = plan.samples // 2, np.random.default_rng(2)
    hits = next(h for h in range(k + 1) if stats.binom.sf(h - 1, k, 0.95) <= 0.05)
    assert stats.binom.sf(hits - 1, k, 0.97) >= 0.8
    assert decisions.plan_samples(accuracy=0.99, coverage=0.5).samples == 598
    sets = decisions.plan_samples(alpha=0.1, tolerance=0.03)
    rank = int(np.ceil((sets.samples + 1) * 0.9))
    law = stats.beta(rank, sets.samples + 1 - rank)
    assert law.cdf(0.93) - law.cdf(0.87) >= 0.95
    conf = 0.5 + 0.5 * rng.beta(3, 1, 500)
    wrong = (rng.random(500) > conf - 0.1).astype(int)
    ece = decisions.plan_samples(ece_width=0.04, probs=np.stack([conf, 1 - conf], axis=1), labels=wrong)
    conf = 0.5 + 0.5 * rng.beta(3, 1, ece.samples)
    right = rng.random(ece.samples) < conf - 0.1
    low, high = balcal.verdict(probs=np.stack([conf, 1 - conf], axis=1), labels=(~right).astype(int)).ece_interval
    assert 0.033 < high - low < 0.047
    assert str(ece).startswith(f"{ece.samples:,} held-out samples for an ECE with an interval 4 points wide")


def grouped(rng, n, gap=0.0):
    """Confidences and outcomes of four groups, the last one over-confident by `gap`."""
    conf, group = 0.55 + 0.4 * rng.random(n), rng.integers(0, 4, n)
    right = rng.random(n) < conf - gap * (group == 3)
    return {"probs": np.stack([conf, 1 - conf], axis=1), "labels": (~right).astype(int)}, group


def test_group_tests_hold_their_level_and_find_a_gap():
    rng = np.random.default_rng(3)
    blamed, draws = 0, 120
    for _ in range(draws):
        data, group = grouped(rng, 1200)
        blamed += bool(group_verdict(read(data["probs"], None, data["labels"]).top(), group).failing)
    assert blamed / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)
    data, group = grouped(rng, 8000, 0.1)
    found = balcal.verdict(**data, groups=np.array(["a", "b", "c", "d"])[group])
    assert found.groups.failing == [found.groups.worst] == ["d"]
    assert found.groups.groups["d"].detectable < 0.1
    assert "over-confident by" in str(found)
    assert found.as_dict()["groups"]["d"]["samples"] == (group == 3).sum()
    few = balcal.verdict(**data, groups={"all": group >= 0, "few": np.arange(8000) < 20})
    assert few.groups.groups["few"].too_small
    assert "too small: only a gap above" in str(few)
    small = balcal.verdict(probs=data["probs"][:40], labels=data["labels"][:40])
    assert "too few samples to tell" in str(small)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_the_law_of_unequal_coins_is_a_sum_over_all_outcomes(probs):
    p, law = np.array(probs), np.zeros(len(probs) + 1)
    for outcome in product((0, 1), repeat=len(p)):
        law[sum(outcome)] += np.prod(np.where(outcome, p, 1 - p))
    for hits in range(len(p) + 1):
        both = min(law[: hits + 1].sum(), law[hits:].sum())
        assert coins_p_value(p, hits) == pytest.approx(min(1, 2 * both), abs=1e-12)


def test_large_groups_are_tested_as_small_ones():
    """Above 1000 samples the law is a corrected normal one; the exact one is near."""
    from balcal.metrics import exact

    rng = np.random.default_rng(4)
    conf = 0.9 + 0.1 * rng.random(900)
    for hits in (835, 850, 856, 870):
        near = exact._corrected_normal(conf, hits), 1 - exact._corrected_normal(conf, hits - 1)
        assert min(1, 2 * min(near)) == pytest.approx(exact.coins_p_value(conf, hits), abs=0.002)


def test_multicalibration_lowers_the_worst_group():
    rng = np.random.default_rng(5)
    data, group = grouped(rng, 6000, 0.15)
    names = np.array(["a", "b", "c", "d"])[group]
    fitted = decisions.multicalibrate(**data, groups=names)
    assert fitted.worst_after < 0.03
    assert fitted.worst_before > 0.1
    assert fitted.nll_after <= fitted.nll_before
    new, group = grouped(rng, 6000, 0.15)
    names = np.array(["a", "b", "c", "d"])[group]
    after = fitted.predict(new["probs"], groups=names)
    assert balcal.metrics.nll(probs=after, labels=new["labels"]) < balcal.metrics.nll(**new)
    gaps = [abs((after.max(1) - (1 - new["labels"]))[names == name].mean()) for name in "abcd"]
    assert max(gaps) < 0.05
    fine, group = grouped(rng, 4000)
    kept = decisions.multicalibrate(**fine, groups={"odd": group % 2 == 1, "three": group == 3})
    assert kept.nll_after <= kept.nll_before
    assert np.allclose(kept.predict(fine["probs"], groups={}), fine["probs"], atol=0.03)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (
            lambda p: decisions.decide(probs=p, costs=[[0, 1]]),
            r"costs must have a row for each of 2 classes .*\(1, 2\)",
        ),
        (lambda p: decisions.decide(probs=p, costs=[[0, np.nan], [1, 0]]), "costs must be finite"),
        (lambda p: decisions.decide(probs=p, costs=COSTS, abstain=1), "or that column already"),
        (lambda p: decisions.decide(probs=p, costs=COSTS, before=p), "pass labels= as well"),
        (lambda p: decisions.adjust_priors(probs=p, train_priors=[1]), "train_priors must be 2 frequencies or counts"),
        (lambda p: decisions.adjust_priors(probs=p, train_priors=[1, 0], new_priors=[0, 1]), "class 1 never occurred"),
        (lambda p: decisions.adjust_priors(probs=p, train_priors=[1, 0]), "class 1 has a frequency of 0"),
        (lambda p: decisions.adjust_priors(probs=p, train_priors=[1, 1], method="bbse"), "bbse needs labelled"),
        (lambda p: decisions.plan_samples(), "say what the samples are for"),
        (lambda p: decisions.plan_samples(accuracy=1.5), "accuracy must lie between 0 and 1"),
        (lambda p: decisions.plan_samples(accuracy=0.9, expected_accuracy=0.9), "must be above the promised 0.9"),
        (lambda p: decisions.multicalibrate(probs=p, labels=[0] * 4, groups=[0, 0, 1, 1]), "too few for 5 folds"),
        (lambda p: balcal.verdict(probs=p, labels=[0] * 4, groups=[0, 0, 0, 1]), "group `1` has one sample"),
        (lambda p: balcal.verdict(probs=p, labels=[0] * 4, groups={"a": [0, 1, 1, 1]}), "must be a mask of 4 times"),
    ],
)
def test_bad_input_gets_one_sentence(call, complaint):
    with pytest.raises(BalcalError, match=complaint):
        call([[0.9, 0.1]] * 4)
