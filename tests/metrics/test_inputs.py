"""What metrics take, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw

import balcal
from balcal import metrics
from balcal.core import BalcalError
from balcal.metrics.inputs import CELLS, LARGE, LOWEST, are_finite, finite_scores, read_logits
from balcal.registry import table

OF_SCORES, OF_VOTES = ("auroc", "fpr95", "aupr_in", "aupr_out"), ("soft_nll", "soft_kl")
OF_TWO_CLASSES = ("binary_ece",)
TESTS = ("spiegelhalter", "spiegelhalter_p", "ks_p", "kuiper_p")  # in test_significance.py
OF_PREDICTIONS = [n for n in table("metrics") if n not in OF_SCORES + OF_VOTES + OF_TWO_CLASSES + TESTS]


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
        metrics.ece(probs=p, labels=y + 0.5)
    with pytest.raises(BalcalError, match="NaN or infinite"):
        metrics.nll(probs=np.full((3, 2), np.nan), labels=[0, 1, 0])
    with pytest.raises(BalcalError, match="NaN or infinite"):
        metrics.ece(log_probs=np.full((3, 2), np.inf), labels=[0, 1, 0])
    with pytest.raises(BalcalError, match="no samples"):
        metrics.accuracy(probs=np.zeros((0, 2)), labels=np.zeros(0, int))
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


def two_classes(seed, n=60):
    rng = np.random.default_rng(seed)
    one = rng.beta(1.5, 1.5, n)
    return one, (rng.random(n) < one**1.3).astype(int)


@pytest.mark.parametrize("name", [*OF_PREDICTIONS, *OF_TWO_CLASSES])
def test_one_column_is_the_probability_of_class_1(name):
    one, y = two_classes(0)
    measure = getattr(metrics, name)
    expected = measure(probs=np.stack([1 - one, one], 1), labels=y)
    columns = {
        "probs": (one, one[:, None], torch.from_numpy(one), one.tolist()),
        "log_probs": (np.log(one), np.log(one)[:, None]),
    }
    for kind, given_as in columns.items():
        for column in given_as:
            assert measure(**{kind: column}, labels=y) == pytest.approx(expected, abs=1e-12), kind
    assert measure(probs=one.astype(np.float32), labels=y) == pytest.approx(expected, abs=1e-5)


def test_log_probabilities_of_one_column_keep_their_digits():
    """Both ends: p of 1e-20, and p so near 1 that only its logarithm can say how near."""
    found = metrics.nll(log_probs=[np.log(1e-20), -1e-20], labels=[0, 0])
    assert found == pytest.approx((1e-20 - np.log(1e-20)) / 2, rel=1e-12)


def test_one_column_in_verdict_summary_batches_and_votes():
    one, y = two_classes(1)
    both = np.stack([1 - one, one], 1)
    assert metrics.verdict(probs=one, labels=y) == metrics.verdict(probs=both, labels=y)
    assert metrics.summary(probs=one, labels=y) == metrics.summary(probs=both, labels=y)
    meter = metrics.ClassBinSums(2)
    meter.update(probs=one[:20], labels=y[:20])
    meter.update(probs=both[20:], labels=y[20:])
    assert meter.compute()["binary_ece"] == pytest.approx(metrics.binary_ece(probs=one, labels=y), abs=1e-12)
    assert metrics.soft_nll(probs=one, soft_labels=y) == pytest.approx(metrics.nll(probs=one, labels=y), abs=1e-12)
    assert read_logits(np.log(one / (1 - one))).softmax(1).numpy() == pytest.approx(both, abs=1e-12)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"probs": [0.2, 1.2]}, "from 0 to 1, and one is 1.2: are these logits"),
        ({"probs": [[-0.2], [0.3]]}, "from 0 to 1, and one is -0.2"),
        ({"log_probs": [0.5, -1.0]}, "at most 0, and one is 0.5"),
        ({"probs": [np.nan, 0.5]}, "NaN"),
        ({"probs": [0, 1]}, "are these class labels"),
        ({"probs": [0.5, 0.5], "labels": [0, 4]}, "of two classes, but a label is 4: pass a column for each class"),
        ({"probs": [0.5, 0.5], "labels": [-1, 1]}, r"not -1 and 1: pass \(labels \+ 1\) // 2"),
    ],
)
def test_what_cannot_be_one_column_is_refused(arrays, complaint):
    with pytest.raises(BalcalError, match=complaint):
        metrics.ece(**{"labels": [0, 1], **arrays})


def test_class_1_by_hand():
    """Bins of five: 0.1 and 0.15 share one; 0.9 and 0.85 another. In `ece` all four share one, and errors cancel."""
    one, y = [0.1, 0.15, 0.9, 0.85], [0, 1, 1, 1]
    assert metrics.binary_ece(probs=one, labels=y, bins=5) == pytest.approx((abs(0.25 - 1) + abs(1.75 - 2)) / 4)
    assert metrics.ece(probs=one, labels=y, bins=5) == pytest.approx(abs(0.9 + 0.85 + 0.9 + 0.85 - 3) / 4)
    with pytest.raises(BalcalError, match="two classes, not 4: use ece or classwise_ece"):
        metrics.binary_ece(probs=draw(0)[0], labels=draw(0)[1])


def test_labels_that_can_mean_only_one_thing_are_converted():
    p, y = draw(7, n=40)
    expected = metrics.nll(probs=p, labels=y)
    one_hot = np.eye(4)[y]
    words = [str(each) for each in y]
    alike = [y.astype(float), y[:, None], one_hot, one_hot.astype(int), one_hot.astype(bool), torch.from_numpy(one_hot)]
    alike += [y.astype(object), y.astype(float).astype(object), y.astype(np.float16), torch.from_numpy(y).bfloat16()]
    alike += [pd.Series(y, index=y[::-1]), pd.DataFrame(one_hot), pd.Categorical(y)]
    for labels in (*alike, words, np.array(words), np.array(words, dtype=object), torch.from_numpy(y).float()):
        assert metrics.nll(probs=p, labels=labels) == expected


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (["cat", "dog"], r"not names like 'cat': pass \[classes.index\(name\) for name in labels\]"),
        (np.array(["0", "-1"], dtype=object), "not names like '-1'"),
        ([0.5, 1.0], "whole numbers, and one is 0.5; votes and probabilities go to soft_nll"),
        ([np.nan, 1.0], "whole numbers, and one is nan"),
        ([[0.5, 0.5], [0.0, 1.0]], "must be one-hot"),
        ([[1, 1], [0, 1]], "must be one-hot"),
        ([[1, 0, 0], [0, 1, 0]], "expected probabilities"),
        ([1e300, 0.0], "out of range"),
        ([None, "1"], "expected numbers"),
    ],
)
def test_labels_that_could_mean_anything_are_refused(labels, complaint):
    with pytest.raises(BalcalError, match=complaint):
        metrics.ece(probs=[[0.5, 0.5], [0.2, 0.8]], labels=labels)


def test_arrays_go_by_name_and_bins_have_two_names():
    p, y = draw(0)
    for name in ("ece", "nll", "summary", "top_label", "aurc"):
        with pytest.raises(BalcalError, match=rf"pass arrays by name: {name}\(probs=..., labels=...\)"):
            getattr(metrics, name)(p, y)
    with pytest.raises(BalcalError, match=r"auroc\(scores_in=..., scores_out=...\)"):
        metrics.auroc([1.0], [2.0])
    with pytest.raises(BalcalError, match="pass arrays by name"):
        metrics.BinSums().update(p, y)
    with pytest.raises(
        BalcalError, match=r"ece has no argument `y_true=`: it takes probs=, log_probs=, labels=, bins="
    ):
        metrics.ece(probs=p, y_true=y)
    for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "summary", "verdict"):
        measure = getattr(metrics, name)
        assert measure(probs=p, labels=y, n_bins=7) == measure(probs=p, labels=y, bins=7), name
    assert metrics.BinSums(n_bins=7).bins == metrics.Ranked(n_bins=7).bins == 7
    with pytest.raises(BalcalError, match="two names of one number"):
        metrics.ece(probs=p, labels=y, bins=7, n_bins=7)
    with pytest.raises(BalcalError, match="nll has no argument `n_bins=`"):
        metrics.nll(probs=p, labels=y, n_bins=7)


def test_rounded_probabilities_are_called_rounded():
    p, y = np.full((3, 30), 1 / 30), [0, 1, 2]
    for dtype in (np.float64, np.float32):
        with pytest.raises(BalcalError, match=r"are rounded to 2 decimals, so that rows .* \(one is off by 0\.1\)"):
            metrics.ece(probs=p.round(2).astype(dtype), labels=y)
    with pytest.warns(UserWarning, match="they are divided by their sum; they seem to be rounded to 4 decimals"):
        metrics.ece(probs=p.round(4), labels=y)
    with pytest.raises(BalcalError, match="are these logits"):
        metrics.ece(probs=[[0.25, 0.5], [0.5, 0.5]], labels=[0, 1])
    with pytest.raises(BalcalError, match=r"are these percent\? Divide them by 100"):
        metrics.ece(probs=[[25.0, 75.0], [50.0, 50.0]], labels=[0, 1])
    for use in (balcal.Calibrator("ts").fit, lambda p, y: balcal.verdict(probs=p, labels=y)):
        with pytest.raises(BalcalError, match="are rounded to 2 decimals"):
            use(np.full((30, 30), 1 / 30).round(2), np.arange(30))


def test_scores_that_need_no_change_are_not_copied():
    scores = torch.tensor([[0.0, -3.0], [LARGE, LARGE - LOWEST]])
    assert finite_scores(scores) is scores
    assert finite_scores(scores[:0]).shape == (0, 2)
    for one in (-torch.inf, torch.nan, 2 * LARGE, -2 * LOWEST):
        assert not are_finite(torch.tensor([[0.0, -3.0], [0.0, one]]))
        mixed = finite_scores(torch.tensor([[0.0, -3.0], [0.0, one]]))
        torch.testing.assert_close(mixed[0], torch.tensor([0.0, -3.0]))
