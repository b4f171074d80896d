"""A threshold keeps its promise although it was searched: against known truths, and against a search by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from balcal import decisions
from balcal.core import BalcalError, Predictions


def two_columns(conf, right):
    """Class 0 is predicted with this confidence, and is the label where it is right."""
    return {"probs": np.stack([conf, 1 - conf], axis=1), "labels": 1 - np.asarray(right, dtype=int)}


def test_arrays_go_by_name_here_too():
    p, y = [[0.9, 0.1]] * 40, [0] * 40
    sets, found = decisions.prediction_sets(probs=p, labels=y), decisions.threshold(probs=p, labels=y, accuracy=0.9)
    for use, words in (
        (lambda: decisions.threshold(p, y, accuracy=0.9), r"threshold\(probs=..., labels=...\)"),
        (lambda: decisions.prediction_sets(p, y), r"prediction_sets\(probs=..., labels=...\)"),
        (lambda: decisions.decide(p, costs=[[0, 1], [1, 0]]), r"decide\(probs=..., labels=...\)"),
        (lambda: decisions.multicalibrate(p, y, groups=y), r"multicalibrate\(probs=..., labels=...\)"),
        (lambda: found.accept(p), r"accept\(probs=...\)"),
        (lambda: sets.evaluate(p, y), r"evaluate\(probs=..., labels=...\)"),
    ):
        with pytest.raises(BalcalError, match=rf"pass arrays by name: \S*{words}"):
            use()


def slow(conf, right, target, delta):
    """The definition, sample by sample: three starts, each passing what it has left to the next."""
    least = next(n for n in range(1, 10**6) if target**n <= delta)
    shares = [(m, s) for m, s in ((1, 0.25), (3, 0.25), (9, 0.5)) if m * least <= len(conf)] or [(1, 1.0)]
    levels = [delta * s / sum(s for _, s in shares) for _, s in shares]
    first = next(n for n in range(least, 10**6) if target**n <= levels[0])
    begins = {max(first, m * least): level for (m, _), level in zip(shares, levels, strict=True)}
    order, best, level = np.argsort(-conf, kind="stable"), 0, 0.0
    for k in range(1, len(conf) + 1):
        level += begins.get(k, 0.0)
        if k < first or (k < len(conf) and conf[order[k]] == conf[order[k - 1]]):
            continue
        hits = int(right[order[:k]].sum())
        if level and stats.binomtest(hits, k, target, alternative="greater").pvalue <= level:
            best = k
        else:
            level = 0.0
    return best


@given(st.integers(0, 10**6), st.sampled_from([0.6, 0.8, 0.9]), st.booleans())
def test_the_search_is_its_definition(seed, target, ties):
    rng = np.random.default_rng(seed)
    conf = 0.5 + 0.5 * rng.beta(2, 0.7, 150)
    conf = conf.round(2) if ties else conf
    right = rng.random(150) < conf**1.5
    found = decisions.threshold(**two_columns(conf, right), accuracy=target, confidence=0.9)
    assert found.accepted == slow(conf, right, target, 0.1 + 1e-12)
    if found.threshold is None:
        assert found.accuracy is None
        return
    accepted = conf >= found.threshold
    assert accepted.sum() == found.accepted
    assert found.accuracy == pytest.approx(right[accepted].mean())
    assert np.array_equal(found.accept(probs=np.stack([conf, 1 - conf], axis=1)), accepted)


TRUTH = np.concatenate(
    [1 - 0.02 * stats.beta.ppf(np.linspace(0.001, 0.999, 700), 0.5, 3), np.linspace(0.12, 0.99, 300)]
)
"""probability of being right of a thousand kinds of samples"""


@pytest.mark.parametrize("claim", [lambda p: p, lambda p: 1 - (1 - p) ** 3])
@pytest.mark.parametrize("n", [150, 2000])
def test_the_promise_is_kept(claim, n):
    """In 300 draws; all 2,000 are in results/scripts/decisions_simulation.py."""
    said, rng, draws = claim(TRUTH), np.random.default_rng(n), 300
    broken, coverage = 0, []
    order = np.argsort(-said)
    oracle = np.flatnonzero(np.cumsum(TRUTH[order]) / np.arange(1, 1001) >= 0.95)[-1] + 1
    for _ in range(draws):
        pick = rng.integers(0, 1000, n)
        conf = said[pick]
        table = np.repeat((1 - conf)[:, None] / 9, 10, axis=1)
        table[:, 0] = conf
        right = rng.random(n) < TRUTH[pick]
        found = decisions.threshold(probs=table, labels=(~right).astype(int), accuracy=0.95)
        accepted = said >= (2 if found.threshold is None else found.threshold)
        coverage.append(accepted.mean())
        broken += bool(accepted.any()) and TRUTH[accepted].mean() < 0.95
    assert broken / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)
    if n == 2000:
        assert oracle / 1000 - np.mean(coverage) < 0.03


def test_mistakes_in_all_samples_and_false_positives():
    rng = np.random.default_rng(1)
    p = rng.random(5000)
    y = (rng.random(5000) < p).astype(int)
    table = np.stack([1 - p, p], axis=1)
    found = decisions.threshold(probs=table, labels=y, error_rate=0.05)
    conf, right = table.max(1), table.argmax(1) == y
    wrong = ((conf >= found.threshold) & ~right).sum()
    assert stats.binomtest(int(wrong), 5000, 0.05, alternative="less").pvalue <= 0.05
    below = np.sort(conf[conf < found.threshold])[::-1]
    next_wrong = [((conf >= limit) & ~right).sum() for limit in below[:200]]
    assert stats.binomtest(int(next(w for w in next_wrong if w > wrong)), 5000, 0.05, "less").pvalue > 0.05
    positive = decisions.threshold(probs=table, labels=y, false_positive_rate=0.1)
    assert np.mean(p[y == 0] >= positive.threshold) < 0.1
    assert positive.recall == pytest.approx(np.mean(p[y == 1] >= positive.threshold))
    assert np.array_equal(positive.accept(probs=table), p >= positive.threshold)
    assert "false-positive rate of at most 10% for class 1" in str(positive)


def test_classes_and_groups_have_thresholds_of_their_own():
    rng = np.random.default_rng(2)
    conf, group = 0.5 + 0.5 * rng.beta(3, 0.5, 20_000), rng.integers(0, 2, 20_000)
    right = rng.random(20_000) < np.where(group == 1, conf, conf**3)
    flip = rng.random(20_000) < 0.5
    p = np.where(flip, 1 - conf, conf)
    table, labels = np.stack([p, 1 - p], axis=1), np.where(right, flip, ~flip).astype(int)
    names = np.array(["easy", "hard"])[1 - group]
    found = decisions.threshold(probs=table, labels=labels, accuracy=0.9, groups=names)
    assert found.parts["hard"].threshold > found.parts["easy"].threshold
    alone = decisions.threshold(probs=table[group == 1], labels=labels[group == 1], accuracy=0.9, confidence=0.95**0.5)
    assert found.parts["easy"].threshold == alone.threshold, "levels multiply"
    accepted = found.accept(probs=table, groups=names)
    assert found.accepted == accepted.sum()
    per_class = decisions.threshold(probs=table, labels=labels, accuracy=0.9, per_class=True)
    assert len(per_class.threshold) == 2
    limits = np.array(per_class.threshold)[table.argmax(1)]
    assert np.array_equal(per_class.accept(probs=table), conf >= limits)
    assert "2 of 2 predicted classes have a threshold" in str(per_class)


def test_what_it_would_take():
    few = decisions.threshold(probs=[[0.99, 0.01]] * 100, labels=[0] * 100)
    assert few.threshold is None
    assert few.needed == 299
    assert "100 held-out samples are too few, it would take about 299 like these" in str(few)
    rng = np.random.default_rng(3)
    conf = np.full(2000, 0.95)
    hopeless = decisions.threshold(**two_columns(conf, rng.random(2000) < 0.9), accuracy=0.99)
    assert hopeless.needed is None
    assert "wrong too often, however many samples there are" in str(hopeless)
    conf = rng.random(1500) * 0.4 + 0.6
    some = decisions.threshold(**two_columns(conf, rng.random(1500) < 0.9935), accuracy=0.99)
    assert some.threshold is None
    many = rng.random(2 * some.needed) * 0.4 + 0.6
    assert decisions.threshold(**two_columns(many, rng.random(len(many)) < 0.9935), accuracy=0.99).threshold is not None


def test_all_sure_and_saturated():
    """Float32 confidences of exactly 1: the threshold must accept them in float32 as well."""
    table = torch.tensor([[1.0, 0.0]] * 900 + [[0.99999994, 5.96e-8]] * 100)
    found = decisions.threshold(probs=table, labels=[0] * 900 + [1] * 100)
    assert found.accepted == 900
    assert found.accept(probs=table).sum() == found.accept(probs=table.double()).sum() == 900
    always = decisions.threshold(probs=[[0.9, 0.1]] * 400, labels=[0] * 400)
    assert always.threshold == 0
    assert str(always).startswith("400 held-out samples: act always")
    logs = decisions.threshold(log_probs=table.double().log(), labels=[0] * 900 + [1] * 100)
    assert logs.accepted == 900
    held = Predictions(table.log(), torch.zeros(1000, dtype=torch.long), role="test")
    with pytest.raises(BalcalError, match="predictions of the test role"):
        decisions.threshold(held)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"accuracy": 1.0}, "accuracy must lie between 0 and 1, both left out, not 1"),
        ({"accuracy": float("nan")}, "accuracy must be a finite number"),
        ({"accuracy": 0.9, "error_rate": 0.1}, "promise one thing at a time, not accuracy and error_rate"),
        ({"confidence": 0}, "confidence must lie between 0 and 1"),
        ({"per_class": True, "groups": [0] * 4}, "per class or per group, not both"),
        ({"groups": [0, 0, 0, 1]}, "group `1` has one sample, of which nothing can be said"),
        ({"groups": [0, 0, 1]}, "groups must name the group of each of 4 samples"),
        ({"groups": [0.5] * 4}, "groups must be names or whole numbers, not float64"),
        ({"groups": ["a", None, "a", "a"]}, "without None"),
        ({"positive": 1}, "positive= goes with false_positive_rate="),
        ({"false_positive_rate": 0.1, "positive": 2}, "positive must be at most 1"),
        ({"probs": [[np.nan, 0.5]] * 4}, "NaN or infinite"),
        ({"labels": [0, 1, 2, 0]}, "label 2 in the data is out of range"),
    ],
)
def test_bad_input_gets_one_sentence(bad, complaint):
    with pytest.raises(BalcalError, match=complaint):
        decisions.threshold(**{"probs": [[0.9, 0.1]] * 4, "labels": [0, 0, 1, 0]} | bad)
