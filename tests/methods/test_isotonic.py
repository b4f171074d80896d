"""Isotonic regression against the min-max formula, and what becomes of 0 and 1."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_helper import held_out, nll, vector
from shared_files import needs_vectors

from balcal.core import Outputs
from balcal.methods.isotonic import IsotonicCalibration


def slow_isotonic(p, right):
    """f(p_i) = max over a <= i of min over b >= i of the mean of right[a..b], in order of p."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    r = [right[i] for i in order]
    fit = [0.0] * len(p)
    for place, i in enumerate(order):
        fit[i] = max(min(sum(r[a : b + 1]) / (b - a + 1) for b in range(place, len(r))) for a in range(place + 1))
    return fit


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.floats(0.3, 4))
def test_the_table_is_the_min_max_formula(seed, hot):
    z, y = held_out(seed, n=20, k=3, hot=hot)
    p, right = z.softmax(1), torch.eye(3).double()[y]
    pooled = IsotonicCalibration().fit(Outputs.of(z), y).table(p)
    slow = slow_isotonic(p.flatten().tolist(), right.flatten().tolist())
    torch.testing.assert_close(pooled.flatten(), torch.tensor(slow).double(), rtol=0, atol=1e-6)
    apart = IsotonicCalibration(pooled=False).fit(Outputs.of(z), y).table(p)
    for k in range(3):
        slow = slow_isotonic(p[:, k].tolist(), right[:, k].tolist())
        torch.testing.assert_close(apart[:, k], torch.tensor(slow).double(), rtol=0, atol=1e-6)


@needs_vectors
@pytest.mark.parametrize(("name", "pooled"), [("isotonic_pooled_irm", True), ("isotonic_ova", False)])
def test_the_shared_vectors(name, pooled):
    z, y, wanted = vector(name)
    table = IsotonicCalibration(pooled).fit(Outputs.of(z), y).table(z.softmax(1))[:3]
    torch.testing.assert_close(table, torch.tensor(wanted["first_rows"]).double(), rtol=0, atol=5e-8)


def test_between_points_it_is_linear_and_outside_flat():
    x = torch.tensor([0.2, 0.4, 0.6, 0.8]).double()
    z, y = torch.stack([1 - x, x], 1).log().repeat(3, 1), torch.tensor([0, 0, 1, 1] * 3)
    table = IsotonicCalibration(pooled=False).fit(Outputs.of(z), y).table
    for at, wanted in [(0.1, 0.0), (0.4, 0.0), (0.45, 0.25), (0.5, 0.5), (0.6, 1.0), (0.9, 1.0)]:
        assert float(table(torch.tensor([[1 - at, at]]).double())[0, 1]) == pytest.approx(wanted)


@pytest.mark.parametrize("pooled", [True, False])
def test_zero_and_one_are_lifted_by_half_a_sample(pooled):
    z, y = held_out(0)
    fitted = IsotonicCalibration(pooled).fit(Outputs.of(z), y)
    table = fitted.table(z.softmax(1))
    assert table.min() == 0
    n = table.numel() if pooled else len(y)
    assert float(fitted.floor) == 1 / (2 * n)
    sure = torch.tensor([[0.0, -50.0, -50.0, -50.0]]).double()
    assert fitted(Outputs.of(sure)).isfinite().all()
    held = table.clamp(float(fitted.floor), 1 - float(fitted.floor)) + 1e-9 * z.softmax(1) * pooled
    torch.testing.assert_close(fitted(Outputs.of(z)).exp(), held / held.sum(1, keepdim=True))
    assert nll(fitted(Outputs.of(z)), y) < nll(z.log_softmax(1), y)


def test_pooled_keeps_the_order_of_all_classes():
    z, y = held_out(1)
    fitted = IsotonicCalibration().fit(Outputs.of(z), y)
    assert (fitted.table(z.softmax(1)).sort(1).values.diff(dim=1) == 0).any(), "though its steps are flat"
    assert torch.equal(fitted(Outputs.of(z)).argsort(1), z.argsort(1))


def test_a_row_of_zeros_becomes_even_odds():
    """Each class was never right where it stands, or below."""
    p = [[0.42, 0.48, 0.1], [0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.05, 0.05, 0.9]]
    z, y = torch.tensor(p, dtype=torch.float64).log().repeat(8, 1), torch.tensor([1, 0, 0, 2] * 8)
    lost = torch.tensor([[0.41, 0.295, 0.295]], dtype=torch.float64)
    fitted = IsotonicCalibration(pooled=False).fit(Outputs.of(z), y)
    assert fitted.table(lost).tolist() == [[0, 0, 0]]
    assert fitted(Outputs.of(lost.log())).exp().tolist()[0] == pytest.approx([1 / 3] * 3)
