"""Real CIFAR images, where this machine has them, and what `balcal data` prints of them."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from data_files import class_folders, data_folder
from PIL import Image
from shared_files import SHARED, needs

from balcal import registry
from balcal.data import known_files
from balcal.data.download import CACHE, DATA, OFFLINE
from balcal.evaluation.judge import load_splits
from balcal.runs import Run
from balcal.training.fit import train_recipe

__all__ = ["data_folder"]
FOLDER = SHARED / "data"


@pytest.fixture
def real(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA, str(FOLDER))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv(OFFLINE, "1")


def sha256(tensor):
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


@needs(FOLDER / "cifar10", FOLDER / "cifar100")
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        (
            "cifar10",
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        ),
        ("cifar100", None, "559556802d6f25382072f003d792bef169b45a63a3ef52883445488c511741de"),
    ],
)
def test_cifar_is_the_data_it_says_it_is(name, train, test, real):
    row = registry.dataset(name)
    parts = row.load()
    assert [len(part) for part in parts] == list(row.sizes)
    assert train is None or sha256(parts[0].images) == train
    assert sha256(parts[1].images) == test
    for part in parts:
        assert part.labels.bincount(minlength=row.num_classes).unique().numel() == 1, "balanced"
    tolerance = 2e-4 if train else 5e-4  # those of CIFAR-100 were re-encoded
    for channel, (mean, std) in enumerate(zip(row.mean, row.std, strict=True)):
        counts = np.bincount(parts[0].images[..., channel].reshape(-1).numpy(), minlength=256) / (50_000 * 32 * 32)
        levels = np.arange(256) / 255
        found = counts @ levels
        assert found == pytest.approx(mean, abs=tolerance)
        assert np.sqrt(counts @ (levels - found) ** 2) == pytest.approx(std, abs=tolerance)
    with np.load(FOLDER / name / "labels.npz") as labels:
        assert row.classes == tuple(labels["classes"])


@needs(FOLDER / "svhn")
def test_svhn_rebuilt(real, capsys):
    row = registry.dataset("svhn")
    train, test = row.load()
    assert (len(train), len(test)) == row.sizes
    assert sha256(test.images) == "2d5710419d10ec268a020874f4276c482d245392a04939ea9eba7f89bcf809c0"
    official = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    assert train.labels.bincount().tolist() == official, "the counts that its authors give, 0 to 9"
    assert test.labels.bincount().tolist() == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    pixels = train.images.double().reshape(-1, 3) / 255
    assert pixels.mean(0).tolist() == pytest.approx(row.mean, abs=1e-3)
    assert pixels.std(0).tolist() == pytest.approx(row.std, abs=1e-3)
    assert row.title == "SVHN, rebuilt"
    code, out, err = balcal_cli("data", "svhn", capsys=capsys)
    assert code == 0, err
    assert "12 files, 64.2 MB, 12 with their published checksums" in out
    assert "  form      SVHN, rebuilt: not the published files" in out


@needs(FOLDER / "svhn")
def test_a_run_says_that_its_digits_were_rebuilt(real, tmp_path, capsys):
    small = ("task.train_size=100", "task.val_size=100", "task.side=8", "task.backbone=cnn-8", "plan.epochs=1")
    settings = (word for setting in small for word in ("--set", setting))
    code, out, err = balcal_cli(
        *("train", "svhn", "vanilla", "--out", tmp_path, "--json", "--quiet", *settings), capsys=capsys
    )
    assert code == 0, err
    figures = json.loads(out)
    assert figures["data"]["title"] == "SVHN, rebuilt"
    assert json.loads((Path(figures["run"]) / "data.json").read_text())["title"] == "SVHN, rebuilt"


@needs(FOLDER / "cifar10h", FOLDER / "cifar10n")
def test_what_people_saw(real):
    row = registry.dataset("cifar10")
    seen = row.soft_labels()
    assert seen.shape == (10_000, 10)
    assert torch.allclose(seen.sum(1), torch.ones(10_000, dtype=torch.float64))
    assert (seen.argmax(1) == row.load()[1].labels).double().mean() > 0.99
    true = row.load()[0].labels
    for name, wrong in (("aggre", 0.090), ("random1", 0.172), ("random3", 0.176), ("worse", 0.402)):
        train, test = registry.dataset(f"cifar10n-{name}").load()
        assert float((train.labels != true).double().mean()) == pytest.approx(wrong, abs=1e-3)
        assert test is row.load()[1], "the test part keeps the true labels"


@needs(FOLDER / "textures32")
def test_textures_are_for_evaluation_only(real):
    train, test = registry.dataset("textures").load()
    assert (len(train), len(test)) == (0, 1200)


@needs(FOLDER / "cifar10")
def test_the_roles_of_a_real_task(real):
    splits = load_splits(registry.task("cifar10-cpu"))
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [5_000, 2_500, 10_000]
    for part, count in ((splits.train, 500), (splits.val, 250)):
        assert part.labels.bincount().tolist() == [count] * 10
    marks = [sha256(part.images)[:16] for part in (splits.train, splits.val)]
    assert marks == ["d4f8aaf33df45540", "98efd6b7c0756cf9"], "the same images in every version"


@needs(FOLDER / "cifar10", FOLDER / "cifar100")
@pytest.mark.parametrize("task", ["cifar10-cpu", "cifar100-cpu"])
def test_a_short_run_on_real_images(task, real, tmp_path, capsys):
    settings = ["plan.epochs=1", "task.train_size=500", "task.val_size=200", "task.side=8", "task.backbone=cnn-8"]
    code, out, err = balcal_cli(
        *("train", task, "balcal", "--out", tmp_path / "runs", "--json", "--quiet", "--offline"),
        *(word for setting in settings for word in ("--set", setting)),
        capsys=capsys,
    )
    assert code == 0, err
    figures = json.loads(out)
    assert figures["test"]["samples"] == 10_000
    assert figures["data"]["roles"]["train"]["samples"] == 500


@needs(FOLDER / "cifar10")
def test_data_tells_what_is_there(real, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    code, out, err = balcal_cli("data", "cifar10-cpu", "--out", sheet, capsys=capsys)
    assert code == 0, err
    assert re.search(r"cifar10: 10 classes, 50,000 \+ 10,000 images of 32 x 32 pixels", out)
    assert "7 files, 102.8 MB, 7 with their published checksums" in out
    assert "svhn, cifar100, textures" in out
    assert re.search(r"train +5,000  [0-9a-f]{16}  fits the weights", out)
    assert "no image is in two roles" in out
    with Image.open(sheet) as picture:
        assert picture.size[0] > 10 * 48
        assert len(np.unique(np.asarray(picture))) > 100
    code, out, _ = balcal_cli("data", "cifar10n-worse", "--json", capsys=capsys)
    stock = json.loads(out)
    assert [stored["name"] for stored in stock["stored"]] == ["cifar10", "cifar10n"]
    assert stock["stored"][0]["files"][0]["checksum"] == "as published"


def test_data_of_ones_own(data_folder, capsys, tmp_path):
    class_folders(data_folder / "pets", 60, side=60)
    code, out, err = balcal_cli("data", f"folder:{data_folder / 'pets'}", "--out", tmp_path / "s.png", capsys=capsys)
    assert code == 0, err
    assert "3 classes, 48 + 12 images of 60 x 60 pixels" in out
    assert "s.png: ten images of 3 classes" in out
    _, out, _ = balcal_cli("data", "digits", "--json", capsys=capsys)
    assert json.loads(out)["task"]["roles"]["select"]["samples"] == 297


def test_the_list_of_all_data(data_folder, capsys):
    code, out, _ = balcal_cli("data", "--json", capsys=capsys)
    assert code == 0
    stock = json.loads(out)
    assert stock["fashion"]["state"] == "in the package"
    assert stock["cifar10"]["state"] == stock["cifar10-c"]["state"] == "missing"
    assert "cifar100" in balcal_cli("data", capsys=capsys)[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "cifar10-cpu", "balcal"], ["cifar-10-python.tar.gz", "`balcal data cifar10`"]),
        (["train", "cifar100-cpu"], ["cifar-100-python.tar.gz", "`balcal data cifar100`"]),
        (["data", "svhn"], ["train_32x32.mat", "`balcal data svhn`"]),
        (["data", "tiny-imagenet"], ["tiny-imagenet-200.zip"]),
        (["data", "imagenet"], ["cannot be fetched by command", "the folder imagenet with train, val"]),
        (["data", "cifar100-c"], ["CIFAR-100-C.tar"]),
        (["data", "cifar10n-worse"], ["cifar-10-python.tar.gz"]),
        (["data", "cifr10"], ["unknown task or data set `cifr10`; did you mean `cifar10`?"]),
        (["data", "folder:nowhere"], ["there is no"]),
    ],
)
def test_missing_data_is_one_sentence(arguments, expected, data_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = balcal_cli(*arguments, "--offline", capsys=capsys)
    assert code == 1
    assert out == ""
    assert err.startswith("balcal: ")
    assert err.count("\n") == 1
    for words in expected:
        assert words in err
    assert not list(tmp_path.glob("**/*.pt"))


def test_a_refused_connection_is_the_same_sentence(data_folder, capsys, monkeypatch):
    monkeypatch.delenv(OFFLINE)
    for download in known_files.SVHN.forms[0].downloads:
        monkeypatch.setitem(download.__dict__, "urls", ("http://127.0.0.1:9/nobody",))
    code, _, err = balcal_cli("data", "svhn", capsys=capsys)
    assert code == 1
    assert "train_32x32.mat could not be fetched (http://127.0.0.1:9/nobody: no connection)" in err
    assert "`balcal data svhn`" in err


@needs(FOLDER / "cifar10", FOLDER / "cifar100")
@pytest.mark.parametrize("task", ["cifar10-fast", "cifar100-fast"])
def test_a_short_fast_run_judges_both_epochs(task, real, tmp_path):
    """The task's own network and plan, in bf16 whatever the CPU has, on a few small images."""
    small = ["plan.epochs=2", "task.train_size=512", "task.val_size=200", "task.side=16", "plan.precision=bf16"]
    asked = registry.recipe(task, "balcal-logits+last", 0, small)
    figures = train_recipe(asked, tmp_path, "cpu", quiet=True)
    assert (figures["method"], figures["epoch"]) == ("balcal-logits+last", 1)
    assert figures["test"]["samples"] == registry.dataset(asked.task.dataset).sizes[1]
    assert figures["data"]["roles"]["train"]["samples"] == 512
    run = Run.at(Path(figures["run"]))
    assert 1 in run.kept()
    assert run.recipe.task.plan.precision == "bf16"
