"""A run beyond its test split: what means are over, what is independent of what, and nothing asked twice."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from runs_helper import trained

from balcal import registry
from balcal.core import BalcalError
from balcal.data.corruptions import CORRUPTIONS, corrupt
from balcal.data.dataset import ImageSet
from balcal.evaluation.beyond import evaluate_human
from balcal.evaluation.judge import load
from balcal.evaluation.ood import evaluate_ood, fitted_to
from balcal.evaluation.other_images import RunPredictor
from balcal.evaluation.shift import evaluate_shift
from balcal.metrics.calibration import ece
from balcal.runs import Run

NAMES = ("brightness", "contrast")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained("balcal", tmp_path_factory.mktemp("beyond"))


def predictor(folder, posthoc=None):
    run = Run.at(folder)
    method = run.recipe.method
    return RunPredictor(run, method + registry.method(posthoc) if posthoc else method, CPU)


@pytest.fixture
def fresh(folder):
    """The run without anything beyond its test split."""
    for pattern in ("predictions/shift-*", "predictions/outside-*", "predictions/*-energy*"):
        for path in folder.glob(pattern):
            path.unlink()
    return folder


def test_a_set_is_what_the_model_says_of_the_corrupted_images(folder):
    figures = evaluate_shift(predictor(folder), NAMES)
    _, test = registry.dataset("digits").load()
    model = load(folder, device="cpu")
    digits = registry.dataset("digits")
    pixels = corrupt(test.images, "contrast", 4).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        log_probs = model((pixels - digits.mean[0]) / digits.std[0])
    right = (log_probs.argmax(1) == test.labels).double().mean()
    one = next(row for row in figures["sets"] if (row["corruption"], row["severity"]) == ("contrast", 4))
    assert one["accuracy"] == pytest.approx(float(right), abs=1e-9)
    assert one["ece"] == pytest.approx(ece(log_probs=log_probs, labels=test.labels), abs=1e-5)


def test_every_mean_is_over_what_it_says(folder):
    figures = evaluate_shift(predictor(folder), NAMES)
    grid = {(row["corruption"], row["severity"]): row for row in figures["sets"]}
    assert len(grid) == len(figures["sets"]) == 10
    for figure in ("ece", "accuracy", "nll"):
        for row in figures["by_severity"]:
            assert row["sets"] == 2
            assert row[figure] == pytest.approx(np.mean([grid[name, row["severity"]][figure] for name in NAMES]))
        for row in figures["by_corruption"]:
            assert row["sets"] == 5
            assert row[figure] == pytest.approx(np.mean([grid[row["corruption"], s][figure] for s in range(1, 6)]))
        assert figures["mean"][figure] == pytest.approx(np.mean([row[figure] for row in figures["sets"]]))
    for row in (*figures["sets"], *figures["by_severity"], *figures["by_corruption"], figures["mean"]):
        for figure in ("ece", "accuracy"):
            low, high = row[f"{figure}_interval"]
            assert 0 <= low <= high <= 1
            assert low < high
    assert figures["pooled"]["samples"] == 10 * figures["images"] == 5000
    assert figures["pooled"]["ece"] <= figures["mean"]["ece"] + 1e-9  # gaps of different sets may cancel in one bin


def test_interrupted_it_goes_on_where_it_was(fresh):
    whole = evaluate_shift(predictor(fresh), NAMES)
    for path in fresh.glob("predictions/shift-*"):
        path.unlink()

    def power_cut(name, total):
        if name == "brightness 4":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_shift(predictor(fresh), NAMES, tick=power_cut)
    again, asked = predictor(fresh), []
    again.model.register_forward_pre_hook(lambda module, inputs: asked.append(len(inputs[0])))
    assert evaluate_shift(again, NAMES) == whole
    assert sum(asked) == 6 * whole["images"]  # four sets of ten were there


def test_a_temperature_asks_the_network_nothing(fresh):
    plain = evaluate_shift(predictor(fresh), NAMES)
    for path in fresh.glob("checkpoints/weights-*"):
        path.rename(path.with_suffix(".away"))
    try:
        scaled = evaluate_shift(predictor(fresh, "ts"), NAMES)
    finally:
        for path in fresh.glob("checkpoints/*.away"):
            path.rename(path.with_suffix(".pt"))
    for before, after in zip(plain["sets"], scaled["sets"], strict=True):
        assert after["accuracy"] == before["accuracy"]
        assert after["mean_confidence"] != before["mean_confidence"]


def test_a_map_that_reads_outputs_has_predictions_of_its_own(tmp_path):
    folder = trained("balcal-fixed", tmp_path)
    plain, refit = (evaluate_shift(predictor(folder, posthoc), NAMES[:1]) for posthoc in (None, "gamma"))
    assert plain["mean"]["nll"] != refit["mean"]["nll"]
    assert plain == evaluate_shift(predictor(folder), NAMES[:1])


def test_sets_without_published_files_or_names_are_refused(folder):
    with pytest.raises(BalcalError, match="nobody has published corruptions of `digits`"):
        evaluate_shift(predictor(folder), published=True)
    with pytest.raises(BalcalError, match="unknown corruption `fogg`; did you mean `fog`"):
        evaluate_shift(predictor(folder), ["fogg"])


def test_defaults_come_from_the_catalog():
    assert registry.dataset("cifar10").shift == CORRUPTIONS
    assert registry.dataset("svhn").shift == ("rotation",)
    assert registry.dataset("svhn").ood[:2] == ("cifar10", "cifar100")


def test_an_ood_set_does_not_depend_on_the_others(fresh, tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=noise, labels=np.arange(60) % 3)
    both = evaluate_ood(predictor(fresh), ["fashion", f"npz:{tmp_path / 'noise.npz'}"])
    alone = evaluate_ood(predictor(fresh), ["fashion"])
    assert alone["sets"]["fashion"] == both["sets"]["fashion"]
    assert both["mean"]["scores"]["confidence"]["auroc"] == pytest.approx(
        np.mean([one["scores"]["confidence"]["auroc"] for one in both["sets"].values()])
    )
    for one in both["sets"].values():
        for figures in one["scores"].values():
            for name in ("auroc", "fpr95", "aupr_in", "aupr_out"):
                low, high = figures[f"{name}_interval"]
                assert low <= figures[name] + 0.02
                assert figures[name] - 0.02 <= high


@pytest.mark.parametrize(("method", "has_logits"), [("vanilla", True), ("balcal-logits", True), ("balcal", False)])
def test_energy_is_there_where_there_are_logits(method, has_logits, tmp_path):
    asked = predictor(trained(method, tmp_path))
    scores = evaluate_ood(asked, ["fashion"])["sets"]["fashion"]["scores"]
    assert set(scores) == {"confidence", "entropy"} | ({"energy"} if has_logits else set())
    if has_logits:
        test = asked.splits.test
        energies = asked.energies("test", lambda: test)
        digits = registry.dataset("digits")
        with torch.no_grad():
            outputs = asked.model(
                (test.images.permute(0, 3, 1, 2) / 255 - digits.mean[0]) / digits.std[0], branches=True
            )
        fused = sum(w * logits for w, logits in zip(outputs.weights, outputs.logits, strict=True))
        assert torch.allclose(energies, fused.exp().sum(1).log().double(), atol=1e-4)


def test_ood_images_are_brought_to_size_and_colour():
    like = ImageSet(torch.zeros(1, 32, 32, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    grey = ImageSet(torch.full((2, 28, 28, 1), 200, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    padded = fitted_to(grey, like).images
    assert padded.shape == (2, 32, 32, 3)
    assert bool((padded[:, 2:-2, 2:-2] == 200).all())
    assert bool((padded[:, :2] == 0).all())
    assert bool((padded[:, -2:] == 0).all())
    large = ImageSet(torch.full((2, 64, 64, 3), 77, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    assert bool((fitted_to(large, like).images == 77).all())


def test_a_data_set_is_not_ood_for_itself(folder):
    with pytest.raises(BalcalError, match="cannot be out-of-distribution for itself"):
        evaluate_ood(predictor(folder), ["digits"])
    with pytest.raises(BalcalError, match="no OOD sets are known for `digits`: name some"):
        evaluate_ood(predictor(folder))


def test_people(folder, monkeypatch):
    labels = registry.dataset("digits").load()[1].labels
    votes = 0.8 * torch.nn.functional.one_hot(labels, 10).double() + 0.02
    known = replace(registry.dataset("digits"), votes=lambda: votes)
    monkeypatch.setattr(registry, "dataset", lambda name: known)
    asked = predictor(folder)
    figures = evaluate_human(asked)
    log_probs = asked.test().log_probs.double()
    by_hand = -sum(q * p for q, p in zip(votes.flatten().tolist(), log_probs.flatten().tolist(), strict=True)) / 500
    assert figures["cross_entropy"] == pytest.approx(by_hand)
    assert figures["kl"] == pytest.approx(by_hand - figures["people"]["entropy"])
    assert figures["people"]["entropy"] == pytest.approx(-0.82 * np.log(0.82) - 9 * 0.02 * np.log(0.02))
    assert figures["people"]["first_choice_is_label"] == 1


def test_nobody_was_asked(folder):
    with pytest.raises(BalcalError, match="nobody has asked people"):
        evaluate_human(predictor(folder))


def test_on_the_command_line(fresh, capsys):
    arguments = ("evaluate", fresh, "--with", "ts", "--corruptions", "fog", "--against", "fashion", "--quiet")
    code, printed, _ = balcal_cli(*arguments, capsys=capsys)
    assert code == 0
    assert "fog " in printed
    assert "fashion" in printed
    assert "AUROC" in printed
    assert max(map(len, printed.splitlines())) <= 120
    code, printed, _ = balcal_cli(*arguments, "--json", capsys=capsys)
    figures = json.loads(printed)
    for name in ("shift", "ood"):
        written = json.loads((fresh / f"{name}+ts.json").read_text())
        assert figures[name].items() <= written.items()
        assert set(written) - set(figures[name]) == {"made_from", "seal"}
    code, _, error = balcal_cli("evaluate", fresh, "--ood", capsys=capsys)
    assert code == 1
    assert error.count("\n") == 1
