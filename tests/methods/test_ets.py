"""Ensemble temperature scaling: the weights satisfy the conditions of an optimum on the simplex."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from posthoc_helper import calibrated, held_out, nll, vector
from shared_files import needs_vectors

from balcal.core import Outputs
from balcal.methods.ets import EnsembleTemperatureScaling
from balcal.methods.temperature import TemperatureScaling


def slow_mixture(z, t, w):
    """The formula, entry by entry."""
    rows = []
    for row in z.tolist():
        hot, plain = ([math.exp((v - max(row)) / s) for v in row] for s in (t, 1.0))
        rows.append(
            [w[0] * a / sum(hot) + w[1] * b / sum(plain) + w[2] / len(row) for a, b in zip(hot, plain, strict=True)]
        )
    return torch.tensor(rows, dtype=torch.float64)


def slow_slope(z, y, t, w, loss):
    """d loss / d w_j, from the three parts one by one."""
    p, unit = slow_mixture(z, t, w), torch.eye(3).tolist()
    parts = [slow_mixture(z, t, one) for one in unit]
    if loss == "nll":
        i = torch.arange(len(y))
        return [float(-(part[i, y] / p[i, y]).mean()) for part in parts]
    right = torch.eye(z.shape[1])[y]
    return [float((2 * (p - right) * part).mean()) for part in parts]


@pytest.mark.parametrize("loss", ["nll", "mse"])
@given(seed=st.integers(0, 10**6), hot=st.floats(0.2, 8))
def test_no_weight_can_gain(loss, seed, hot):
    z, y = held_out(seed, n=60, hot=hot)
    fitted = EnsembleTemperatureScaling(loss, prior=0).fit(Outputs.of(z), y)
    t, w = float(fitted.temperature), fitted.weights.tolist()
    torch.testing.assert_close(fitted(Outputs.of(z)).exp(), slow_mixture(z, t, w))
    assert sum(w) == pytest.approx(1)
    assert min(w) >= 0
    slope = slow_slope(z, y, t, w, loss)
    level = sum(a * b for a, b in zip(w, slope, strict=True))
    assert min(slope) >= level - 1e-4, "moving weight to any part does not lower the loss"


@given(st.integers(0, 10**6), st.floats(0.2, 8))
def test_never_worse_than_temperature(seed, hot):
    z, y = held_out(seed, n=60, hot=hot)
    scaled = nll(calibrated(TemperatureScaling(), z, y), y)
    assert nll(calibrated(EnsembleTemperatureScaling(prior=0), z, y), y) <= scaled + 1e-7


@needs_vectors
def test_the_shared_vector_by_squared_error():
    z, y, wanted = vector("ets_mse")
    fitted = EnsembleTemperatureScaling("mse", prior=0).fit(Outputs.of(z), y)
    assert float(fitted.temperature) == pytest.approx(wanted["T"], abs=2e-4)
    assert fitted.weights.tolist() == pytest.approx(wanted["weights"], abs=2e-4)
    error = (fitted(Outputs.of(z)).exp() - torch.eye(3)[y]).square().mean()
    assert float(error) == pytest.approx(wanted["objective"], abs=1e-7)


@pytest.mark.parametrize("loss", ["nll", "mse"])
def test_large_logits_do_not_overflow(loss):
    z, y = held_out(0, hot=1000.0)
    told = calibrated(EnsembleTemperatureScaling(loss, prior=0), z, y)
    assert told.isfinite().all()
    assert torch.equal(told.argmax(1), z.argmax(1))


def test_worthless_scores_keep_their_order_under_an_even_prediction():
    z, _ = held_out(1)
    fitted = EnsembleTemperatureScaling(prior=0).fit(Outputs.of(z), z.argmin(1))
    told = fitted(Outputs.of(z.float()))
    assert told.exp().std() < 1e-3
    assert torch.equal(told.argmax(1), z.float().argmax(1))
