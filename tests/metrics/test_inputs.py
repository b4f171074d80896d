"""What metrics take, and what they refuse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw

from balcal import metrics
from balcal.core import BalcalError
from balcal.metrics.inputs import CELLS
from balcal.registry import table

OF_PREDICTIONS = [
    n for n in table("metrics") if n not in ("auroc", "fpr95", "aupr_in", "aupr_out", "soft_nll", "soft_kl")
]


@pytest.mark.parametrize("name", OF_PREDICTIONS)
@given(st.integers(0, 10**6), st.sampled_from([draw, awkward]))
def test_the_order_of_samples_does_not_matter(name, seed, make):
    p, y = make(seed, n=80)
    order = np.random.default_rng(seed).permutation(80)
    measure = getattr(metrics, name)
    assert measure(probs=p[order], labels=y[order]) == pytest.approx(measure(probs=p, labels=y), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_arrays_lists_tensors_and_logarithms_say_the_same(name):
    p, y = draw(3, n=50)
    measure = getattr(metrics, name)
    expected = measure(probs=p, labels=y)
    read_only = p.copy()
    read_only.flags.writeable = False
    for given_as in (p.tolist(), torch.from_numpy(p), read_only, p.astype(">f8"), np.asfortranarray(p)):
        assert measure(probs=given_as, labels=y) == pytest.approx(expected, abs=1e-12)
    assert measure(log_probs=np.log(p), labels=y.tolist()) == pytest.approx(expected, abs=1e-9)
    assert measure(log_probs=torch.from_numpy(p).log().float(), labels=y) == pytest.approx(expected, abs=1e-5)
    assert measure(probs=torch.from_numpy(p).half(), labels=y.astype(np.int32)) == pytest.approx(expected, abs=0.05)


def test_a_table_longer_than_a_chunk_is_read_whole():
    n = CELLS // 4 + 17
    p = np.full((n, 4), 0.1, dtype=np.float32)
    p[:, 2] = 0.7
    y = np.full(n, 2)
    y[-17:] = 0
    assert metrics.accuracy(probs=p, labels=y) == pytest.approx(1 - 17 / n, abs=1e-12)
    assert metrics.nll(probs=p, labels=y) == pytest.approx(
        -((n - 17) * np.log(np.float32(0.7)) + 17 * np.log(np.float32(0.1))) / n, abs=1e-7
    )
    p[-1, 0] = 2.0
    with pytest.raises(BalcalError, match="are these logits"):
        metrics.ece(probs=p, labels=y)


def test_inputs_are_never_guessed():
    p, y = draw(0)
    with pytest.raises(BalcalError, match="exactly one of probs= and log_probs="):
        metrics.ece(labels=y)
    with pytest.raises(BalcalError, match="are these logits"):
        metrics.ece(probs=p * 3, labels=y)
    with pytest.raises(BalcalError, match="are these logits"):
        metrics.ece(probs=np.array([[1.5, -0.5]]), labels=[0])
    with pytest.raises(BalcalError, match="label 4 in the data is out of range"):
        metrics.ece(probs=p, labels=np.full(300, 4))
    with pytest.raises(BalcalError, match="class indices"):
        metrics.ece(probs=p, labels=y.astype(float))
    with pytest.raises(BalcalError, match="NaN or infinite"):
        metrics.nll(probs=np.full((3, 2), np.nan), labels=[0, 1, 0])
    with pytest.raises(BalcalError, match="NaN or infinite"):
        metrics.ece(log_probs=np.full((3, 2), np.inf), labels=[0, 1, 0])
    with pytest.raises(BalcalError, match="no samples"):
        metrics.accuracy(probs=np.zeros((0, 2)), labels=np.zeros(0, int))
    with pytest.raises(BalcalError, match="of two classes pass both"):
        metrics.ece(probs=[[0.9], [0.8]], labels=[0, 0])
    with pytest.raises(BalcalError, match="expected probabilities"):
        metrics.ece(probs=[0.9, 0.8], labels=[0, 0])
    with pytest.raises(BalcalError, match="expected numbers"):
        metrics.ece(probs=[["a", "b"]], labels=[0])


def test_two_classes_need_no_special_care():
    """netcal takes labels 0 and 1 for a binary problem and measures class 1; we measure the top label."""
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    y = np.array([0, 1, 1, 0])
    assert metrics.ece(probs=p, labels=y, bins=1) == pytest.approx(abs(3.0 - 3) / 4, abs=1e-12)
    assert metrics.classwise_ece(probs=np.c_[p, np.zeros(4)], labels=y, bins=1) == pytest.approx(0.4 / 4 * 2 / 3)


def test_every_metric_says_what_it_is():
    for name, metric in table("metrics").items():
        assert metric.better in ("lower", "higher", "neither")
        assert metric.unit
        assert metric.formula
        assert ">>>" in metric.call.__doc__, f"{name} has no example"
        assert getattr(metrics, name) is metric.call
        if metric.better != "neither":
            assert f"{metric.better.capitalize()} is better" in " ".join(metric.call.__doc__.split()), name
