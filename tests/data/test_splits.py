"""Roles of data: written down, kept apart, and the test role only judges."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from runs_helper import trained

from balcal import registry
from balcal.core import BalcalError, Outputs, Predictions
from balcal.data.dataset import ImageSet, Splits
from balcal.data.splits import digest, manifest, overlap_sentences
from balcal.evaluation.judge import calibrated_predictions, evaluate, load_splits, predictions_of
from balcal.methods.temperature import TemperatureScaling
from balcal.runs import Run
from balcal.training.fit import train_recipe

CPU = torch.device("cpu")


def images(first, last):
    """Image i shows the number i in every pixel."""
    numbers = torch.arange(first, last, dtype=torch.uint8)
    return ImageSet(numbers[:, None, None, None].expand(-1, 2, 2, 1).contiguous(), torch.arange(first, last) % 3)


def test_what_roles_have_in_common_is_counted():
    val = images(10, 20)
    written = manifest(Splits(images(0, 10), val, val, images(18, 30)))
    assert written["shared"] == {"select in train": 0, "test in train": 0, "test in select": 2}
    assert overlap_sentences(written) == ["2 of the 12 test images are in the select role too, pixel for pixel"]
    apart = manifest(Splits(images(0, 10), val, images(30, 40), images(9, 12)))
    assert apart["shared"]["test in train"] == 1
    assert apart["shared"]["calibrate in select"] == 0
    assert apart["roles"]["test"]["samples"] == 3


@pytest.mark.parametrize("role", ["train", "select", "calibrate"])
def test_the_test_images_may_have_no_other_role(role):
    parts = {"train": images(0, 10), "select": images(10, 20), "calibrate": images(20, 30), "test": images(30, 40)}
    parts[role] = images(30, 40)
    with pytest.raises(BalcalError, match=f"the {role} role holds the very same images as the test role"):
        manifest(Splits(*parts.values()))


def test_a_digest_sees_a_pixel_a_label_and_a_shape():
    part = images(0, 5)
    pixel, label = part.images.clone(), part.labels.clone()
    pixel[3, 1, 1, 0] += 1
    label[2] += 1
    others = [
        ImageSet(pixel, part.labels),
        ImageSet(part.images, label),
        ImageSet(part.images.view(5, 4, 1, 1), part.labels),
    ]
    assert len({digest(each) for each in [part, *others]}) == 4
    assert digest(part) == digest(images(0, 5))


def test_the_run_remembers_its_data_and_notices_a_change(tmp_path):
    run = Run.at(trained("vanilla", tmp_path))
    written = json.loads((run.path / "data.json").read_text())
    assert {role: part["samples"] for role, part in written["roles"].items()} == {
        "train": 1000,
        "select": 297,
        "calibrate": 297,
        "test": 500,
    }
    assert evaluate(run, registry.method("vanilla"), CPU)["data"] == written
    (run.path / "data.json").write_text("null")
    evaluate(run, registry.method("vanilla"), CPU)
    assert json.loads((run.path / "data.json").read_text()) == written, "it is for people, and written anew"


def test_changed_data_is_noticed_by_whoever_needs_it(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    source = tmp_path / "mine.npz"
    np.savez(source, images=images, labels=labels)
    asked = registry.recipe(f"npz:{source}", "vanilla", 0, ["plan.epochs=1", "task.val_size=12"])
    run = Run.at(Path(train_recipe(asked, tmp_path / "runs", "cpu", quiet=True)["run"]))
    images[labels == 1] = 0
    np.savez(source, images=images, labels=labels)
    evaluate(run, registry.method("vanilla"), CPU)  # from stored predictions, which need no images
    for file in (run.path / "predictions").glob("*.npz"):
        file.unlink()
    with pytest.raises(BalcalError, match=r"the train data has changed since .* was trained"):
        evaluate(run, registry.method("vanilla"), CPU)
    for record in run.checkpoints.glob("finished.*"):
        record.unlink()
    with pytest.raises(BalcalError, match=r"the train data has changed since .* was begun"):
        train_recipe(asked, tmp_path / "runs", "cpu", quiet=True)


def test_calibration_can_have_images_of_its_own(tmp_path):
    settings = ["task.val_size=200", "task.calibrate_size=150"]
    run = Run.at(trained("vanilla", tmp_path, settings=settings))
    splits = load_splits(run.recipe.task)
    assert [len(part) for part in (splits.train, splits.val, splits.calibrate)] == [947, 200, 150]
    assert sum(json.loads((run.path / "data.json").read_text())["shared"].values()) == 0
    held_out, test = predictions_of(run, run.recipe.method, CPU)
    assert torch.equal(held_out.labels, splits.calibrate.labels)
    assert (held_out.role, test.role) == ("calibrate", "test")
    fitted, _, _ = calibrated_predictions(run, registry.method("vanilla+ts"), CPU)
    expected = TemperatureScaling().fit(Outputs.of(held_out.log_probs), held_out.labels)
    assert torch.equal(fitted.temperature, expected.temperature)


def test_nothing_is_fitted_on_test_predictions(tmp_path):
    run = Run.at(trained("vanilla", tmp_path))
    test = run.load_predictions("test")
    assert test.role == "test"
    with pytest.raises(BalcalError, match="predictions of the test role"):
        test.for_fitting()
    free = Predictions(test.log_probs, test.labels)
    assert free.for_fitting() is free
    content = (run.path / "predictions" / "test.npz").read_bytes()
    (run.path / "predictions" / "val.npz").write_bytes(content)
    with pytest.raises(BalcalError, match=r"val.npz was made under another name"):
        evaluate(run, registry.method("vanilla+ts"), CPU)
