"""Every accumulator gives the same figures under any split into batches and processes, and those of the functions."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import awkward, draw

from balcal import metrics
from balcal.core import BalcalError
from balcal.methods.temperature import solve_temperature
from balcal.metrics.epoch_meter import TemperedNll, TopLabel
from balcal.metrics.inputs import finite_scores

MAKERS = {
    "BinSums": metrics.BinSums,
    "ClassBinSums": lambda: metrics.ClassBinSums(4),
    "ScoreSums": metrics.ScoreSums,
    "SmoothSums": metrics.SmoothSums,
    "Ranked": metrics.Ranked,
}


@pytest.mark.parametrize("name", MAKERS)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 199), max_size=5), st.sampled_from([draw, awkward]))
def test_any_split_gives_the_figures_of_the_whole(name, seed, cuts, make):
    p, y = make(seed, n=200)
    edges = sorted({0, 200, *cuts})
    parts = [MAKERS[name]() for _ in range(2)]
    for i, (a, b) in enumerate(itertools.pairwise(edges)):
        parts[i % 2].update(probs=p[a:b], labels=y[a:b])
    parts[1].merge(parts[0])
    figures = parts[1].compute()
    for figure, value in figures.items():
        assert value == pytest.approx(getattr(metrics, figure)(probs=p, labels=y), abs=1e-12), figure


def test_every_prediction_metric_streams_or_says_why():
    p, y = draw(0)
    streamed = set()
    for make in MAKERS.values():
        meter = make()
        meter.update(probs=p, labels=y)
        streamed |= set(meter.compute())
    assert streamed >= set(metrics.summary(probs=p, labels=y)) - {"brier_per_class"}


@pytest.mark.parametrize("name", [n for n in MAKERS if n != "Ranked"])
def test_memory_does_not_grow(name):
    meter = MAKERS[name]()
    size = sum(t.numel() for t in meter.sums.values())
    for seed in range(5):
        p, y = draw(seed)
        meter.update(log_probs=np.log(p), labels=y)
    assert sum(t.numel() for t in meter.sums.values()) == size


def test_a_refused_batch_leaves_nothing_behind():
    p, y = draw(0)
    for make in MAKERS.values():
        meter = make()
        meter.update(probs=p, labels=y)
        before = meter.compute()
        with pytest.raises(BalcalError):
            meter.update(probs=p * 2, labels=y)
        assert meter.compute() == before


def test_merging_apples_and_pears_is_refused():
    with pytest.raises(BalcalError, match="cannot merge a ScoreSums into a BinSums"):
        metrics.BinSums().merge(metrics.ScoreSums())
    with pytest.raises(BalcalError, match="other settings"):
        metrics.BinSums(10).merge(metrics.BinSums(15))
    with pytest.raises(BalcalError, match="cannot merge a BinSums into a Ranked"):
        metrics.Ranked().merge(metrics.BinSums())
    for make in MAKERS.values():
        with pytest.raises(BalcalError, match="no samples"):
            make().compute()


@given(st.integers(0, 10**6), st.integers(1, 299))
def test_the_meter_of_the_loop(seed, cut):
    p, y = draw(seed)
    log_p, labels = torch.from_numpy(p).log(), torch.from_numpy(y)
    meter = TopLabel()
    meter.add(log_p[:cut], labels[:cut])
    meter.add(log_p[cut:], labels[cut:])
    figures = meter.compute()
    assert figures["ece"] == pytest.approx(metrics.ece(probs=p, labels=y), abs=1e-9)
    assert figures["nll"] == pytest.approx(metrics.nll(probs=p, labels=y), abs=1e-9)
    assert figures["acc"] == pytest.approx(metrics.accuracy(probs=p, labels=y), abs=1e-12)
    assert figures["conf"] == pytest.approx(metrics.mean_confidence(probs=p, labels=y), abs=1e-12)


@pytest.mark.parametrize("volume", [0.25, 1.0, 3.0, 10.0])
def test_the_nll_after_a_temperature_needs_no_stored_predictions(volume):
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(5, (600,), generator=rng)
    z = volume * (torch.nn.functional.one_hot(y, 5) + torch.randn(600, 5, generator=rng))
    z[0, (y[0] + 1) % 5] = -torch.inf
    log_probs = z.log_softmax(1)
    whole, first, second = (TemperedNll() for _ in range(3))
    whole.add(log_probs, y)
    first.add(log_probs[:77], y[:77])
    second.add(log_probs[77:], y[77:])
    for mine, other in zip(first.tensors(), second.tensors(), strict=True):
        mine.add_(other)
    assert first.compute() == pytest.approx(whole.compute(), rel=1e-6)
    best = finite_scores(log_probs.double()) / solve_temperature(log_probs, y)
    exact = float(torch.nn.functional.cross_entropy(best, y))
    assert whole.compute() == pytest.approx(exact, rel=1e-3)
    assert whole.compute() <= float(torch.nn.functional.cross_entropy(finite_scores(log_probs), y)) + 1e-6
