"""Post-hoc methods for people with arrays and for people with a model; gamma fitted anew."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_helper import calibrated, held_out, nll
from runs_helper import trained
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal import registry
from balcal.build import calibrators
from balcal.core import BalcalError, Outputs
from balcal.methods.gamma import RefitGamma, RefittedGamma
from balcal.methods.temperature import best_on_grid, solve_temperature

BINARY = ("beta", "platt", "quadratic")
AFTER = [name for name in calibrators() if name not in BINARY]
ON_ARRAYS = [name for name in AFTER if name not in ("gamma", "laplace")]


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
    np.testing.assert_allclose(told["probs"], calibrated(role, z.log_softmax(1), y).exp(), atol=1e-6)
    from_logits = balcal.Calibrator(method, inputs="logits").fit(z, y)
    assert from_logits.predict(z).shape == (200,)


def test_labels_are_read_as_the_metrics_read_them():
    z, y = held_out(0, n=200)
    expected = balcal.Calibrator("ts", inputs="logits").fit(z, y).predict_proba(z)
    one_hot = nn.functional.one_hot(y, z.shape[1])
    for labels in (y.float(), y[:, None].numpy(), one_hot, [str(int(k)) for k in y]):
        found = balcal.Calibrator("ts", inputs="logits").fit(z, labels).predict_proba(z)
        np.testing.assert_array_equal(found, expected)
    for bad, words in ((["cat"] * 200, "not names like 'cat'"), (y + 0.5, "whole numbers"), (one_hot * 2, "one-hot")):
        with pytest.raises(BalcalError, match=words):
            balcal.Calibrator("ts", inputs="logits").fit(z, bad)


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
    with pytest.raises(BalcalError, match="is not applied after training; these are: auto, beta, dirichlet, ets"):
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
    faint = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed + 1)).double() * 0.3
    weights = torch.tensor([0.9, 0.1], dtype=torch.float64)
    return Outputs(torch.stack([z, faint]), weights, weights, fusion), y


@given(st.integers(0, 10**6), st.sampled_from(["probs", "logits"]))
def test_no_other_gamma_is_better_on_held_out_data(seed, fusion):
    outputs, y = two_heads(seed, fusion)
    fitted = RefitGamma(prior=0).fit(outputs, y)
    best = nll(fitted(outputs), y)
    assert best <= nll(outputs.log_probs(), y) + 1e-9, "not worse than the gamma it had"
    for other in np.linspace(0, 1 if fusion == "probs" else 8, 41):
        assert best <= nll(RefittedGamma(float(other))(outputs), y) + 1e-7


@pytest.mark.parametrize("fusion", ["probs", "logits"])
def test_gamma_of_fifteen_samples_is_held_back(fusion):
    """All right, by a timid head beside a bolder one: without imagined samples gamma goes to its end."""
    y = torch.arange(15) % 4
    bold, timid = 2 * torch.eye(4)[y].double(), 0.5 * torch.eye(4)[y].double()
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    outputs = Outputs(torch.stack([bold, timid]), weights, weights, fusion)
    taken = RefitGamma(prior=0).fit(outputs, y)
    held_back = RefitGamma().fit(outputs, y)
    conf = [float(each(outputs).exp().amax(1).mean()) for each in (RefittedGamma(0.5), held_back, taken)]
    assert conf[0] < conf[1] <= conf[2]
    if fusion == "logits":
        assert conf[2] > 0.999, "ten right answers of ten are no certainty"
        assert conf[1] < 1 - 0.5 * 5 * (1 - conf[0]) / 20, "five samples that are as sure as before"
    many = RefitGamma().fit(replace(outputs, logits=outputs.logits.repeat(1, 1000, 1)), y.repeat(1000))
    assert float(many(outputs).exp().amax(1).mean()) == pytest.approx(conf[2], abs=0.01), "many are taken at their word"


def test_gamma_by_balance_meets_the_accuracy():
    outputs, y = two_heads(3, "logits")
    fitted = RefitGamma(by="balance").fit(outputs, y)
    told = fitted(outputs)
    assert 0 < float(fitted.gamma) < 1
    right = (told.argmax(1) == y).double().mean()
    assert told.exp().amax(1).mean() == pytest.approx(float(right), abs=0.01)


def test_an_under_confident_classifier_is_sharpened_where_logits_are_fused():
    outputs, y = two_heads(3, "logits")
    faint = replace(outputs, logits=outputs.logits * 0.05)
    for by in ("nll", "balance"):
        fitted = RefitGamma(by=by, prior=0).fit(faint, y)
        assert float(fitted.gamma) > 1
        assert nll(fitted(faint), y) < nll(faint.logits[0].log_softmax(1), y)
        torch.testing.assert_close(fitted(faint), (float(fitted.gamma) * faint.logits[0]).log_softmax(1))


def test_an_unfitted_gamma_changes_nothing_and_one_classifier_has_none():
    outputs, y = two_heads(4, "probs")
    assert torch.equal(RefittedGamma()(outputs), outputs.log_probs())
    one = Outputs(outputs.logits[:1], torch.ones(1), torch.ones(1))
    with pytest.raises(BalcalError, match="only a model with two classifiers has a gamma"):
        RefitGamma().fit(one, y)


@pytest.mark.parametrize("method", ["ts", "ets", "isotonic", "gamma"])
def test_a_trained_model_takes_a_calibrator_along(method, tmp_path):
    x = torch.randn(240, 6)
    y = (x[:, :3] + 0.8 * torch.randn(240, 3)).argmax(1)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    model = balcal.wrap(network, num_classes=3, method="balcal")
    train, held = (DataLoader(TensorDataset(x[rows], y[rows]), 40) for rows in (slice(0, 120), slice(120, 240)))
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
    from balcal.evaluation.judge import calibrated_predictions, evaluate
    from balcal.runs import Run

    cpu = torch.device("cpu")
    run = Run.at(trained("balcal", tmp_path))
    for name in (each for each in AFTER if each != "laplace"):  # probabilities are fused here: it needs logits
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
    hot = balcal.Calibrator("ts", inputs="logits", settings={"prior": 0}).fit(4 * z, y).map_.temperature
    assert float(hot) == pytest.approx(4 * solve_temperature(z, y), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "bad", "complaint"),
    [
        ("ts", {"by": "x"}, "posthoc.by='x'` does not fit: input should be 'nll' or 'ece'"),
        ("ts", {"by": None}, "posthoc.by=None` does not fit"),
        ("ets", {"loss": "mae"}, "posthoc.loss='mae'` does not fit"),
        ("ms", {"penalty": "strong"}, "should be a valid number"),
        ("ms", {"penalty": np.inf}, "posthoc.penalty must be at least 0"),
        ("dirichlet", {"penalty": -1}, "posthoc.penalty must be at least 0"),
        ("dirichlet", {"penalty": True}, "should be a valid number"),
        ("histogram", {"bins": -3}, "posthoc.bins must be at least 1"),
        ("histogram", {"bins": 2.5}, "should be a valid integer"),
        ("histogram", {"bins": "15"}, "should be a valid integer"),
        ("isotonic", {"pooled": "yes"}, "should be a valid boolean"),
        ("gamma", {"by": "ece"}, "should be 'nll' or 'balance'"),
        ("ts", ["by"], "settings go by name"),
        ("ts", {3: 4}, "unknown setting of `ts`"),
        (5, None, "given by its name"),
    ],
)
def test_settings_of_a_calibrator_are_checked(method, bad, complaint):
    z, y = held_out(1)
    with pytest.raises(BalcalError, match=complaint):
        balcal.Calibrator(method, settings=bad).fit(z.softmax(1), y)


@pytest.mark.parametrize("method", ON_ARRAYS)
def test_logits_of_any_size_are_right_or_refused(method):
    """They once came out uniform. Where the map takes logits as they are, it says that it cannot take these."""
    z, y = held_out(2, n=200)
    calibrator = balcal.Calibrator(method, inputs="logits").fit(z, y)
    sure = calibrator.predict_proba(torch.tensor([[1000.0, 0, 0, 0], [0, 0, 1000.0, 0]]))
    for large in ([[1e20, 0, 0, 0], [-1e20, -1e20, 1e20, -3e38]], [[-1e30, -2e30, -2e30, -2e30], [1e5, 0, 1e300, 0]]):
        if method in ("vs", "ms"):
            with pytest.raises(BalcalError, match=f"`{method}` takes logits as they are, and .* is too large"):
                calibrator.predict_proba(large)
        else:
            told = calibrator.predict_proba(large)
            assert told.argmax(1).tolist() == [0, 2]
            np.testing.assert_allclose(told.sum(1), 1, atol=1e-9)
            np.testing.assert_allclose(told, sure, atol=1e-3)
    around = calibrator.predict_proba([[20.0, 18.0, 17.0, 10.0]])
    if method not in ("vs", "ms"):
        np.testing.assert_allclose(
            calibrator.predict_proba([[1e8 + 20, 1e8 + 18, 1e8 + 17, 1e8 + 10]]), around, atol=1e-6
        )
    with pytest.raises(BalcalError, match=r"differ by .*: divide all logits by a constant|takes logits as they are"):
        balcal.Calibrator(method, inputs="logits").fit(z * 1e20, y)


@pytest.mark.parametrize("method", ON_ARRAYS)
def test_impossible_classes_and_half_precision(method):
    z, y = held_out(3, n=200)
    z[torch.arange(200), (y + 1) % 4] = -torch.inf
    calibrator = balcal.Calibrator(method, inputs="logits").fit(z, y)
    told = calibrator.predict_proba(z)
    assert np.isfinite(told).all()
    np.testing.assert_allclose(told.sum(1), 1, atol=1e-9)
    for dtype in (torch.float16, torch.bfloat16):
        coarse = z.to(dtype)
        same = calibrator.predict_proba(coarse.double())
        np.testing.assert_allclose(calibrator.predict_proba(coarse), same, atol=1e-12)
        direct = calibrator.map_(Outputs.of(coarse))
        assert direct.dtype == dtype
        np.testing.assert_allclose(direct.double().exp(), same, atol=0.02)
    hot = calibrator.map_(Outputs.of(torch.tensor([[60000.0, 100.0, -60000.0, 0.0]], dtype=torch.float16)))
    assert not hot.isnan().any()
    assert hot.argmax() == 0


def test_hot_logits_get_the_temperature_that_they_need():
    """It once stopped at 1,000, far from the best."""
    z, y = held_out(4, n=400)
    assert solve_temperature(z * 600, y) == pytest.approx(600 * solve_temperature(z, y), rel=1e-6)
    assert solve_temperature(z * 600, y) > 1000


def test_few_samples_are_said_to_be_few():
    z, y = held_out(4, n=99)
    with pytest.warns(UserWarning, match="99 held-out samples are few for `ts`: below 100"):
        balcal.Calibrator("ts", inputs="logits").fit(z, y)
    model = balcal.wrap(nn.Sequential(nn.Linear(4, 4)), 4, "vanilla")
    with pytest.warns(UserWarning, match="99 held-out samples are few for `vs`"):
        balcal.calibrate(model, [(z.float(), y)], "vs")
    for unknown in ("bogus", "balcal"):
        with pytest.raises(
            BalcalError, match=r"auto, beta, dirichlet, ets, gamma, histogram, isotonic, .* ts, ts-uniform, vs"
        ):
            balcal.Calibrator(unknown).fit(z.softmax(1), y)


def test_a_temperature_at_its_lower_bound_is_explained():
    z, y = held_out(4, n=400)
    with pytest.warns(UserWarning, match="the best temperature is below 0.001, where `ts` stops: multiply all logits"):
        balcal.Calibrator("ts", inputs="logits").fit(z * 1e-5, y)


@pytest.mark.parametrize("inputs", ["probs", "log_probs", "logits"])
def test_a_calibrator_takes_tables_of_numbers_only(inputs):
    z, y = held_out(1)
    good = {"probs": z.softmax(1), "log_probs": z.log_softmax(1), "logits": z}[inputs]
    calibrator = balcal.Calibrator("ts", inputs=inputs).fit(good.requires_grad_(), y)
    hidden = np.ma.masked_array(good.detach().numpy(), mask=np.arange(480).reshape(120, 4) == 7)
    for bad in (None, 0.5, [], [[]], [0.5, 0.5], [[0.5], [0.5, 0.5]], [["a", "b"]], [[1j, 0]], [[0.5]] * 3, hidden, {}):
        with pytest.raises(BalcalError):
            calibrator.predict_proba(bad)
        with pytest.raises(BalcalError):
            balcal.Calibrator("ts", inputs=inputs).fit(bad, y)
    for bad in (None, 0, y + 0.7, y[:5], y[:, None] + 0.5, [*y.tolist()[:-1], 2**70], ["a", *map(str, y.tolist()[1:])]):
        with pytest.raises(BalcalError):
            balcal.Calibrator("ts", inputs=inputs).fit(good, bad)
    expected = calibrator.predict_proba(good)
    assert expected.shape == (120, 4)
    for same in (y.double(), [str(c) for c in y.tolist()], torch.nn.functional.one_hot(y, 4)):
        again = balcal.Calibrator("ts", inputs=inputs).fit(good, same).predict_proba(good)
        np.testing.assert_array_equal(again, expected)
