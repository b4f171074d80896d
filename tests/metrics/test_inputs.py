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


def test_rows_that_are_off_are_divided_by_their_sum():
    """All metrics see the same rows, and say so once each; what float32 does to a row is left alone."""
    p, y = draw(5, n=80)
    off = p * np.where(np.arange(80) % 2, 1.0, 1.009)[:, None]
    for name in OF_PREDICTIONS:
        with pytest.warns(UserWarning, match=r"do not sum to one \(one is off by 0.009\): they are divided") as warned:
            found = getattr(metrics, name)(probs=off, labels=y)
        assert len(warned) == 1
        assert found == pytest.approx(getattr(metrics, name)(probs=p, labels=y), abs=1e-12), name
    with pytest.warns(UserWarning, match="divided by their sum"):
        assert metrics.verdict(log_probs=np.log(off), labels=y).nll == pytest.approx(metrics.nll(probs=p, labels=y))
    with pytest.raises(BalcalError, match=r"is off by 0\.011"):
        metrics.nll(probs=p * 1.011, labels=y)


def test_rounding_is_left_alone_to_the_bit():
    single = torch.randn(500, 1000, generator=torch.Generator().manual_seed(0)).mul(3).softmax(1)
    y = torch.arange(500)
    picked = single[torch.arange(500), y].double()
    assert metrics.nll(probs=single, labels=y) == float(-picked.log().mean())
    nearly = (single.double() * (1 + 5e-6)).numpy()
    assert metrics.nll(probs=nearly, labels=y) == pytest.approx(-np.log(nearly[range(500), y]).mean(), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_reason_to_warn(dtype):
    """It is off by more than float32 could be: divided by its sum, without a word."""
    p, y = draw(6, n=60, k=300)
    half = torch.from_numpy(p).log().to(dtype)
    sums = half.double().exp().sum(1)
    assert (sums - 1).abs().max() > 1e-4
    exact = (half.double() - torch.where((sums - 1).abs() > 1e-5, sums, 1).log()[:, None]).numpy()
    assert metrics.nll(log_probs=half, labels=y) == pytest.approx(-exact[range(60), y].mean(), abs=1e-12)
    assert metrics.accuracy(log_probs=half, labels=y) == (half.float().numpy().argmax(1) == y).mean()


MASKED = np.ma.masked_array([[0.5, 0.5], [0.9, 0.1]], mask=[[0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("probs", "labels", "complaint"),
    [
        (MASKED, [0, 0], "masked entries: leave those samples out"),
        ([*MASKED], [0, 0], "masked entries"),
        ([[0.5, 0.5], [np.ma.masked, 0.1]], [0, 0], "cannot be read as an array of numbers"),
        ([[0.5, 0.5]] * 2, np.ma.masked_array([0, 1], mask=[0, 1]), "the labels has masked entries"),
        ([[0.5, 0.5], [1.0]], [0, 0], "its rows must be equally long"),
        ([[0.5, 0.5], None], [0, 0], "cannot be read|expected numbers"),
        (0.5, [0], "a row for each sample"),
        ([[0.5, 0.5]], 0, "N labels"),
        ([[0.5, 0.5]], None, "pass labels= as well"),
        ([[0.5, 0.5]], [2**70], "expected numbers"),
        ([[0.5, 0.5]], np.array([2**63], dtype=np.uint64), "label 9223372036854775808 .* out of range"),
        ([[0.5, 0.5]], np.array([2**16 - 1], dtype=np.uint16), "label 65535 .* out of range"),
        ([[0.5, 0.5]], torch.tensor([2**64 - 1], dtype=torch.uint64), "label 18446744073709551615 .* out of range"),
        ([[0.5, 0.5]], [1j], "expected numbers"),
        (torch.tensor([[0.5, 0.5]]).to_sparse(), [0], "expected numbers"),
        (torch.tensor([[0.5 + 0j, 0.5]]), [0], "expected numbers"),
        (np.array([["2020-01-01", "2020-01-02"]], dtype=">M8[D]"), [0], "expected numbers"),
        ({"a": 1}, [0], "expected numbers"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(probs, labels, complaint):
    with pytest.raises(BalcalError, match=complaint):
        metrics.ece(probs=probs, labels=labels)


def test_what_is_one_is_read():
    nothing_hidden = np.ma.masked_array([[0.5, 0.5], [0.75, 0.25]], mask=False)
    with_slope = torch.tensor([[0.5, 0.5], [0.75, 0.25]], requires_grad=True)
    for probs in (nothing_hidden, with_slope, [*with_slope], [*nothing_hidden], np.array([[1, 1], [1.5, 0.5]]) / 2):
        for labels in ([0, 0], np.array([0, 0], dtype=np.uint64), np.array([0, 0], dtype=">u4"), [False, False]):
            assert metrics.mean_confidence(probs=probs, labels=labels) == 0.625
            assert metrics.accuracy(probs=probs, labels=labels) == 1
    with pytest.raises(BalcalError, match="a row for each sample"):
        metrics.entropy(probs=0.5)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True, "15", None, 10**9, np.nan])
def test_bins_are_a_number_of_bins(bins):
    p, y = draw(0)
    for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "summary", "top_label", "verdict"):
        with pytest.raises(BalcalError, match=r"at least one bin|the number of bins must be"):
            getattr(metrics, name)(probs=p, labels=y, bins=bins)
    for kind in (metrics.BinSums, metrics.Ranked, lambda bins: metrics.ClassBinSums(4, bins)):
        with pytest.raises(BalcalError, match=r"at least one bin|the number of bins must be"):
            kind(bins)


def test_accumulators_refuse_what_is_not_theirs():
    p, y = draw(0)
    with pytest.raises(BalcalError, match="this counts 5 classes, and the predictions have 4"):
        metrics.ClassBinSums(5).update(probs=p, labels=y)
    with pytest.raises(BalcalError, match="the number of classes must be at least 2"):
        metrics.ClassBinSums(-1)
    with pytest.raises(BalcalError, match="cannot merge a dict"):
        metrics.BinSums().merge({})
    for sigma in (0, -1, np.nan, np.inf, "a"):
        with pytest.raises(BalcalError, match="the width sigma of smooth ECE must be"):
            metrics.smooth_ece(probs=p, labels=y, sigma=sigma)
