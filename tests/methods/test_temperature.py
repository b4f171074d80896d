"""Temperature scaling finds the optimum, wherever it lies."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shared_files import VECTORS, needs_vectors

from balcal.core import BalcalError, Outputs
from balcal.methods.temperature import Temperature, TemperatureScaling, solve_temperature
from balcal.metrics import ece


def draw(seed, hot=1.0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (400,), generator=rng)
    z = torch.randn(400, 5, generator=rng).double() * 2
    z[torch.arange(400), y] += 1.5
    return z * hot, y


def nll(z, y, t):
    return float(torch.nn.functional.cross_entropy(z / t, y))


@given(st.integers(0, 10**6), st.floats(0.05, 50))
def test_no_other_temperature_is_better(seed, hot):
    z, y = draw(seed, hot)
    t = solve_temperature(z, y)
    assert all(nll(z, y, t) <= nll(z, y, t * other) + 1e-12 for other in (0.5, 0.99, 1.01, 2.0, 1 / t))
    assert solve_temperature(z * 4, y) == pytest.approx(4 * t, rel=1e-6), "hotter logits, hotter optimum"
    assert solve_temperature(z.log_softmax(1), y) == pytest.approx(t, rel=1e-6), "log-probabilities are logits"


def test_degenerate_sets_are_bounded_or_refused():
    z, y = draw(0)
    assert solve_temperature(z, z.argmax(1)) == pytest.approx(1e-3), "separable: as cold as it gets"
    with pytest.warns(UserWarning, match="all 400 calibration samples are right.*: hold out more data"):
        TemperatureScaling(prior=0).fit(Outputs.of(z), z.argmax(1))
    assert solve_temperature(z, z.argmin(1)) == pytest.approx(1e3), "always wrong: as hot as it gets"
    with pytest.raises(BalcalError, match="empty split"):
        solve_temperature(z[:0], y[:0])
    with pytest.raises(BalcalError, match="NaN"):
        solve_temperature(z * float("nan"), y)
    certain = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0], [0.0, -torch.inf]])
    assert solve_temperature(certain, torch.tensor([0, 1, 1])) > 1


def test_a_few_imagined_samples_keep_a_small_set_from_being_taken_at_its_word():
    """Ten right answers of ten at odds of nine to one: with five more that are right in 4.5 cases, 14.5 of 15 are."""
    z = torch.tensor([[math.log(9.0), 0.0]] * 5 + [[0.0, math.log(9.0)]] * 5).double()
    fitted = TemperatureScaling().fit(Outputs.of(z), z.argmax(1))
    told = (z / float(fitted.temperature)).softmax(1).amax(1)
    torch.testing.assert_close(told, torch.full((10,), 14.5 / 15).double(), rtol=1e-6, atol=0)
    many = TemperatureScaling().fit(Outputs.of(z.repeat(1000, 1)), z.argmax(1).repeat(1000))
    assert float((z / float(many.temperature)).softmax(1).amax()) > 0.9999


def test_map_keeps_the_argmax_and_the_total():
    z, y = draw(1)
    fitted = TemperatureScaling().fit(Outputs.of(z.log_softmax(1)), y)
    told = fitted(Outputs.of(z.log_softmax(1)))
    assert torch.equal(told.argmax(1), z.argmax(1))
    torch.testing.assert_close(told.exp().sum(1), torch.ones(400, dtype=torch.float64))
    assert torch.equal(Temperature()(Outputs.of(z.log_softmax(1))), z.log_softmax(1).log_softmax(1))


def test_probabilities_are_those_of_the_log_probabilities():
    z, y = draw(2)
    z[0, 1:] = -torch.inf
    fitted = TemperatureScaling().fit(Outputs.of(z), y)
    torch.testing.assert_close(fitted.probs(Outputs.of(z)), fitted(Outputs.of(z)).exp(), rtol=1e-12, atol=0)
    half = fitted.probs(Outputs.of(z.half()))
    assert half.dtype == torch.float16
    assert half.isfinite().all()


@pytest.mark.parametrize("hot", [0.1, 1.0, 100.0])
def test_large_tables_are_solved_as_exactly_as_temperatures_are_kept(hot, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(2200, 500, generator=rng).double()
    y = (2 * z - torch.rand(z.shape, generator=rng).log().neg().log()).argmax(1)
    z = hot * z + 1000 * torch.randn(2200, 1, generator=rng).double()
    found = solve_temperature(z, y, prior=5)
    monkeypatch.setattr("balcal.methods.temperature.FLOAT32_FROM", math.inf)
    assert found == pytest.approx(solve_temperature(z, y, prior=5), rel=1e-7)


def vectors():
    block = json.loads(VECTORS.read_text())["posthoc"]
    z, y = torch.tensor(block["logits"], dtype=torch.float64), torch.tensor(block["targets"])
    return z, y, next(item for item in block["items"] if item["id"] == "ts_nll")


@needs_vectors
def test_the_shared_vector_where_the_usual_recipe_stops_short():
    z, y, wanted = vectors()
    t = solve_temperature(z, y)
    assert t == pytest.approx(wanted["expected_T"], abs=1e-6)
    assert nll(z, y, 1.0) == pytest.approx(wanted["nll_before"], abs=1e-7)
    assert nll(z, y, t) == pytest.approx(wanted["nll_after"], abs=1e-7)
    assert solve_temperature(4 * z, y) == pytest.approx(4 * wanted["expected_T"], abs=4e-6)


@needs_vectors
def test_the_grid_of_the_papers_code():
    z, y, _ = vectors()
    block = json.loads(VECTORS.read_text())["posthoc"]
    wanted = next(item for item in block["items"] if item["id"] == "ts_grid_ece")
    t = float(TemperatureScaling(by="ece").fit(Outputs.of(z), y).temperature)
    assert t == pytest.approx(wanted["expected_T"], abs=1e-6)
    assert ece(probs=(z / t).softmax(1), labels=y) == pytest.approx(wanted["ece"], abs=1e-6)
