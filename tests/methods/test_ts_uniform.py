"""A temperature and a share of the uniform distribution: the optimum of both, and what it is for."""

import numpy as np
import pytest
import torch
from posthoc_helper import calibrated, held_out, nll
from scipy.optimize import minimize

from balcal import Calibrator
from balcal.core import Outputs
from balcal.methods.parts.held_out import check_held_out
from balcal.methods.temperature import TemperatureScaling
from balcal.methods.ts_uniform import UniformScaling, solve_mixture


def noisy(seed, n, share, k=5, hot=2.0):
    """Scores that are too hot by a factor, and labels of which a share is drawn blindly."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 4
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    blind = rng.random(n) < share
    y[blind] = rng.integers(k, size=blind.sum())
    return torch.from_numpy(hot * z), torch.from_numpy(y)


def slow_nll(z, y, temperature, share):
    """The formula, sample by sample."""
    total = 0.0
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        e = [np.exp((score - max(row)) / temperature) for score in row]
        total -= np.log((1 - share) * e[label] / sum(e) + share / len(row))
    return total / len(y)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_pair_is_better(seed):
    """An independent search in both numbers at once, from four starts."""
    z, y = noisy(seed, 400, share=0.05)
    found = UniformScaling(prior=0).fit(Outputs.of(z), y)
    t, u = float(found.temperature), float(found.uniform)
    assert u > 0.005
    torch.testing.assert_close(nll(found(Outputs.of(z)), y), slow_nll(z, y, t, u))

    def objective(x):
        return slow_nll(z, y, np.exp(x[0]), 0.5 / (1 + np.exp(-x[1])))

    best = min(
        minimize(objective, [np.log(start), logit], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12}).fun
        for start in (0.5, 4.0)
        for logit in (-5.0, 0.0)
    )
    assert slow_nll(z, y, t, u) == pytest.approx(best, abs=1e-8)


def test_it_finds_the_share_and_what_remains_is_calibrated():
    z, y = noisy(0, 20_000, share=0.03)
    fitted = UniformScaling().fit(Outputs.of(z), y)
    assert float(fitted.uniform) == pytest.approx(0.03, abs=0.006)
    assert float(fitted.temperature) == pytest.approx(2.0, rel=0.03)
    rest, labels = noisy(1, 20_000, share=0.03)
    alone = TemperatureScaling().fit(Outputs.of(z), y)
    assert nll(fitted(Outputs.of(rest)), labels) < nll(alone(Outputs.of(rest)), labels) - 0.01


def test_without_a_share_to_find_it_is_temperature_scaling():
    """Labels that are never more surprising than the model says: the same map, to the bit."""
    z, y = noisy(2, 500, share=0.0, hot=0.5)
    assert torch.equal(
        UniformScaling().fit(Outputs.of(z), y)(Outputs.of(z)), TemperatureScaling().fit(Outputs.of(z), y)(Outputs.of(z))
    )


def test_it_keeps_the_predicted_class_and_is_never_worse_where_it_is_fitted():
    for seed in range(20):
        z, y = held_out(seed, n=60, hot=4.0)
        ours, alone = (calibrated(role(prior=0), z, y) for role in (UniformScaling, TemperatureScaling))
        assert torch.equal(ours.argmax(1), z.argmax(1))
        assert nll(ours, y) <= nll(alone, y) + 1e-9


def test_chance_labels_are_taken_as_such():
    """Half at most, whatever the labels: a temperature says the rest."""
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(300, 3)) * 5)
    found = solve_mixture(check_held_out(Outputs.of(z), torch.from_numpy(rng.integers(3, size=300)), "it"), 5.0)
    assert found.share <= 0.5
    assert found.temperature > 5


def test_by_name():
    z, y = noisy(3, 2_000, share=0.05)
    fitted = Calibrator("ts-uniform", inputs="logits").fit(z.numpy(), y.numpy())
    assert fitted.chosen == "ts-uniform"
    # the least that is left for any class is its part of the share
    assert fitted.predict_proba([[1000.0, 0, 0, 0, 0]])[0, 1] == pytest.approx(float(fitted.map_.uniform) / 5)
