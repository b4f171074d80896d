"""Our conventions and theirs, against the libraries themselves. Where they differ, it is pinned down here."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import awkward, draw
from sklearn.calibration import calibration_curve

from balcal import metrics
from balcal.metrics.audit import audit

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from netcal import metrics as netcal
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_auroc,
        multiclass_calibration_error,
    )

pytestmark = pytest.mark.filterwarnings("ignore")


def theirs(p, y, **more):
    return float(multiclass_calibration_error(torch.from_numpy(p), torch.from_numpy(y), p.shape[1], **more))


def value(p, y, name):
    return next(f.value for f in audit(probs=p, labels=y).findings if f.name == name)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([1, 7, 10, 15]))
def test_where_no_confidence_lies_on_an_edge_all_agree(seed, bins):
    p, y = draw(seed, n=150)
    given_as = {"probs": p, "labels": y, "bins": bins}  # torchmetrics adds up in float32, hence the tolerance
    assert metrics.ece(**given_as) == pytest.approx(theirs(p, y, n_bins=bins), abs=1e-6)
    assert metrics.mce(**given_as) == pytest.approx(theirs(p, y, n_bins=bins, norm="max"), abs=1e-6)
    assert metrics.rmsce(**given_as) == pytest.approx(theirs(p, y, n_bins=bins, norm="l2"), abs=1e-6)
    assert metrics.ece(**given_as) == pytest.approx(netcal.ECE(bins).measure(p, y), abs=1e-6)
    assert metrics.mce(**given_as) == pytest.approx(netcal.MCE(bins).measure(p, y), abs=1e-6)
    right = multiclass_accuracy(torch.from_numpy(p), torch.from_numpy(y), p.shape[1], average="micro")
    assert metrics.accuracy(probs=p, labels=y) == pytest.approx(float(right))


def test_scikit_learn_draws_the_same_bins():
    """calibration_curve gives frequency and confidence per bin of one class; ours is the top label of two classes."""
    rng = np.random.default_rng(0)
    conf = 0.5 + 0.5 * rng.random(500)
    right = rng.random(500) < conf
    frequency, confidence = calibration_curve(right, conf, n_bins=15)
    table = metrics.BinSums()
    table.update(probs=np.stack([conf, 1 - conf], 1), labels=(~right).astype(int))
    filled = table.table()
    some = filled.count > 0
    assert (filled.right / np.maximum(filled.count, 1))[some] == pytest.approx(frequency)
    assert (filled.conf / np.maximum(filled.count, 1))[some] == pytest.approx(confidence)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([np.float32, np.float64]))
def test_the_audit_says_what_the_libraries_say(seed, dtype):
    """On edges, on ties, at exactly 1: the reconstructed conventions give the libraries' own numbers."""
    p, y = awkward(seed)
    p = p.astype(dtype)
    assert value(p, y, "torchmetrics") == pytest.approx(theirs(p, y, n_bins=15), abs=1e-6)
    assert value(p, y, "netcal") == pytest.approx(netcal.ECE(15).measure(p, y), abs=1e-6)


def hidden_bin():
    """30 % of the samples at exactly 1 with accuracy 98.5 %, half just below and under-confident by two points."""
    rng = np.random.default_rng(0)
    conf = np.concatenate([np.ones(3000), rng.uniform(0.934, 0.999, 5000), rng.uniform(0.4, 0.934, 2000)])
    chance = np.concatenate([np.full(3000, 0.985), (conf[3000:8000] + 0.02).clip(max=1), conf[8000:]])
    right = rng.random(10_000) < chance
    p = np.stack([conf, *[(1 - conf) / 3] * 3], 1)
    return p, np.where(right, 0, rng.integers(1, 4, 10_000))


def test_the_hidden_bin_doubles_the_error_and_the_audit_says_why():
    p, y = hidden_bin()
    ours, hidden = metrics.ece(probs=p, labels=y), theirs(p, y, n_bins=15)
    assert hidden > ours + 0.008
    finding = next(f for f in audit(probs=p, labels=y).findings if f.name == "torchmetrics")
    assert finding.value == pytest.approx(hidden, abs=1e-6)
    assert finding.why.startswith("3,000 confidences equal 1 and get a hidden 16th bin")
    assert "no longer cancel" in finding.why
    assert value(p, y, "netcal") == pytest.approx(ours, abs=1e-9)
    assert value(p, y, "Guo et al.") == pytest.approx(ours, abs=1e-9)


def test_ours_puts_an_edge_below_and_theirs_above():
    p = np.array([[0.6, 0.2, 0.2], [0.5, 0.25, 0.25], [0.7, 0.2, 0.1]])
    y = np.array([0, 1, 2])
    assert metrics.ece(probs=p, labels=y, bins=5) == pytest.approx((abs(1.1 - 1) + 0.7) / 3)
    assert theirs(p, y, n_bins=5) == pytest.approx((0.5 + abs(1.3 - 1)) / 3)
    assert netcal.ECE(5).measure(p, y) == pytest.approx((0.5 + abs(1.3 - 1)) / 3)


def test_confidence_0_and_empty_bins():
    """A row of zeros is no distribution: we refuse it, they measure it. Empty bins count for nobody."""
    with pytest.raises(Exception, match="sum to one"):
        metrics.ece(probs=[[0.0, 0.0, 0.0]], labels=[0])
    assert metrics.ece(probs=[[0.9, 0.1, 0.0]], labels=[0], bins=1000) == pytest.approx(0.1)
    one = np.array([[0.9, 0.05, 0.05]])
    assert theirs(one, np.array([0]), n_bins=1000) == pytest.approx(0.1)


def test_netcal_takes_two_labels_for_a_binary_problem():
    p, _ = draw(0, n=40, k=3)
    y = np.arange(40) % 2
    with pytest.raises(RuntimeError, match="Asserted binary"):
        netcal.ECE(15).measure(p, y)
    assert "refuses this input" in next(f.why for f in audit(probs=p, labels=y).findings if f.name == "netcal")
    two = np.array([[0.9, 0.1], [0.1, 0.9], [0.7, 0.3], [0.6, 0.4]])
    labels = np.array([0, 0, 1, 0])
    of_class_1 = metrics.classwise_ece(probs=two, labels=labels)
    assert netcal.ECE(15).measure(two, labels) == pytest.approx(of_class_1)  # both classes of two have the same error
    assert metrics.ece(probs=two, labels=labels) != pytest.approx(of_class_1)


def test_torchmetrics_guesses_whether_it_sees_logits():
    """Logits that happen to lie in [0, 1] are measured as if they were probabilities; ours are refused."""
    z = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    y = torch.tensor([0, 1])
    guessed = float(multiclass_calibration_error(z, y, 3, n_bins=15))
    meant = float(multiclass_calibration_error(z.softmax(1), y, 3, n_bins=15))
    assert abs(guessed - meant) > 0.3
    with pytest.raises(Exception, match="are these logits"):
        metrics.ece(probs=z, labels=y)


def test_auroc_of_torchmetrics():
    rng = np.random.default_rng(0)
    id_scores, ood_scores = rng.random(50) + 0.2, rng.random(50)
    scores = np.r_[id_scores, ood_scores] / 1.3
    table = torch.from_numpy(np.stack([1 - scores, scores], 1))
    labels = torch.from_numpy(np.r_[np.ones(50, int), np.zeros(50, int)])
    expected = float(multiclass_auroc(table, labels, 2))
    assert metrics.auroc(scores_in=id_scores, scores_out=ood_scores) == pytest.approx(expected, abs=1e-6)
