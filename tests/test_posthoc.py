"""Post-hoc methods for people with arrays and for people with a model; gamma fitted anew."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_helper import held_out, nll
from runs_helper import trained
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal import registry
from balcal.core import BalcalError, Outputs
from balcal.methods.gamma import RefitGamma, Refused
from balcal.methods.temperature import best_on_grid, solve_temperature

AFTER = [name for name, each in registry.table("methods").items() if set(each.changes) == {"posthoc"}]
ON_ARRAYS = [name for name in AFTER if name != "gamma"]


@pytest.mark.parametrize("method", ON_ARRAYS)
def test_logits_logs_and_probabilities_in_calibrated_probabilities_out(method):
    z, y = held_out(0, n=200)
    p = z.softmax(1).numpy()
    told = {
        "probs": balcal.Calibrator(method).fit(p, y.numpy()).predict_proba(p),
        "log_probs": balcal.Calibrator(method, inputs="log_probs").fit(np.log(p), y).predict_proba(np.log(p)),
    }
    np.testing.assert_allclose(told["probs"], told["log_probs"], atol=1e-6)
    np.testing.assert_allclose(told["probs"].sum(1), 1, atol=1e-9)
    role = registry.method(method).posthoc
    np.testing.assert_allclose(told["probs"], role.fit(z.log_softmax(1), y)(z.log_softmax(1)).exp(), atol=1e-6)
    from_logits = balcal.Calibrator(method, inputs="logits").fit(z, y)
    assert from_logits.predict(z).shape == (200,)


def test_it_behaves_like_an_estimator():
    z, y = held_out(1)
    calibrator = balcal.Calibrator("ms", inputs="logits", settings={"penalty": 0.1})
    again = clone(calibrator)
    assert again.get_params() == calibrator.get_params()
    with pytest.raises(NotFittedError):
        calibrator.predict_proba(z)
    calibrator.fit(z.numpy(), y.numpy())
    assert calibrator.classes_.tolist() == [0, 1, 2, 3]
    assert calibrator.score(z.numpy(), y.numpy()) > 0.4
    with pytest.raises(BalcalError, match="fitted on 4 classes, asked about 3"):
        calibrator.predict_proba(z[:, :3])


def test_what_does_not_fit_is_said():
    z, y = held_out(1)
    with pytest.raises(BalcalError, match="is not applied after training; these are: dirichlet, ets"):
        balcal.Calibrator("balcal").fit(z.softmax(1), y)
    with pytest.raises(BalcalError, match="unknown setting of `ms` `penalti`; did you mean `penalty`"):
        balcal.Calibrator("ms", settings={"penalti": 1}).fit(z.softmax(1), y)
    with pytest.raises(BalcalError, match="are these logits"):
        balcal.Calibrator("ts").fit(z, y)
    with pytest.raises(BalcalError, match="inputs must be"):
        balcal.Calibrator("ts", inputs="scores").fit(z, y)
    with pytest.raises(BalcalError, match="expected finite logits"):
        balcal.Calibrator("ts", inputs="logits").fit(z * torch.nan, y)
    with pytest.raises(BalcalError, match="needs the logits of both classifiers"):
        balcal.Calibrator("gamma").fit(z.softmax(1), y)


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_the_grid_finds_the_lowest_ece(seed):
    z, y = held_out(seed, n=150)
    t = best_on_grid(z, y)
    errors = {
        step / 100: balcal.metrics.ece(probs=(z / (step / 100)).softmax(1), labels=y) for step in range(50, 1000, 50)
    }
    assert balcal.metrics.ece(probs=(z / t).softmax(1), labels=y) <= min(errors.values()) + 1e-9


def two_heads(seed, fusion):
    z, y = held_out(seed)
    timid = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed + 1)).double() * 0.3
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    return Outputs(torch.stack([z, timid]), weights, weights, fusion), y


@given(st.integers(0, 10**6), st.sampled_from(["probs", "logits"]))
def test_no_other_gamma_is_better_on_held_out_data(seed, fusion):
    outputs, y = two_heads(seed, fusion)
    fitted = RefitGamma().fit_outputs(outputs, y)
    best = nll(fitted(outputs), y)
    assert best <= nll(outputs.log_probs(), y) + 1e-9, "not worse than the gamma it had"
    for other in np.linspace(0, 1 if fusion == "probs" else 8, 41):
        assert best <= nll(Refused(float(other))(outputs), y) + 1e-7


def test_gamma_by_balance_meets_the_accuracy():
    outputs, y = two_heads(3, "logits")
    fitted = RefitGamma(by="balance").fit_outputs(outputs, y)
    told = fitted(outputs)
    assert 0 < float(fitted.gamma) < 1
    right = (told.argmax(1) == y).double().mean()
    assert told.exp().amax(1).mean() == pytest.approx(float(right), abs=0.01)


def test_too_timid_a_classifier_is_sharpened_where_logits_are_fused():
    outputs, y = two_heads(3, "logits")
    timid = replace(outputs, logits=outputs.logits * 0.05)
    for by in ("nll", "balance"):
        fitted = RefitGamma(by=by).fit_outputs(timid, y)
        assert float(fitted.gamma) > 1
        assert nll(fitted(timid), y) < nll(timid.logits[0].log_softmax(1), y)
        torch.testing.assert_close(fitted(timid), (float(fitted.gamma) * timid.logits[0]).log_softmax(1))


def test_an_unfitted_gamma_changes_nothing_and_one_classifier_has_none():
    outputs, y = two_heads(4, "probs")
    assert torch.equal(Refused()(outputs), outputs.log_probs())
    one = Outputs(outputs.logits[:1], torch.ones(1), torch.ones(1))
    with pytest.raises(BalcalError, match="only a model with two classifiers has a gamma"):
        RefitGamma().fit_outputs(one, y)


@pytest.mark.parametrize("method", ["ts", "ets", "isotonic", "gamma"])
def test_a_trained_model_takes_a_calibrator_along(method, tmp_path):
    x = torch.randn(160, 6)
    y = (x[:, :3] + 0.8 * torch.randn(160, 3)).argmax(1)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    model = balcal.wrap(network, num_classes=3, method="balcal")
    train, held = (DataLoader(TensorDataset(x[rows], y[rows]), 40) for rows in (slice(0, 80), slice(80, 160)))
    balcal.fit(model, train, held, epochs=2, quiet=True)
    before = balcal.predict(model, held)
    assert balcal.calibrate(model, held, method) is model
    after = balcal.predict(model, held, role="test")
    assert after.role == "test"
    if method != "isotonic":
        assert nll(after.log_probs, after.labels) <= nll(before.log_probs, before.labels) + 1e-6
    fresh = balcal.wrap(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), num_classes=3, method=f"balcal+{method}"
    )
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(balcal.predict(fresh, held).log_probs, after.log_probs), "the map is in state_dict"


def test_every_calibrator_after_a_run(tmp_path):
    """Also what `balcal.load` gives agrees with what `evaluate` measured."""
    from balcal.evaluate import calibrated_predictions, evaluate
    from balcal.runs import Run

    cpu = torch.device("cpu")
    run = Run.at(trained("balcal", tmp_path))
    for name in AFTER:
        method = registry.method(f"balcal+{name}")
        figures = evaluate(run, method, cpu)
        assert figures["method"] == f"balcal+{name}"
        assert figures["specification"]["ece"]["posthoc"] == name
        assert np.isfinite(figures["metrics"]["nll"])
    _, told, before = calibrated_predictions(run, registry.method("balcal+gamma"), cpu)
    assert torch.equal(told.labels, before.labels)
    model = balcal.load(run.path, posthoc="gamma")
    assert float(model.posthoc.gamma) == evaluate(run, registry.method("balcal+gamma"), cpu)["posthoc"]["gamma"]


def test_temperature_of_four_times_hotter_arrays():
    z, y = held_out(5, n=300)
    hot = balcal.Calibrator("ts", inputs="logits").fit(4 * z, y).map_.temperature
    assert float(hot) == pytest.approx(4 * solve_temperature(z, y), rel=1e-6)
