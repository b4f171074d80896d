"""`auto` chooses what the data support, says so, and is no worse than the simplest for it."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from balcal import Calibrator
from balcal.build import calibrators
from balcal.core import BalcalError
from balcal.methods.automatic import choose


def draw(seed, n, weight, hot=1.0, bias=0.0):
    """hot * z, and labels drawn from softmax(weight @ z + bias), where z are log-probabilities."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, len(weight))) * 2
    z -= np.log(np.exp(z).sum(1, keepdims=True))
    y = (z @ np.asarray(weight).T + bias + rng.gumbel(size=z.shape)).argmax(1)
    return hot * z, y


@pytest.mark.parametrize(
    ("weight", "hot", "bias", "chosen"),
    [
        (np.eye(4), 3.0, 0.0, "ts"),
        (np.eye(4), 2.0, np.array([0.8, 0, 0, -0.8]), "svs"),
        (np.eye(4) + 0.4 * np.eye(4)[[1, 2, 3, 0]], 1.0, 0.0, "sms"),
    ],
)
def test_it_finds_the_family(weight, hot, bias, chosen):
    z, y = draw(0, 3000, weight, hot, bias)
    found = Calibrator("auto", inputs="logits").fit(z, y)
    assert found.chosen == chosen
    assert f"`{chosen}` was chosen" in found.why
    rest, labels = draw(1, 20_000, weight, hot, bias)
    losses = {
        name: -np.log(Calibrator(name, inputs="logits").fit(z, y).predict_proba(rest)[np.arange(20_000), labels]).mean()
        for name in ("ts", "svs", "sms", "auto")
    }
    assert losses["auto"] <= min(losses.values()) + 1e-6


def test_between_a_temperature_and_a_matrix_it_takes_a_stronger_penalty():
    """Small departures, few samples: `sms` overfits, and a temperature leaves something to gain."""
    rng = np.random.default_rng(0)
    weight = np.eye(10) + rng.normal(size=(10, 10)) * 0.03
    gained, sentences = [], []
    rest, labels = draw(99, 20_000, weight, 2.0, 0.0)

    def nll(calibrator):
        return -np.log(calibrator.predict_proba(rest)[np.arange(20_000), labels]).mean()

    for seed in range(6):
        z, y = draw(seed, 600, weight, 2.0, 0.0)
        found = {name: Calibrator(name, inputs="logits").fit(z, y) for name in ("auto", "ts", "sms")}
        gained.append([nll(found[name]) - nll(found["auto"]) for name in ("ts", "sms")])
        sentences.append(found["auto"].why)
    assert all(np.mean(gained, 0) > 0)
    assert any(re.match(r"`sms \(x(3|10|30)\)` was chosen", each) for each in sentences)


def test_a_calibrated_model_is_left_alone_and_small_sets_stay_simple():
    simple = 0
    for seed in range(20):
        z, y = draw(seed, 100, np.eye(4))
        simple += Calibrator(inputs="logits").fit(z, y).chosen in ("none", "ts")
    assert simple >= 15


def test_two_classes_have_their_own_candidates():
    rng = np.random.default_rng(0)
    s = rng.normal(size=4000) * 2
    y = (rng.random(4000) < 1 / (1 + np.exp(-s))).astype(int)
    told = np.stack([np.zeros(4000), 2 * s + 1.5], 1)
    found = Calibrator(inputs="logits").fit(told, y)
    assert found.chosen == "platt"
    assert {"none", "ts", "platt", "beta", "quadratic"} == set(found.map_.losses)


def test_labels_that_are_wrong_by_chance_leave_the_temperature_alone():
    """Two percent of the labels are drawn blindly: a share of the uniform distribution says so."""
    chosen = []
    for seed in range(6):
        z, y = draw(seed, 4000, 3 * np.eye(6), 6.0)
        rng = np.random.default_rng(seed)
        blind = rng.random(len(y)) < 0.02
        y[blind] = rng.integers(6, size=blind.sum())
        found = Calibrator(inputs="logits").fit(z, y)
        chosen.append(found.chosen)
        assert float(found.map_.uniform) == pytest.approx(0.02, abs=0.01)
        assert float(found.map_.temperature) == pytest.approx(2, rel=0.1)
    assert chosen.count("ts-uniform") >= 5


def test_a_matrix_far_from_the_diagonal_is_found():
    """Many classes that are told apart only with each other's scores: the penalty of `sms` is too strong for that."""
    rng = np.random.default_rng(0)
    weight = 0.4 * np.eye(20) + rng.normal(size=(20, 20)) * 0.25
    z, y = draw(0, 4000, weight)
    found = Calibrator(inputs="logits").fit(z, y)
    rest, labels = draw(1, 10_000, weight)
    nll = {
        name: -np.log(fitted.predict_proba(rest)[np.arange(10_000), labels]).mean()
        for name, fitted in {"auto": found, "sms": Calibrator("sms", inputs="logits").fit(z, y)}.items()
    }
    assert nll["auto"] < nll["sms"] - 0.01


def test_groups_keep_copies_out_of_the_fold_they_are_tested_on():
    """Forty samples, each ten times: copies in other folds make overfitting look good."""
    z, y = draw(3, 40, np.eye(6))
    many, labels, group = np.repeat(z, 10, 0), np.repeat(y, 10), np.repeat([f"patient {i}" for i in range(40)], 10)
    alone, together = Calibrator(inputs="logits"), Calibrator(inputs="logits")
    alone.fit(many, labels)
    together.fit(many, labels, groups=group)
    assert alone.chosen == "sms", "copies in other folds"
    assert together.chosen == "ts"
    assert alone.map_.losses["svs"] < together.map_.losses["svs"] - 0.1
    with pytest.raises(BalcalError, match="cross-validation in 5 folds needs at least 5 groups, not 2"):
        Calibrator(inputs="logits").fit(many, labels, groups=labels > 2)


def test_the_simpler_of_two_equals():
    loss = torch.rand(50, generator=torch.Generator().manual_seed(0)).double()
    assert choose({"none": loss, "ts": loss, "svs": loss}, torch.ones(50), 20) == "ts"
    assert choose({"none": loss + 1, "ts": loss, "svs": loss - 1e-12}, torch.ones(50), 20) == "svs"


def test_where_nearly_all_is_right_nothing_but_a_temperature_is_trusted():
    """Five wrong answers of 200: folds say little, whichever candidate they seem to favour."""
    rng, chosen = np.random.default_rng(0), []
    for _ in range(20):
        s = rng.normal(size=200) * 6
        y = (rng.random(200) < 1 / (1 + np.exp(-s))).astype(int)
        wrong = (s > 0) != y
        keep = ~wrong | (wrong.cumsum() <= 5)
        chosen.append(Calibrator(inputs="logits").fit(np.stack([0 * s, 1.5 * s], 1)[keep], y[keep]).chosen)
    assert chosen.count("ts") >= 18


@pytest.mark.filterwarnings("ignore:.* held-out samples are few")
@pytest.mark.parametrize("name", [name for name in calibrators() if name not in ("gamma", "laplace")])
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    hot=st.sampled_from([0.01, 1.0, 30.0, 300.0]),
    right=st.sampled_from(["mostly", "always", "never"]),
)
def test_no_probability_is_ever_zero(name, seed, hot, right):
    """Never an infinite loss, whatever is asked later: certain, impossible, or far outside what was fitted on."""
    rng = np.random.default_rng(seed)
    k = 2 if name in ("platt", "beta", "quadratic") else 3
    z = rng.normal(size=(60, k)) * hot
    y = {"mostly": z + rng.gumbel(size=z.shape), "always": z, "never": -z}[right].argmax(1)
    y[:k] = np.arange(k)
    z -= z.max(1, keepdims=True)
    fitted = Calibrator(name, inputs="log_probs").fit(z - np.log(np.exp(z).sum(1, keepdims=True)), y)
    asked = np.full((k + 1, k), -np.inf)
    asked[np.arange(k), np.arange(k)] = 0
    asked[k] = np.log(1 / k)
    assert fitted.predict_proba(asked).min() > 0


@pytest.mark.parametrize(
    "name", [name for name in calibrators() if name not in ("gamma", "laplace", "auto", "ms", "dirichlet")]
)
def test_a_weight_of_two_counts_as_two_samples(name):
    """`auto`, `ms` and `dirichlet` deal copies to different folds; a weighted sample is in one."""
    z, y = draw(5, 150, np.eye(2 if name in ("platt", "beta", "quadratic") else 3), hot=2.0)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    once = Calibrator(name, inputs="logits").fit(z, y, sample_weight=weight).predict_proba(z)
    often = Calibrator(name, inputs="logits").fit(np.repeat(z, weight, 0), np.repeat(y, weight)).predict_proba(z)
    np.testing.assert_allclose(once, often, atol=1e-9)


def test_bad_weights_get_a_sentence():
    z, y = draw(0, 50, np.eye(3))
    for bad, sentence in [
        (np.ones(49), "one weight for each of 50 samples"),
        (-np.ones(50), "finite, at least 0, and not all 0"),
        (np.zeros(50), "finite, at least 0, and not all 0"),
        (np.full(50, np.nan), "finite, at least 0, and not all 0"),
    ]:
        with pytest.raises(BalcalError, match=sentence):
            Calibrator("ts", inputs="logits").fit(z, y, sample_weight=bad)


def test_two_classes_that_are_certain_stay_near_it():
    """Probabilities of 0 and 1, as forests give them."""
    rng = np.random.default_rng(0)
    one = rng.beta(0.3, 0.3, 400).round(2)
    found = Calibrator().fit(np.column_stack([1 - one, one]), rng.random(400) < one)
    low, high, half = found.predict_proba([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])[:, 1]
    assert 0 < low < 0.01
    assert 0.3 < half < 0.7
    assert 0.99 < high < 1
