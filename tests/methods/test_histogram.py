"""Histogram binning, counted by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from posthoc_helper import held_out, vector
from shared_files import needs_vectors

from balcal.core import Outputs
from balcal.methods.histogram import HistogramBinning


def slow_table(p, y, bins):
    """For each entry: the share of its class among the samples in its bin (a, b]."""
    place = [[max(0, math.ceil(v * bins) - 1) for v in row] for row in p.tolist()]
    table = []
    for row in place:
        shares = []
        for k, b in enumerate(row):
            inside = [label == k for other, label in zip(place, y.tolist(), strict=True) if other[k] == b]
            shares.append(sum(inside) / len(inside))
        table.append(shares)
    return torch.tensor(table, dtype=torch.float64)


@given(st.integers(0, 10**6), st.integers(1, 20))
def test_the_table_is_the_count(seed, bins):
    z, y = held_out(seed, n=60)
    fitted = HistogramBinning(bins).fit(Outputs.of(z), y)
    wanted = slow_table(z.softmax(1), y, bins)
    torch.testing.assert_close(fitted.table(z.softmax(1)), wanted, rtol=0, atol=1e-6)
    held = wanted.clamp(1 / 120, 1 - 1 / 120)
    torch.testing.assert_close(fitted(Outputs.of(z)).exp(), held / held.sum(1, keepdim=True), rtol=1e-6, atol=1e-6)


def test_bins_are_closed_on_the_right_and_an_empty_one_says_its_centre():
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double().repeat(6, 1)
    fitted = HistogramBinning(bins=4).fit(Outputs.of(p.log()), torch.tensor([0, 1] * 3 + [1, 1] * 3))
    asked = torch.tensor([[0.25, 0.75], [0.26, 0.74], [0.0, 1.0], [0.51, 0.49]]).double()
    wanted = [[0.5, 0.5], [0.0, 0.5], [0.5, 0.875], [0.625, 1.0]]
    torch.testing.assert_close(fitted.table(asked), torch.tensor(wanted).double())


@needs_vectors
def test_the_shared_vector():
    z, y, wanted = vector("histogram_binning_ovr15")
    table = HistogramBinning().fit(Outputs.of(z), y).table(z.softmax(1))[:3]
    torch.testing.assert_close(table, torch.tensor(wanted["first_rows"]).double(), rtol=0, atol=5e-8)


def test_a_row_of_zeros_becomes_even_odds():
    """Each class was never right where it stands."""
    p = [[0.42, 0.48, 0.1], [0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.05, 0.05, 0.9]]
    z, y = torch.tensor(p, dtype=torch.float64).log().repeat(8, 1), torch.tensor([1, 0, 0, 2] * 8)
    lost = torch.tensor([[0.41, 0.295, 0.295]], dtype=torch.float64)
    fitted = HistogramBinning().fit(Outputs.of(z), y)
    assert fitted.table(lost).tolist() == [[0, 0, 0]]
    assert fitted(Outputs.of(lost.log())).exp().tolist()[0] == pytest.approx([1 / 3] * 3)
