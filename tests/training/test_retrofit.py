"""A trained network keeps its body to the bit and its accuracy; what stands on it is trained on features kept once."""

import json
from copy import deepcopy

import pytest
import torch
from command_line import balcal_cli
from runs_helper import same, trained, trained_after_power_cut, whole
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal.core import BalcalError
from balcal.evaluation.judge import load_splits
from balcal.registry import recipe
from balcal.runs import Run
from balcal.training.parents import FeatureBatches, extract_features, fed_with_features
from balcal.training.retrofit import recipe_on


def digits(part, noise=0.0):
    """Rows of the digits task as vectors; noise makes errors, without which there is nothing to calibrate."""
    images = getattr(load_splits(recipe("digits", "vanilla").task), part)
    x = images.images.float().flatten(1) / 255
    return x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)), images.labels


def loader(x, y, size=100):
    return DataLoader(TensorDataset(x, y), batch_size=size)


@pytest.fixture(scope="module")
def overfitted():
    """BatchNorm, dropout, 300 images learnt by heart."""
    x, y = digits("train", 0.35)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)]
        network = nn.Sequential(*layers)
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(60):
            for i in range(0, 300, 50):
                loss = nn.functional.cross_entropy(network(x[i : i + 50]), y[i : i + 50])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return network.eval()


@pytest.mark.parametrize("method", ["balcal-auto", "balcal+ts"])
def test_a_weight_of_two_is_a_sample_twice(overfitted, method):
    """In the loss, in gamma, in the temperature and in the verdicts; weights come by argument, in batches, by class."""
    x, y = digits("train", 0.35)
    x, y, times = x[:300], y[:300], 1 + (y[:300] < 3).long()
    settings = {"method": method, "epochs": 3, "batch_size": 10_000, "tolerance": 1.0}
    twice = loader(x.repeat_interleave(times, 0), y.repeat_interleave(times))
    repeated = balcal.retrofit(overfitted, twice, twice, **settings)
    weighted = [(x, y, times)]
    results = [
        balcal.retrofit(overfitted, weighted, weighted, **settings),
        balcal.retrofit(overfitted, loader(x, y), weighted, sample_weight=times, **settings),
        balcal.retrofit(overfitted, loader(x, y), [(x, y)], class_weight=[2.0] * 3 + [1.0] * 7, **settings),
    ]
    for result in results:
        torch.testing.assert_close(result.model(x), repeated.model(x), atol=2e-4, rtol=1e-3)
        assert result.history[-1]["gamma"] == pytest.approx(repeated.history[-1]["gamma"], abs=1e-4)
        assert result.after.accuracy == pytest.approx(repeated.after.accuracy, abs=1e-6)
        assert result.after.nll == pytest.approx(repeated.after.nll, abs=1e-4)
        assert result.after.effective_samples is not None
    plain = balcal.retrofit(overfitted, loader(x, y), loader(x, y), **settings)
    assert not torch.allclose(plain.model(x), repeated.model(x), atol=2e-3)
    soft = balcal.retrofit(overfitted, [(x, nn.functional.one_hot(y, 10) * 0.98 + 0.002)], [(x, y)], **settings)
    assert soft.after.accuracy > 0.5


def body(state, prefix=""):
    return {name: tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}


def test_calibrates_keeps_accuracy_and_leaves_the_body_alone(overfitted):
    before = body(overfitted.state_dict())
    result = balcal.retrofit(overfitted, loader(*digits("train", 0.35)), epochs=5)
    assert same(body(overfitted.state_dict()), before), "the network given is left alone"
    assert not overfitted.training
    kept = {name.removeprefix("network."): tensor for name, tensor in result.model.backbone.state_dict().items()}
    mine = {name: tensor for name, tensor in before.items() if not name.startswith("4.")}
    assert {name: kept[name] for name in mine}.keys() == mine.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in mine.items()), "weights and statistics, to the bit"
    x, y = digits("test", 0.35)
    test = loader(x, y)
    was = balcal.verdict(log_probs=overfitted(x).log_softmax(1).detach(), labels=y)
    now = balcal.verdict(balcal.predict(result.model, test, role="test"))
    assert result.difference.accuracy.value >= -0.01
    assert now.accuracy >= was.accuracy - 0.01
    assert now.ece < was.ece
    assert now.nll < was.nll
    assert "retrofitted with balcal-auto in" in str(result)
    assert all(weight.requires_grad for weight in result.model.parameters()), "as free as it was"


def test_features_are_those_of_the_body_in_use(overfitted):
    x, y = digits("val")
    model = balcal.wrap(deepcopy(overfitted).train(), 10, "balcal-auto+retrofit")
    kept, labels, _ = extract_features(model, FeatureBatches(x, y, 50))
    assert model.training, "modes are as they were"
    with torch.no_grad():
        expected = overfitted[:4](x)
    torch.testing.assert_close(kept, expected, rtol=0, atol=1e-6)
    assert torch.equal(labels, y)
    model.eval()
    with torch.no_grad():
        said = model(x)
        with fed_with_features(model):
            torch.testing.assert_close(model(kept), said)
        assert torch.equal(model(x), said)


def test_refuses_when_accuracy_falls_and_warns_when_it_falls_a_little(overfitted):
    x, y = digits("train", 0.35)
    wrong = loader(x, (y + torch.arange(len(y)) % 2) % 10)
    good = loader(*digits("val", 0.35))
    with pytest.raises(BalcalError, match=r"held-out samples falls by .*, more than tolerance=0.01"):
        balcal.retrofit(overfitted, wrong, good, "vanilla", epochs=3, lr=0.1)
    with pytest.warns(UserWarning, match="more than chance explains"):
        balcal.retrofit(overfitted, wrong, good, "vanilla", epochs=3, lr=0.1, tolerance=1.0)


def test_averages_the_new_weights_where_the_method_says_so(overfitted):
    data = loader(*digits("train", 0.35))
    plain, mean = (balcal.retrofit(overfitted, data, method=name, epochs=1) for name in ("vanilla", "averaged"))
    weights = [each.model.head.classifier.weight for each in (plain, mean)]
    assert not torch.equal(*weights)


def test_other_classes_get_a_new_classifier_and_mistakes_get_one_sentence(overfitted):
    x, y = digits("train")
    result = balcal.retrofit(overfitted, loader(x, y % 2), num_classes=2, epochs=10)
    assert result.before is None
    assert result.after.accuracy > 0.8
    again = balcal.retrofit(result.model, loader(x, y % 2), method="vanilla+ts", epochs=1)
    assert again.before.samples == again.after.samples == 200
    with pytest.raises(BalcalError, match="`mixup` mixes images"):
        balcal.retrofit(overfitted, loader(x, y), method="mixup")
    with pytest.raises(BalcalError, match="pass num_classes="):
        balcal.retrofit(balcal.backbone("cnn-8", 1), loader(x, y))
    with pytest.raises(BalcalError, match="cannot hold out 0% of 1000 samples"):
        balcal.retrofit(overfitted, loader(x, y), held_out=0.0)


def test_a_retrofit_of_a_run_is_a_run(tmp_path, capsys):
    parent = trained("fl", tmp_path, settings=["loss.gamma=2", "task.val_size=250"])
    before = whole(parent)
    code, out, err = balcal_cli(
        "retrofit", parent, "--with", "balcal-auto+ts", "--set", "plan.epochs=4", "--quiet", "--json", capsys=capsys
    )
    assert code == 0, err
    figures = json.loads(out)
    assert figures["method"] == "balcal-auto+retrofit+ts"
    assert figures["against_parent"]["names"] == ["fl", "balcal-auto+retrofit+ts"]
    assert figures["against_parent_held_out"]["samples"] == 250
    run = Run.at(tmp_path / "digits" / figures["run"].rpartition("/")[2])
    assert len(run.history()) == 4
    assert len(list((tmp_path / "digits").iterdir())) == 2, "the parent was found, not trained anew"
    assert same(whole(parent), before)
    theirs, ours = (
        Run.at(r).load_weights(json.loads((r / "metrics.json").read_text())["epoch"]) for r in (parent, run.path)
    )
    assert same(body(ours, "backbone."), body(theirs, "backbone."))
    assert json.loads((run.path / "recipe.json").read_text())["parent"] == f"digits/{parent.name}"
    assert recipe_on(Run.at(parent), "balcal-auto", ["plan.epochs=4"]).address() == f"digits/{run.path.name}"
    assert balcal.load(run.path).method.name == "balcal-auto+retrofit"
    code, _, err = balcal_cli("retrofit", parent, "--set", "task.val_size=9", capsys=capsys)
    assert code == 1
    assert "a retrofit has the task of its run" in err
    moved = parent.rename(tmp_path / "digits" / "elsewhere")
    code, _, err = balcal_cli("retrofit", moved, capsys=capsys)
    assert code == 1
    assert "is not where its recipe says" in err


def test_interrupted_it_resumes_to_the_bit(tmp_path):
    uncut = trained("balcal+retrofit", tmp_path / "whole")
    cut = trained_after_power_cut("balcal+retrofit", tmp_path / "cut", 45 + 22)
    assert cut.name == uncut.name
    assert same(whole(cut), whole(uncut))
    assert "resuming at epoch 2" in (cut / "log.txt").read_text()


def test_with_kept_features_or_without_it_learns_the_same(tmp_path, monkeypatch):
    """The detour through the body in every epoch ends at the same weights, up to rounding."""
    quick = trained("balcal+retrofit", tmp_path / "kept")
    monkeypatch.setattr("balcal.methods.retrofit.StillBody.still", False)
    slow = trained("balcal+retrofit", tmp_path / "asked")
    for kept, asked in zip(Run.at(quick).history(), Run.at(slow).history(), strict=True):
        assert kept["val_nll"] == pytest.approx(asked["val_nll"], rel=1e-4)
        assert kept["gamma"] == pytest.approx(asked["gamma"], abs=1e-3)


def test_heads_on_maps_keep_maps(tmp_path):
    run = trained("balcal+retrofit", tmp_path, settings=["head.adapter=conv"])
    assert balcal.load(run).head.adapter is not None


def test_the_parent_can_be_another_method():
    made = recipe("digits", "balcal+retrofit", 0, ["parent.method=fl", "parent.loss.gamma=2", "plan.batch_size=32"])
    assert made.parent.address() == recipe("digits", "fl", 0, ["loss.gamma=2", "plan.batch_size=32"]).address()
    assert made.address() != recipe("digits", "balcal+retrofit", 0, ["plan.batch_size=32"]).address()
    with pytest.raises(BalcalError, match="starts from the run of what it is joined with"):
        recipe("digits", "balcal+pcs", 0, ["parent.method=fl"])
    with pytest.raises(BalcalError, match="unknown method `focl`"):
        recipe("digits", "balcal+retrofit", 0, ["parent.method=focl"])
