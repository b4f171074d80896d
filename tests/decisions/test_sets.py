"""Prediction sets: their definition by hand, their exact law, and MAPIE's and crepes' sets."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balcal import decisions
from balcal.core import BalcalError


def drawn(rng, n, classes, sharp=1.0, ties=False):
    logits = rng.normal(0, 2, (n, classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = probs**sharp / (probs**sharp).sum(1, keepdims=True)
    labels = (truth.cumsum(1) < rng.random(n)[:, None]).sum(1).clip(max=classes - 1)
    if ties:
        probs = np.maximum(probs.round(1), 0.05)
        probs /= probs.sum(1, keepdims=True)
    return probs, labels


def slow_score(row, k, u, method):
    """One class of one sample."""
    if method == "lac":
        return -row[k]
    ahead = [j for j in range(len(row)) if row[j] > row[k] or (row[j] == row[k] and j < k)]
    extra = 0.01 * max(0, len(ahead) + 1 - 5) if method == "raps" else 0.0
    return sum(sorted((row[j] for j in ahead), reverse=True)) + (1 - u) * row[k] + extra


@given(st.integers(0, 10**6), st.sampled_from(["lac", "aps", "raps"]), st.booleans(), st.booleans())
def test_sets_are_their_definition(seed, method, ties, per_class):
    rng = np.random.default_rng(seed)
    (p, y), (q, _) = (
        drawn(rng, 120, 8 if not per_class else 2, 1.0, ties),
        drawn(rng, 10, 8 if not per_class else 2, 1, ties),
    )
    u, v = rng.random(120), rng.random(10)
    random = {} if method == "lac" else {"randomness": u}
    sets = decisions.prediction_sets(probs=p, labels=y, alpha=0.2, method=method, per_class=per_class, **random)
    scores = np.array([slow_score(p[i], y[i], u[i], method) for i in range(120)])
    for k in range(p.shape[1]):
        own = np.sort(scores[y == k] if per_class else scores)
        limit = own[int(np.ceil((len(own) + 1) * 0.8 - 1e-9)) - 1]
        expected = np.array([slow_score(q[i], k, v[i], method) for i in range(10)])
        found = sets.predict(q, **({} if method == "lac" else {"randomness": v}))[:, k]
        clear = np.abs(expected - limit) > 1e-9
        assert np.array_equal(found[clear], (expected <= limit)[clear])
    assert sets.predict(q, empty=False, seed=0).any(1).all()


@pytest.mark.parametrize(("method", "sharp"), [("lac", 1.0), ("aps", 0.5), ("raps", 2.0)])
@pytest.mark.parametrize("per_class", [False, True])
def test_coverage_follows_its_exact_law(method, sharp, per_class):
    """200 draws: mean coverage is ceil((n + 1) 0.9) / (n + 1), and the 95 % band of the beta-binomial law holds."""
    rng, n, new, draws = np.random.default_rng(7), 300, 400, 200
    held, outside, classes = [], 0, 2 if per_class else 10
    for seed in range(draws):
        p, y = drawn(rng, n + new, classes, sharp)
        sets = decisions.prediction_sets(probs=p[:n], labels=y[:n], method=method, per_class=per_class, seed=seed)
        found = sets.predict(p[n:], seed=draws + seed)[np.arange(new), y[n:]]
        held.append([found[y[n:] == k].mean() for k in range(classes)] if per_class else found.mean())
        low, high = sets.band(new)
        outside += not low <= found.mean() <= high
    assert np.abs(np.mean(held, axis=0) - 0.9).max() < 3 * np.std(held, axis=0).max() / np.sqrt(draws) + 0.01
    assert outside / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_the_sets_of_mapie(method):
    """The same random numbers in the same places: theirs come from RandomState(seed), at fit and at predict."""
    pytest.importorskip("mapie", reason="MAPIE is not installed: pip install mapie")
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class AsTheyAre(ClassifierMixin, BaseEstimator):
        """Rows are probabilities already."""

        def fit(self, X, y):  # noqa: N803
            self.classes_, self.fitted_ = np.arange(X.shape[1]), True
            return self

        def predict_proba(self, X):  # noqa: N803
            return X

        def predict(self, X):  # noqa: N803
            return X.argmax(1)

    rng = np.random.default_rng(3)
    for n, classes in ((50, 3), (400, 10), (1000, 30)):
        (p, y), (q, _) = drawn(rng, n, classes), drawn(rng, 300, classes)
        y[:classes] = np.arange(classes)
        model = AsTheyAre().fit(p, y)
        theirs = SplitConformalClassifier(
            model, confidence_level=0.9, conformity_score=method, prefit=True, random_state=5
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.conformalize(p, y)
            given = {"include_last_label": "randomized"} if method == "aps" else {}
            expected = theirs.predict_set(q, conformity_score_params=given)[1][:, :, 0]
        u = {} if method == "lac" else {"randomness": np.random.RandomState(5).uniform(size=n)}
        v = {} if method == "lac" else {"randomness": np.random.RandomState(5).uniform(size=300)}
        found = decisions.prediction_sets(probs=p, labels=y, alpha=0.1, method=method, **u).predict(q, **v)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("per_class", [False, True])
def test_the_sets_of_crepes(per_class):
    """Where (n + 1) alpha is whole, theirs also have the class whose p-value is just alpha: here it is not whole."""
    crepes = pytest.importorskip("crepes", reason="crepes is not installed: pip install crepes")
    rng = np.random.default_rng(4)
    (p, y), (q, _) = drawn(rng, 500, 5), drawn(rng, 200, 5)
    theirs = crepes.ConformalClassifier()
    bins = {"bins": y} if per_class else {}
    theirs.fit(alphas=1 - p[np.arange(500), y], **bins)
    if per_class:
        expected = np.column_stack(
            [
                theirs.predict_set(1 - q[:, [k]], bins=np.full(200, k), confidence=1 - 0.103, smoothing=False)[:, 0]
                for k in range(5)
            ]
        )
    else:
        expected = theirs.predict_set(1 - q, confidence=1 - 0.103, smoothing=False)
    found = decisions.prediction_sets(probs=p, labels=y, alpha=0.103, per_class=per_class).predict(q)
    assert np.array_equal(found, np.asarray(expected, dtype=bool))


def test_clusters_of_classes():
    """Two kinds of classes, calibrated and not: clusters tell them apart, and coverage by class is more even."""
    rng = np.random.default_rng(5)
    p, y = drawn(rng, 12_000, 20)
    wild = (y % 2 == 0) & (rng.random(12_000) < 0.35)
    p[wild] = p[wild][:, rng.permutation(20)]
    sets = decisions.prediction_sets(probs=p[:8000], labels=y[:8000], clusters=2)
    kinds = np.array(sets.clusters)
    assert len(set(kinds[::2])) == len(set(kinds[1::2])) == 1
    assert kinds[0] != kinds[1]
    clustered = sets.evaluate(probs=p[8000:], labels=y[8000:])
    single = decisions.prediction_sets(probs=p[:8000], labels=y[:8000]).evaluate(probs=p[8000:], labels=y[8000:])

    def worst(report):
        return np.mean([abs(share.coverage - 0.9) for share in report.by_class.values()])

    assert worst(clustered) < worst(single)
    assert "lowest in class" in str(clustered)


def test_the_report_adds_up():
    rng = np.random.default_rng(6)
    p, y = drawn(rng, 3000, 6)
    sets = decisions.prediction_sets(probs=p[:1000], labels=y[:1000], method="aps")
    names = np.where(np.arange(2000) < 1500, "a", "b")
    y = y.copy()
    y[2500:] = p[2500:].argmin(1)
    found, report = sets.predict(p[1000:], seed=1), sets.evaluate(probs=p[1000:], labels=y[1000:], groups=names, seed=1)
    assert report.mean_size == found.sum(1).mean()
    assert report.coverage == pytest.approx(found[np.arange(2000), y[1000:]].mean())
    assert sum(share.samples for share in report.by_size.values()) == 2000
    assert report.by_group["b"].p_value < 1e-6
    assert report.by_group["a"].p_value > 0.05
    assert "group b" in str(report)
    assert "below the promise" in str(report)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"alpha": 0}, "alpha must lie between 0 and 1, both left out, not 0"),
        ({"alpha": 1}, "alpha must lie between 0 and 1"),
        ({"alpha": 0.01}, "alpha 0.01 needs at least 99 held-out samples, and there are 20"),
        ({"per_class": True, "alpha": 0.05}, "alpha 0.05 needs at least 19 held-out samples, and class 0 has 10"),
        ({"method": "apz"}, "method must be lac or aps or raps"),
        ({"clusters": 2, "per_class": True}, "per class or per cluster of classes, not both"),
        ({"clusters": 2, "alpha": 0.2}, "classes have enough samples to be clustered"),
        ({"randomness": [0.5] * 20}, "randomness= goes with method aps or raps"),
        ({"method": "aps", "randomness": [2.0] * 20}, "randomness must be 20 numbers from 0 to 1"),
        ({"probs": [[np.inf, 0.5]] * 20}, "NaN or infinite"),
    ],
)
def test_bad_input_gets_one_sentence(bad, complaint):
    with pytest.raises(BalcalError, match=complaint):
        decisions.prediction_sets(**{"probs": [[0.9, 0.1]] * 20, "labels": [0, 1] * 10} | bad)


def test_other_classes_are_refused():
    sets = decisions.prediction_sets(probs=[[0.9, 0.1]] * 20, labels=[0, 1] * 10)
    with pytest.raises(BalcalError, match="fitted on 2 classes, asked about 3"):
        sets.predict([[0.5, 0.3, 0.2]])
