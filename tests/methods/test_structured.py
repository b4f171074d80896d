"""Structured scaling: the optimum of its objective, by an independent solver and by the authors' own program."""

import numpy as np
import pytest
import torch
from posthoc_helper import held_out, nll
from scipy.optimize import minimize
from shared_files import REAL_OUTPUTS, needs

from balcal import Calibrator
from balcal.core import BalcalError, Outputs
from balcal.methods.structured import StructuredScaling


def objective(z, y, weight, bias):
    """The formula of the paper, term by term, in numpy."""
    n, k = z.shape
    scores = z @ weight.T + bias
    scores = scores - scores.max(1, keepdims=True)
    loss = np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(n), y])
    away = weight - np.eye(k)
    on, off = np.diag(away), away - np.diag(np.diag(away))
    return loss + k / n * ((on**2).sum() + (bias**2).sum()) + k * (k - 1) / n * (off**2).sum()


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("hot", [0.5, 4.0])
def test_no_other_solver_gets_lower(matrix, hot):
    scores, y = held_out(0, n=200, hot=hot)
    fitted = StructuredScaling(matrix, prior=0).fit(Outputs.of(scores), y)
    z = (scores / float(fitted.temperature)).log_softmax(1).numpy()
    k = z.shape[1]

    def unpack(u):
        weight = u[: k * k].reshape(k, k) if matrix else np.diag(u[:k])
        return weight, u[-k:]

    start = np.concatenate([np.eye(k).ravel() if matrix else np.ones(k), np.zeros(k)])
    found = minimize(lambda u: objective(z, y.numpy(), *unpack(u)), start, method="BFGS", options={"gtol": 1e-9})
    weight = fitted.weight.numpy() if matrix else np.diag(fitted.weight.numpy())
    ours = objective(z, y.numpy(), weight, fitted.bias.numpy())
    assert ours == pytest.approx(found.fun, abs=1e-8)
    assert ours <= found.fun + 1e-12
    assert nll(fitted(Outputs.of(scores)), y) < nll(scores.log_softmax(1), y)


def test_few_samples_leave_temperature_scaling():
    scores, y = held_out(1, n=40, k=20)
    fitted = StructuredScaling(matrix=True).fit(Outputs.of(scores), y)
    off = fitted.weight - fitted.weight.diag().diag()
    assert off.abs().max() < 0.01


def test_a_thousand_classes():
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(1500, 1000, generator=rng).double()
    y = torch.distributions.Categorical(logits=z / 2).sample()
    fitted = StructuredScaling().fit(Outputs.of(z), y)
    assert float(fitted.temperature) == pytest.approx(2, rel=0.1)
    with pytest.raises(BalcalError, match="`sms` fits a matrix for at most 1,000 classes, not 1,001: use `svs`"):
        StructuredScaling(matrix=True).fit(Outputs.of(torch.randn(30, 1001)), torch.arange(30))


@needs(REAL_OUTPUTS)
@pytest.mark.parametrize("name", ["wideresnet-16-4-cifar-10", "lenet-5-cifar-10", "densenet-bc-100-cifar-100"])
@pytest.mark.parametrize("kind", ["svs", "sms"])
def test_against_the_authors_program(name, kind):
    calibrators = pytest.importorskip("probmetrics.calibrators", reason="pip install probmetrics")
    file = np.load(REAL_OUTPUTS / f"{name}.npz")
    p, y = file["predictions"].astype(np.float64), file["ground_truth"].ravel()
    n = 2000
    ours = Calibrator(kind).fit(p[:n], y[:n]).predict_proba(p[5000:])
    made = {"svs": calibrators.SVSCalibrator, "sms": calibrators.SMSCalibrator}[kind]
    theirs = made(penalty="ridge", rho=1.0, tau=1.0, opt="bfgs").fit(p[:n], y[:n]).predict_proba(p[5000:])
    loss = [-np.log(q[np.arange(5000), y[5000:]]).mean() for q in (ours, theirs)]
    assert loss[0] == pytest.approx(loss[1], rel=0.002)
