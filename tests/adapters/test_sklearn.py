"""An estimator like any other: scikit-learn's own checks, and the places where estimators go."""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.stats import ttest_1samp
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import balcal
from balcal import BalCALClassifier

ROOT = Path(__file__).parents[2]
QUICK = {"epochs": 15, "hidden": (32,), "random_state": 0}


NOT_TO_BE_HAD = {
    "check_sample_weight_equivalence_on_dense_data": "repeated rows change mini-batches and what is held out"
}


@parametrize_with_checks(
    [BalCALClassifier(epochs=20, hidden=(32,), batch_size=64)], expected_failed_checks=lambda estimator: NOT_TO_BE_HAD
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_pipeline_cross_validation_and_display():
    X, y = load_breast_cancer(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    pipeline = make_pipeline(MinMaxScaler(), BalCALClassifier("balcal-auto", **QUICK))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.93
    pipeline.fit(X, y)
    assert pipeline.score(X_test, y_test) > 0.93
    probs = pipeline.predict_proba(X_test)
    np.testing.assert_allclose(probs.sum(1), 1)
    shown = CalibrationDisplay.from_estimator(pipeline, X_test, y_test, n_bins=5)
    np.testing.assert_allclose(shown.y_prob, probs[:, 1])
    assert balcal.verdict(probs=probs, labels=y_test).accuracy == pytest.approx(pipeline.score(X_test, y_test))


def test_a_few_held_out_samples_do_not_make_it_certain():
    X, y = load_wine(return_X_y=True)
    model = make_pipeline(StandardScaler(), BalCALClassifier("balcal-auto", random_state=0))
    probs = cross_val_predict(model, X, y, cv=3, method="predict_proba")
    assert balcal.verdict(probs=probs, labels=y).nll < 0.2, "0.3 if a dozen right ones vouch for 100 %"


def test_averages_weights_where_the_method_says_so():
    X, y = load_digits(return_X_y=True)
    plain, mean = (BalCALClassifier(name, **QUICK | {"epochs": 2}).fit(X, y) for name in ("vanilla", "averaged"))
    weights = [model.model_.head.classifier.weight for model in (plain, mean)]
    assert not torch.equal(*weights)


def test_any_method_any_network_and_images_by_name():
    X, y = load_digits(return_X_y=True)
    names = np.array(["zero", "one", "two", "three", "four"])
    X, y = X[y < 5], names[y[y < 5]]
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    before = network[0].weight.clone()
    model = BalCALClassifier("balcal+fl+ts", backbone=network, epochs=12, random_state=0).fit(X[:600] / 16, y[:600])
    assert model.score(X[600:] / 16, y[600:]) > 0.9
    assert sorted(model.classes_) == list(model.classes_) == sorted(names)
    assert (network[0].weight == before).all(), "the network given is left alone"
    images = X.reshape(-1, 1, 8, 8) / 16
    seen = BalCALClassifier("vanilla", backbone="cnn-8", epochs=10, random_state=0).fit(images[:600], y[:600])
    assert seen.score(images[600:], y[600:]) > 0.9


def people(n=400, seed=0):
    """A table as it is: text, categories, booleans, numbers with gaps."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    town, member, age = rng.choice(["Rome", "Oslo", "Lima"], n), rng.random(n) < 0.5, rng.normal(40, 10, n)
    label = np.where((town == "Rome") | (age > 50), "yes", "no")
    age[rng.random(n) < 0.2] = np.nan
    frame = pd.DataFrame(
        {"age": age, "town": town, "kind": pd.Categorical(rng.choice(["a", "b"], n)), "member": member}
    )
    frame.loc[rng.random(n) < 0.05, "town"] = None
    return frame, label


def test_a_table_with_categories_and_gaps():
    X, y = people()
    model = BalCALClassifier(**QUICK | {"epochs": 30}).fit(X, y)
    X_test, y_test = people(200, 1)
    assert model.score(X_test, y_test) > 0.85
    assert list(model.feature_names_in_) == list(X.columns)
    X_test.loc[0, "town"] = "Atlantis"
    assert np.isfinite(model.predict_proba(X_test)).all()
    np.testing.assert_allclose(model.predict_log_proba(X_test), np.log(model.predict_proba(X_test)), atol=1e-9)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X_test[list(X.columns[::-1])])
    numbers, label = load_wine(return_X_y=True)
    numbers[::7, 3] = np.nan
    assert BalCALClassifier(**QUICK).fit(numbers, label).score(numbers, label) > 0.9
    X.loc[3, "age"] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        BalCALClassifier(**QUICK).fit(X, y)


def test_nullable_columns_dates_and_arrays_of_objects():
    pd = pytest.importorskip("pandas")
    X, y = people(120)
    nullable = X.assign(town=X["town"].astype("string"), member=X["member"].astype("boolean"))
    nullable.loc[3, "member"] = pd.NA
    assert nullable["town"].isna().any()
    quick = QUICK | {"epochs": 2}
    model = BalCALClassifier(**quick).fit(nullable, y)
    assert np.isfinite(model.predict_proba(X)).all(), "plain columns of the same names"
    assert nullable["town"].isna().any(), "the user's table is left alone"
    with pytest.raises(ValueError, match=r"column `born` has datetime64.*make numbers of it"):
        BalCALClassifier(**quick).fit(X.assign(born=pd.Timestamp("2000-01-01")), y)
    with pytest.raises(ValueError, match=r"could not convert string to float.*: pass a DataFrame"):
        BalCALClassifier(**quick).fit(X.to_numpy(), y)


def test_weights_of_rows_and_of_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), rng.random(400) < 0.2
    plain = BalCALClassifier(**QUICK).fit(X, y).predict_proba(X)[:, 1].mean()
    balanced = BalCALClassifier(**QUICK, class_weight="balanced").fit(X, y)
    by_row = BalCALClassifier(**QUICK).fit(X, y, sample_weight=np.where(y, 4.0, 1.0) * 3)
    named = BalCALClassifier(**QUICK, class_weight={True: 4.0, False: 1.0}).fit(X, y)
    assert plain < 0.3
    for model in (balanced, by_row, named):
        assert model.predict_proba(X)[:, 1].mean() == pytest.approx(0.5, abs=0.12)
    np.testing.assert_allclose(by_row.predict_proba(X), named.predict_proba(X), atol=1e-5, err_msg="only ratios count")
    half = np.arange(400) < 200
    left_out = BalCALClassifier(**QUICK).fit(X, np.where(half, y, ~y), sample_weight=half.astype(float))
    assert left_out.predict_proba(X)[:, 1].mean() < 0.35
    with pytest.raises(ValueError, match="at least one non-zero"):
        BalCALClassifier(**QUICK).fit(X, y, sample_weight=np.zeros(400))
    with pytest.raises(ValueError, match="class_weight must be finite and not negative"):
        BalCALClassifier(**QUICK, class_weight={True: -1.0, False: 1.0}).fit(X, y)


def test_sparse_rows_are_refused():
    X, y = load_wine(return_X_y=True)
    fitted = BalCALClassifier(**QUICK | {"epochs": 1}).fit(X, y)
    for rows in (scipy.sparse.csr_matrix(X), scipy.sparse.coo_array(X)):
        for use in (lambda rows: BalCALClassifier(**QUICK).fit(rows, y), fitted.predict_proba):
            with pytest.raises(TypeError, match=r"[Ss]parse.*toarray"):
                use(rows)


def test_calibration_costs_nothing_on_small_tables_beyond_noise():
    """Four real tables, eight splits: NLL less that of `vanilla`, by paired tests, corrected for their number."""
    rows = list(csv.DictReader((ROOT / "results" / "data" / "tabular.csv").read_text().splitlines()))
    nll = {(row["set"], row["model"], row["split"]): float(row["nll"]) for row in rows}
    sets, splits = ({row[name] for row in rows} for name in ("set", "split"))
    assert (sets, len(splits)) == ({"iris", "wine", "breast_cancer", "digits"}, 8)
    found = []
    for name in sets:
        for ours in ("balcal vanilla+ts", "balcal balcal-auto"):
            more = [nll[name, ours, split] - nll[name, "balcal vanilla", split] for split in splits]
            found.append(ttest_1samp(more, 0, alternative="greater").pvalue)
    assert min(found) * len(found) > 0.05
    page = (ROOT / "docs" / "tables.md").read_text()
    table = runpy.run_path(str(ROOT / "results" / "scripts" / "tabular.py"))["table"]().split("\n\n")[0]
    assert table in page
