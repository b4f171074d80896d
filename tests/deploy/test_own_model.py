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
    with pytest.raises(BalcalError, match="2 names for 3 classes"):
        balcal.card(model, classes=["a", "b"])
    with pytest.raises(BalcalError, match=r"writes FILE\.onnx or FILE\.pt2, not model\.pt"):
        balcal.export(model, X, tmp_path / "model.pt")


def test_a_report_of_a_model_of_predictions_or_of_a_file(tmp_path):
    import balcal.report.page  # the package and the function have one name

    model = trained()
    page = balcal.report(model, DATA, out=tmp_path / "model.html", classes=["ant", "bee", "cat"])
    assert "cat" in page.read_text()
    assert balcal.report(balcal.predict(model, DATA), out=tmp_path / "predictions.html").exists()
    with pytest.raises(BalcalError, match="needs a loader with test data"):
        balcal.report(model)
    with pytest.raises(BalcalError, match="not of a list"):
        balcal.report([])
