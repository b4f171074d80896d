"""A model of somebody's own network: saved, loaded, exported, described; in half precision."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn

import balcal
from balcal.core import BalcalError

rng = torch.Generator().manual_seed(5)
Y = torch.randint(3, (120,), generator=rng)
X = torch.randn(120, 6, generator=rng)
X[torch.arange(120), Y] += 1.5
DATA = [(X[rows], Y[rows]) for rows in torch.arange(120).split(40)]


def network():
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))


def trained(method="balcal-auto", make=network):
    torch.manual_seed(0)
    model = balcal.wrap(make(), 3, method, quiet=True)
    balcal.fit(model, DATA, DATA, epochs=2, lr=1e-2, quiet=True)
    return model.eval()


@pytest.mark.parametrize("posthoc", [None, "ts", "vs", "isotonic", "gamma"])
@pytest.mark.parametrize("method", ["vanilla", "balcal-auto", "balcal+fl"])
def test_a_saved_model_predicts_the_same(method, posthoc, tmp_path):
    if (method, posthoc) == ("vanilla", "gamma"):
        return
    model = trained(method)
    if posthoc:
        balcal.calibrate(model, DATA, posthoc)
    balcal.save(model, tmp_path / "model.pt")
    torch.manual_seed(9)
    again = balcal.load(tmp_path / "model.pt", network=network())
    assert torch.equal(again(X), model(X))
    assert again.solved_on == model.solved_on
    assert type(again.method.posthoc) is type(model.method.posthoc)
    over = balcal.load(tmp_path / "model.pt", network=balcal.wrap(network(), 3, method, quiet=True))
    assert torch.equal(over(X), model(X))


def test_what_does_not_fit_gets_a_sentence(tmp_path):
    model = trained("balcal-auto")
    balcal.calibrate(model, DATA, "ts")
    file = balcal.save(model, tmp_path / "model.pt")
    with pytest.raises(BalcalError, match=r"a fitted post-hoc map \(posthoc\.\w+\), and this model has another one or"):
        balcal.wrap(network(), 3, quiet=True).load_state_dict(model.state_dict())
    with pytest.raises(BalcalError, match="pass network=, built as the saved one was"):
        balcal.load(file)
    with pytest.raises(BalcalError, match="are not of this network: size mismatch"):
        balcal.load(file, network=nn.Sequential(nn.Linear(6, 25), nn.ReLU(), nn.Linear(25, 3)))
    (tmp_path / "other.pt").write_bytes(b"PK")
    with pytest.raises(BalcalError, match=r"was not written by balcal\.save"):
        balcal.load(tmp_path / "other.pt", network=network())
    with pytest.raises(BalcalError, match=r"cannot read .*nowhere.pt"):
        balcal.load(tmp_path / "nowhere.pt", network=network())
    own = balcal.Method("mine", loss=nn.functional.cross_entropy)
    balcal.save(trained(own), file)
    with pytest.raises(BalcalError, match="a method of your own: pass method= as well"):
        balcal.load(file, network=network())
    assert balcal.load(file, network=network(), method=own)(X).shape == (120, 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda net: balcal.predict(net, DATA),
        lambda net: balcal.calibrate(net, DATA),
        lambda net: balcal.save(net, "model.pt"),
        lambda net: balcal.export(net, X, "model.onnx"),
        balcal.card,
    ],
)
def test_only_what_was_wrapped_can_be_used(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BalcalError, match=r"a model of balcal\.wrap, not (of )?a Sequential"):
        use(network())
    assert not list(tmp_path.iterdir())


def test_names_of_files_say_what_is_in_them(tmp_path):
    model = trained()
    for name in ("model.onnx", "model.pt2"):
        with pytest.raises(BalcalError, match=rf"save writes weights, as FILE.pt, and not {name}: balcal.export"):
            balcal.save(model, tmp_path / name)
    assert not list(tmp_path.iterdir())
    file = balcal.save(model, tmp_path / "model.pt")
    assert torch.equal(balcal.load(file, network())(X), model(X)), "a network by position"


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ((X, Y), "the example does not go through the model .*: pass inputs, without labels"),
        (X[:, :3], "the example does not go through the model .mat1 and mat2"),
        (None, "export takes a batch of inputs as the example, .* not NoneType"),
    ],
)
def test_an_example_that_does_not_fit(example, words, tmp_path):
    with pytest.raises(BalcalError, match=words):
        balcal.export(trained(), example, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_for_the_backbone(dtype):
    model = balcal.calibrate(trained("balcal-auto"), DATA, "ts")
    half = copy.deepcopy(model).to(dtype)
    assert next(half.backbone.parameters()).dtype is dtype
    assert half.head.weights.dtype is torch.float32
    assert torch.equal(half.head.weights, model.head.weights)
    full, less = balcal.predict(model, DATA), balcal.predict(half, DATA)
    torch.testing.assert_close(less.probs, full.probs, rtol=0, atol=0.03)
    assert torch.allclose(less.probs.sum(1), torch.ones(120), atol=1e-5), "still probabilities in float32"
    for x in (X, X.to(dtype), X.double()):
        torch.testing.assert_close(half(x).exp().detach(), full.probs, rtol=0, atol=0.03)
    with pytest.raises(BalcalError, match=r"export model\.float\(\), or write FILE\.pt2"):
        balcal.export(half, X, "model.onnx")
    assert half.double().head.weights.dtype is torch.float64


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 16), nn.Linear(2, 16), nn.Linear(16, 3)

    def forward(self, left, right):
        return self.out((self.left(left) + self.right(right)).relu())


@pytest.mark.parametrize(
    ("kind", "suffix"), [("tensor", ".pt2"), ("tuple", ".pt2"), ("dictionary", ".pt2"), ("dictionary", ".onnx")]
)
def test_an_exported_model_gives_the_same_probabilities(kind, suffix, tmp_path):
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    make = network if kind == "tensor" else Two
    model = balcal.wrap(make(), 3, "balcal-auto+ts", quiet=True).eval()
    x = {"tensor": X, "tuple": (X[:, :4], X[:, 4:]), "dictionary": {"left": X[:, :4], "right": X[:, 4:]}}[kind]
    predictions = balcal.Predictions(model(x).detach(), Y)
    file = tmp_path / f"model{suffix}"
    card = balcal.export(model, x, file, predictions, ["a", "b", "c"])
    assert card["verified"]["largest_difference"] < 1e-5
    assert "| accuracy |" in (tmp_path / f"model{suffix}.card.md").read_text()
    opened = balcal.load(file, trusted=True)
    np.testing.assert_allclose(opened.predict_proba(x), model(x).exp().detach().numpy(), atol=1e-5)
    assert set(opened.predict(x)) <= {"a", "b", "c"}
    assert opened.card["calibration"]["samples"] == 120
    if kind == "tensor":
        with pytest.raises(BalcalError, match=r"this model takes x of shape \('N', 6\), not \(120, 5\)"):
            opened.predict_proba(X[:, :5])


def test_a_card_tells_what_gamma_was_solved_on(tmp_path):
    model = trained("balcal-auto")
    card = balcal.card(model, balcal.predict(model, DATA), ["a|b", "c", "d"])
    assert card["solved_on"] == {"split": "validation", "samples": 120.0}
    assert "**Solved on** 120 validation samples" in str(card)
    assert r"a\|b" in str(card)
    json.dumps(card)
    assert balcal.card(trained("balcal"))["solved_on"] == {"split": "training", "samples": 120.0}
    again = balcal.load(balcal.save(model, tmp_path / "saved.pt"), network=network())
    assert balcal.card(again)["solved_on"] == card["solved_on"]
    balcal.calibrate(model, DATA * 2, "gamma")
    refitted = balcal.card(model)
    assert refitted["solved_on"] == {"split": "held-out", "samples": 240.0}
    assert refitted["dials"]["gamma"] == pytest.approx(float(model.posthoc.gamma), abs=1e-6)
    with pytest.raises(BalcalError, match="2 names for 3 classes"):
        balcal.card(model, classes=["a", "b"])
    with pytest.raises(BalcalError, match=r"writes FILE\.onnx or FILE\.pt2, not model\.pt"):
        balcal.export(model, X, tmp_path / "model.pt")


def named_data():
    return [{"x": x, "answer": y} for x, y in DATA]


def test_a_report_of_a_model_of_predictions_or_of_a_file(tmp_path):
    import balcal.report.page  # the package and the function have one name

    model = trained()
    page = balcal.report(model, DATA, out=tmp_path / "model.html", classes=["ant", "bee", "cat"])
    assert "cat" in page.read_text()
    assert balcal.report(balcal.predict(model, DATA), out=tmp_path / "predictions.html").exists()
    found = balcal.predict(model, DATA)
    arrays = {"log_probs": found.log_probs.numpy(), "labels": found.labels.numpy()}
    texts = [
        balcal.report(*source, out=tmp_path / "page.html", name="same", **named).read_text()
        for source, named in (((found,), {}), ((), arrays), ((model, named_data()), {"target": "answer"}))
    ]
    assert texts[0] == texts[1] == texts[2]
    with pytest.raises(BalcalError, match="or arrays by name, not both"):
        balcal.report(found, **arrays)
    with pytest.raises(BalcalError, match=r"not of a ndarray; arrays go by name, probs="):
        balcal.report(arrays["log_probs"])
    with pytest.raises(BalcalError, match="needs a loader with test data"):
        balcal.report(model)
    with pytest.raises(BalcalError, match="not of a list"):
        balcal.report([])
