"""Vector, matrix and Dirichlet: at the optimum the slope, summed sample by sample, is nothing."""

import math

import pytest
import torch
from posthoc_helper import calibrated, held_out, nll, vector
from shared_files import needs_vectors

from balcal.core import Outputs
from balcal.methods import scaling
from balcal.methods.dirichlet import DirichletCalibration
from balcal.methods.parts.affine import choose_penalty
from balcal.methods.parts.held_out import check_held_out
from balcal.methods.scaling import MatrixScaling, VectorScaling


def slow_slopes(x, y, weight, bias, penalty=0.0):
    """d objective / d W and d b, and the objective, by plain sums."""
    k, n = len(bias), len(y)
    slope_w, slope_b, value = [[0.0] * k for _ in range(k)], [0.0] * k, 0.0
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        z = [sum(weight[j][i] * row[i] for i in range(k)) + bias[j] for j in range(k)]
        top = max(z)
        total = sum(math.exp(v - top) for v in z)
        value -= (z[label] - top - math.log(total)) / n
        for j in range(k):
            miss = (math.exp(z[j] - top) / total - (j == label)) / n
            slope_b[j] += miss
            for i in range(k):
                slope_w[j][i] += miss * row[i]
    for j in range(k):
        slope_b[j] += 2 * penalty * bias[j] / k
        value += penalty * bias[j] ** 2 / k
        for i in range(k):
            if i != j:
                slope_w[j][i] += 2 * penalty * weight[j][i] / (k * (k - 1))
                value += penalty * weight[j][i] ** 2 / (k * (k - 1))
    return torch.tensor(slope_w), torch.tensor(slope_b), value


def test_vector_scaling_has_no_slope_left():
    z, y = held_out(0)
    fitted = VectorScaling(prior=0).fit(Outputs.of(z), y)
    slope_w, slope_b, value = slow_slopes(z, y, fitted.weight.diag().tolist(), fitted.bias.tolist())
    assert slope_w.diagonal().abs().max() < 1e-6
    assert slope_b.abs().max() < 1e-6
    assert nll(fitted(Outputs.of(z)), y) == pytest.approx(value, abs=1e-12)


def test_vector_scaling_stays_in_its_box(monkeypatch):
    z, y = held_out(0)
    free = VectorScaling(prior=0).fit(Outputs.of(z), y).weight
    box = float(free.max() + free.median()) / 2
    monkeypatch.setattr(scaling, "BOX", box)
    assert float(VectorScaling(prior=0).fit(Outputs.of(z), y).weight.max()) == pytest.approx(box)


@pytest.mark.parametrize("penalty", [0.0, 0.01, 10.0])
@pytest.mark.parametrize("spec", [MatrixScaling, DirichletCalibration])
def test_matrices_have_no_slope_left(spec, penalty):
    z, y = held_out(1)
    fitted = spec(penalty).fit(Outputs.of(z), y)
    x = z if spec is MatrixScaling else z.log_softmax(1)
    slope_w, slope_b, _ = slow_slopes(x, y, fitted.weight.tolist(), fitted.bias.tolist(), penalty)
    assert slope_w.abs().max() < 1e-6
    assert slope_b.abs().max() < 1e-6


@needs_vectors
def test_the_shared_vectors():
    for name, spec in [
        ("vector_scaling", VectorScaling(prior=0)),
        ("matrix_scaling", MatrixScaling(0.0)),
        ("dirichlet_full", DirichletCalibration(0.0)),
    ]:
        z, y, wanted = vector(name)
        assert nll(calibrated(spec, z, y), y) == pytest.approx(wanted["optimum_nll"], abs=1e-7)
    z, y, wanted = vector("dirichlet_odir")
    fitted = DirichletCalibration(wanted["lam"]).fit(Outputs.of(z), y)
    *_, objective = slow_slopes(z.log_softmax(1), y, fitted.weight.tolist(), fitted.bias.tolist(), wanted["lam"])
    assert objective == pytest.approx(wanted["optimum_objective"], abs=1e-7)


def test_none_is_worse_than_temperature_on_its_own_set():
    z, y = held_out(2, hot=3.0)
    scaled = min(nll((z / t).log_softmax(1), y) for t in torch.linspace(0.5, 20, 200))
    for spec in (VectorScaling(prior=0), MatrixScaling(0.1), DirichletCalibration(0.1)):
        assert nll(calibrated(spec, z, y), y) <= scaled


def test_on_log_probabilities_matrix_scaling_is_dirichlet():
    z, y = held_out(3)
    x = z.log_softmax(1)
    torch.testing.assert_close(
        calibrated(MatrixScaling(), x, y), calibrated(DirichletCalibration(), x, y), rtol=1e-5, atol=1e-5
    )


def test_dirichlet_takes_no_probability_below_what_float64_resolves():
    z, y = held_out(3)
    fitted = DirichletCalibration(0.1).fit(Outputs.of(z), y)
    asked = torch.tensor([[0.0, -40.0, -50.0, -300.0], [0.0, -900.0, -60.0, -70.0]]).double()
    assert torch.equal(fitted(Outputs.of(asked))[0], fitted(Outputs.of(asked))[1])


def test_a_strong_penalty_leaves_the_diagonal():
    z, y = held_out(4)
    fitted = MatrixScaling(1e7).fit(Outputs.of(z), y)
    assert (fitted.weight - fitted.weight.diag().diag()).abs().max() < 1e-5
    assert fitted.bias.abs().max() < 1e-5
    assert fitted.weight.diag().std() > 0.01, "which is free"


def test_cross_validation_is_strict_with_noise_and_lenient_with_structure():
    z, y = held_out(5, n=4400, k=20, hot=2.0)
    z, z_new, y, y_new = z[:400], z[400:], y[:400], y[400:]
    assert choose_penalty(check_held_out(Outputs.of(z), y, "ms"), 0.5, "ms") >= 100
    fitted, loose = MatrixScaling().fit(Outputs.of(z), y), MatrixScaling(0.1).fit(Outputs.of(z), y)
    assert nll(fitted(Outputs.of(z_new)), y_new) < nll(z_new.log_softmax(1), y_new)
    assert nll(fitted(Outputs.of(z_new)), y_new) < nll(loose(Outputs.of(z_new)), y_new)

    z, y = held_out(6, n=2000)
    mixed = z @ torch.tensor([[1.0, 0.9, 0, 0], [0, 1, 0.9, 0], [0, 0, 1, 0.9], [0.5, 0, 0, 1]], dtype=z.dtype)
    assert choose_penalty(check_held_out(Outputs.of(mixed), y, "ms"), 0.5, "ms") <= 1
    assert nll(calibrated(MatrixScaling(), mixed, y), y) < nll(calibrated(VectorScaling(prior=0), mixed, y), y) - 0.01
