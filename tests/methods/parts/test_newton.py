"""Newton's method: it arrives from afar, on steep valleys, and says when it does not."""

import pytest
import torch

from balcal.core import BalcalError
from balcal.methods.parts.newton import newton


def solve(objective, hessian, start, small=1e-9):
    """`hessian` is that at the numbers last asked about."""
    state = {}

    def asked(v):
        state["v"] = v
        return objective(v)

    def inverse():
        own = hessian(state["v"]).diag()
        return lambda slope: slope / own

    return newton(asked, lambda d: hessian(state["v"]) @ d, inverse, start, "it", small)


def test_a_steep_valley_at_an_angle():
    turn = torch.linalg.qr(torch.randn(30, 30, generator=torch.Generator().manual_seed(0)).double())[0]
    h = turn @ torch.logspace(0, 6, 30, dtype=torch.float64).diag() @ turn.T
    found = solve(lambda v: ((v - 1) @ h @ (v - 1) / 2, h @ (v - 1)), lambda v: h, torch.zeros(30).double())
    torch.testing.assert_close(found, torch.ones(30).double())


def test_steps_that_lead_too_far_are_halved():
    def objective(v):  # whole steps of Newton diverge from where this is nearly straight
        return v.cosh().log().sum(), v.tanh()

    found = solve(objective, lambda v: (1 - v.tanh().square()).diag(), torch.tensor([3.0, -2.0]).double())
    torch.testing.assert_close(found, torch.zeros(2).double())


def test_the_start_stays_where_nothing_is_lower():
    lowest = torch.ones(3).double()
    found = solve(lambda v: ((v - 1).square().sum() / 2, v - 1), lambda v: torch.eye(3).double(), lowest)
    assert torch.equal(found, lowest)


@pytest.mark.parametrize("slope", [-1.0, float("nan")])
def test_no_minimum_is_said(slope):
    def straight(v):
        return slope * v.sum(), torch.full_like(v, slope)

    with pytest.raises(BalcalError, match=r"the fit of `it` did not settle \(its slope is still .*\): use `ts`, or"):
        newton(straight, torch.zeros_like, lambda: torch.clone, torch.zeros(2).double(), "it", 1e-9)
