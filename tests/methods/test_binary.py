"""Maps for two classes: no slope is left at their optimum, and they find what was done to the odds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_helper import held_out, nll
from scipy.special import expit, logit

from balcal import Calibrator
from balcal.core import BalcalError, Outputs
from balcal.methods.binary import BinaryScaling

KINDS = ["platt", "beta", "quadratic"]


def columns(z, kind):
    s, one = (z[:, 1] - z[:, 0]).numpy(), np.ones(len(z))
    if kind == "beta":
        return np.stack([-np.logaddexp(0, -s), np.logaddexp(0, s), one], 1)
    return np.stack([s, one] if kind == "platt" else [s, s**2, one], 1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), hot=st.floats(0.3, 4))
def test_no_slope_is_left(kind, seed, hot):
    z, y = held_out(seed, n=80, k=2, hot=hot)
    c = BinaryScaling(kind, prior=0).fit(Outputs.of(z), y).coefficients.numpy()
    x = columns(z, kind)
    slope = x.T @ (expit(x @ c) - y.numpy()) / len(y) / np.abs(x).max(0)
    for number, each in enumerate(slope):
        at_edge = kind == "beta" and number < 2 and c[number] == 0
        assert (each > -1e-6) if at_edge else (abs(each) < 1e-6)
    if kind == "beta":
        assert c[:2].min() >= 0


def test_what_was_done_to_the_odds_is_undone():
    rng = np.random.default_rng(0)
    true = expit(rng.normal(0.3, 1.5, 40_000))
    y = (rng.random(len(true)) < true).astype(int)
    for kind, told in [("platt", expit(2 * logit(true) + 1)), ("quadratic", expit(3 * logit(true) - 0.5))]:
        calibrated = Calibrator(kind).fit(np.stack([1 - told, told], 1), y).predict_proba(np.stack([1 - told, told], 1))
        assert np.abs(calibrated[:, 1] - true).max() < 0.03
    # a beta map has its inverse in another family: it must still lower the loss of an asymmetric distortion
    told = true**2 / (true**2 + (1 - true) ** 0.5)
    table = np.stack([1 - told, told], 1)
    after = Calibrator("beta").fit(table, y).predict_proba(table)
    assert np.abs(after[:, 1] - true).mean() < 0.005


@pytest.mark.parametrize("kind", KINDS)
def test_three_classes_are_refused_and_separable_ones_bounded(kind):
    z, y = held_out(0)
    with pytest.raises(BalcalError, match=f"`{kind}` is for two classes, and these are 4: use `svs`, `sms` or `ts`"):
        BinaryScaling(kind).fit(Outputs.of(z), y)
    z, _ = held_out(1, k=2)
    fitted = BinaryScaling(kind).fit(Outputs.of(z), z.argmax(1))
    told = fitted(Outputs.of(z)).exp()
    assert told.min() > 0
    assert nll(told.log(), z.argmax(1)) < nll(z.log_softmax(1), z.argmax(1))
    fresh = BinaryScaling(kind).identity(2)
    torch.testing.assert_close(fresh(Outputs.of(z)), z.log_softmax(1))
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh(Outputs.of(z)), fitted(Outputs.of(z)))
