"""Gamma and beta from sums, against a dense search on stored probabilities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balcal.core import BalcalError
from balcal.methods.parts import gamma_search as balance
from balcal.methods.parts.gamma_search import Curve, solve_freely, solve_gamma

FUSIONS = {"probs": balance.add_gamma_probs, "logits": balance.add_gamma_logits}


def case(seed, n=3000, k=10, standard=(4.0, 1.0), etf=(4.0, 1.0)):
    """Two heads: (how well they know the label, how loudly they say it)."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=rng)
    truth = torch.nn.functional.one_hot(labels, k).float()
    heads = []
    for skill, volume in (standard, etf):
        z = skill * truth + torch.randn(n, k, generator=rng) * 1.5
        heads.append(z * volume)
    return heads[0], heads[1], labels


def truth_at(g, standard, etf, labels, fusion):
    """(confidence, accuracy) of the mixture, directly."""
    if fusion == "probs":
        p = g * standard.double().softmax(1) + (1 - g) * etf.double().softmax(1)
    else:
        p = (g * standard.double() + (1 - g) * etf.double()).softmax(1)
    conf, pick = p.max(1)
    return float(conf.mean()), float((pick == labels).double().mean())


def brute_force(standard, etf, labels, fusion, delta, guard=0.01, points=1001):
    """The selection rule of METHOD I.6 on a dense grid of stored probabilities, by plain loops."""
    grid = np.linspace(0, 1, points)
    conf, acc = np.array([truth_at(g, standard, etf, labels, fusion) for g in grid]).T
    h = conf - delta * acc
    allowed = acc >= acc[-1] - guard
    for i in range(points - 2, -1, -1):
        if np.sign(h[i]) != np.sign(h[i + 1]) and allowed[i]:
            return grid[i], h[i], "root"
    if h[-1] <= 0:
        return 1.0, h[-1], "standard"
    best = min((abs(h[i]), -i) for i in range(points) if allowed[i])[1]
    return grid[-best], h[-best], "closest"


def tallied(standard, etf, labels, fusion, delta, batch=256):
    sums = balance.start_sums(129, labels.device)
    for rows in torch.arange(len(labels)).split(batch):
        FUSIONS[fusion](sums, standard[rows], etf[rows], labels[rows])
    assert float(sums["count"]) == len(labels)
    return solve_gamma(Curve.of(sums, balance.gamma_grid(129, sums["conf"])), delta)


SIGNS = {  # name: (standard, etf, delta) with the signs of (h(0), h(1))
    (-1, +1): ((4.0, 3.0), (4.0, 0.1), 0.95),
    (+1, -1): ((4.0, 0.2), (4.0, 4.0), 0.95),
    (-1, -1): ((4.0, 0.2), (4.0, 0.1), 0.95),
    (+1, +1): ((3.0, 4.0), (3.0, 3.0), 0.80),
}


@pytest.mark.parametrize("fusion", ["probs", "logits"])
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("seed", range(2))
def test_tally_finds_what_a_dense_search_finds(fusion, signs, seed):
    standard, etf, delta = SIGNS[signs]
    heads = case(seed, n=6000, standard=standard, etf=etf)
    ends = [truth_at(g, *heads, fusion) for g in (0.0, 1.0)]
    assert tuple(int(np.sign(conf - delta * acc)) for conf, acc in ends) == signs
    solution = tallied(*heads, fusion, delta)
    _, gap, branch = brute_force(*heads, fusion, delta)
    conf, acc = truth_at(solution.value, *heads, fusion)
    assert solution.branch == branch
    assert abs(conf - delta * acc) <= abs(gap) + 1e-3
    assert abs(solution.gap - (conf - delta * acc)) < 1e-3, "what it says of the gap must be so"
    assert acc >= ends[1][1] - 0.01 - 1e-3


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.tuples(st.floats(1, 6), st.floats(0.1, 4)),
    st.tuples(st.floats(1, 6), st.floats(0.1, 4)),
    st.floats(0.85, 1.0),
    st.sampled_from(["probs", "logits"]),
)
def test_tally_is_as_good_as_a_dense_search_in_random_cases(seed, standard, etf, delta, fusion):
    heads = case(seed, n=4000, k=5, standard=standard, etf=etf)
    solution = tallied(*heads, fusion, delta)
    _, gap, branch = brute_force(*heads, fusion, delta, points=201)
    conf, acc = truth_at(solution.value, *heads, fusion)
    if branch == solution.branch:
        assert abs(conf - delta * acc) <= abs(gap) + 1e-3
    else:  # a root or a guard within a hair of not being one
        assert abs(solution.gap) < 5e-3 or abs(acc - truth_at(1.0, *heads, fusion)[1] + 0.01) < 2e-3


@pytest.mark.parametrize("fusion", ["probs", "logits"])
def test_an_untrained_etf_head_is_not_mistaken_for_a_calibrated_one(fusion):
    """It has confidence = accuracy = 1/K: a gap of zero at gamma = 0, and no use. METHOD II 9.3."""
    untrained = (0.0, 0.02)
    timid = case(0, n=20_000, standard=(3.0, 0.35), etf=untrained)
    conf, acc = truth_at(0.0, *timid, fusion)
    assert abs(conf - 0.95 * acc) < 0.02, "the trap is set"
    assert tallied(*timid, fusion, 0.95).value == 1.0
    bold = case(1, n=20_000, standard=(3.0, 3.0), etf=untrained)
    solution = tallied(*bold, fusion, 0.95)
    assert solution.branch == "root"
    assert solution.value > 0.3
    assert abs(solution.gap) < 1e-3


def test_an_under_confident_head_is_lifted_by_a_bold_etf_head():
    """What the released code cannot do: it returns 1 whenever the standard head is timid."""
    heads = case(0, n=20_000, standard=(4.0, 0.3), etf=(4.0, 4.0))
    conf, acc = truth_at(1.0, *heads, "probs")
    assert conf < 0.8 * acc
    solution = tallied(*heads, "probs", 1.0)
    conf, acc = truth_at(solution.value, *heads, "probs")
    assert abs(conf - acc) < 1e-3


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(1, 6), st.floats(0.05, 4), st.floats(0.85, 1.0))
def test_above_one_gamma_sharpens_and_below_it_nothing_changes(seed, skill, volume, delta):
    standard, etf, labels = case(seed, n=4000, k=5, standard=(skill, volume), etf=(skill, 0.1))
    tempered, sharpened = (balance.start_sums(points, labels.device) for points in (129, 33))
    balance.add_gamma_logits(tempered, standard, etf, labels)
    balance.add_scale(sharpened, standard, labels, balance.bold_grid)
    below = Curve.of(tempered, balance.gamma_grid(129, tempered["conf"]))
    above = Curve.of(sharpened, balance.bold_grid(33, sharpened["conf"]))
    found = solve_freely(below, above, delta)
    conf, acc = truth_at(1.0, standard, etf, labels, "logits")
    if conf > delta * acc + 1e-6:
        assert found == solve_gamma(below, delta)
        return
    conf, same = truth_at(found.value, standard, torch.zeros_like(etf), labels, "logits")
    assert same == pytest.approx(acc), "a factor changes no decision"
    if found.branch == "boldest":
        assert found.value == pytest.approx(balance.BOLDEST)
        assert conf <= delta * acc
    else:
        assert 1 <= found.value < balance.BOLDEST
        assert conf == pytest.approx(delta * acc, abs=1e-3)


def test_a_handful_without_an_error_does_not_vouch_for_certainty():
    conf, all_right = np.linspace(0.2, 0.8, 9), np.ones(9)
    below = Curve(np.linspace(0, 1, 9), conf, all_right)
    above = Curve(np.geomspace(1, 8, 9), np.linspace(0.8, 0.999, 9), all_right)
    bold = [solve_freely(below, above, 1.0, samples=samples) for samples in (2, 12, 100, 10_000)]
    values = [found.value for found in bold]
    assert values == sorted(values)
    assert values[0] < 1 < values[1] < 4, "three of four, and 13 of 14"
    assert bold[1].conf == pytest.approx(13 / 14, abs=1e-3)
    assert bold[-1].branch == "boldest"
    assert all(found.acc == 1 for found in bold), "what is told is what was counted"


@pytest.mark.parametrize("add", [*FUSIONS.values(), lambda sums, s, e, y: balance.add_scale(sums, s, y)])
def test_sums_do_not_depend_on_how_the_data_was_cut(add, monkeypatch):
    """Nor on whether a large batch is walked through or laid out in full."""
    standard, etf, labels = case(0, n=999)
    whole, parts = (balance.start_sums(129, labels.device) for _ in range(2))
    monkeypatch.setattr(balance, "CELLS", 1 << 30)
    add(whole, standard, etf, labels)
    monkeypatch.setattr(balance, "CELLS", 5000)
    for rows in torch.arange(999).split(37):
        add(parts, standard[rows], etf[rows], labels[rows])
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-6, atol=1e-6)


def test_ends_of_the_curve_are_the_two_heads():
    standard, etf, labels = case(0)
    for fusion, add in FUSIONS.items():
        sums = balance.start_sums(129, labels.device)
        add(sums, standard, etf, labels)
        curve = Curve.of(sums, balance.gamma_grid(129, sums["conf"]))
        for end, g in ((0, 0.0), (-1, 1.0)):
            conf, acc = truth_at(g, standard, etf, labels, fusion)
            assert curve.conf[end] == pytest.approx(conf, abs=1e-5)
            assert curve.acc[end] == pytest.approx(acc, abs=1e-9)


def curve(conf, acc):
    return Curve(np.linspace(0, 1, len(conf)), np.array(conf, float), np.array(acc, float))


def test_rule_by_hand():
    """Six numbers, one pencil."""
    two_roots = curve([0.95, 0.85, 0.95], [0.9, 0.9, 0.9])
    assert solve_gamma(two_roots, 1.0).value == pytest.approx(0.75), "the largest root"
    guarded = solve_gamma(curve([0.5, 0.85, 1.0], [0.5, 0.9, 0.98]), 1.0)
    assert guarded.branch == "closest", "the root at 0.857 would cost two points of accuracy"
    assert guarded.value == pytest.approx(0.9375), "as near to it as the guard allows"
    assert solve_gamma(curve([0.2, 0.4, 0.9], [0.9, 0.9, 0.9]), 1.0).branch == "standard", "already balanced"
    assert solve_gamma(curve([0.2, 0.4, 0.6], [0.9, 0.9, 0.9]), 1.0).value == 1.0, "too timid, nothing bolder at hand"


@given(st.integers(0, 10**6), st.floats(0.05, 30.0), st.floats(0.8, 1.0))
def test_beta_is_the_root_of_a_monotone_curve(seed, volume, delta):
    logits, _, labels = case(seed, n=2000, standard=(2.0, volume))
    sums = balance.start_sums(129, labels.device)
    balance.add_scale(sums, logits, labels)
    solution = balance.solve_scale(Curve.of(sums, balance.scale_grid(129, sums["conf"])), delta)
    conf = float((solution.value * logits).softmax(1).max(1).values.mean())
    acc = float((logits.argmax(1) == labels).float().mean())
    assert solution.branch == "root"
    assert conf == pytest.approx(delta * acc, abs=2e-3)


def test_nothing_counted_and_nothing_finite_are_said_so():
    sums = balance.start_sums(5, torch.device("cpu"))
    with pytest.raises(BalcalError, match="nothing was counted"):
        Curve.of(sums, balance.gamma_grid(5, sums["conf"]))
    balance.add_gamma_logits(sums, torch.full((1, 3), float("nan")), torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(BalcalError, match="not finite"):
        Curve.of(sums, balance.gamma_grid(5, sums["conf"]))
