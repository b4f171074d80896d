"""A process may die at any file operation of any verb: the same command again leaves the same bits, and no debris."""

import re
import shutil

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from crash_points import sweep
from data_files import data_folder, images, with_test_files
from download_server import DownloadServer, archive, server_url
from PIL import Image
from runs_helper import trained

from balcal.data import image_folders, known_files, own_images
from balcal.data.locate import _read

__all__ = ["archive", "data_folder", "server_url"]

VOLATILE = {"log.txt", "environment.json", "seconds.json"}
"""when, where and how long: they differ between any two runs"""
TIMES = re.compile(rb'"(started|seconds|found)": ("[^"]*"|[0-9.]+|[a-z]+)')
QUICK = ("--set", "plan.epochs=2", "--set", "plan.batch_size=256", "--quiet")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli(capsys):
    """A command that must succeed, as often as it is called."""

    def made(*arguments):
        def command():
            code, printed, error = balcal_cli(*arguments, capsys=capsys)
            if code:
                raise AssertionError(error)
            return printed

        return command

    return made


def remains(root):
    """Every file by name, with what may not differ of its content. Nothing that is unfinished may be left."""
    found = {}
    for path in sorted(root.rglob("*")):
        assert ".unfinished" not in path.name, path
        if path.is_file() and path.name not in VOLATILE and path.name != ".claim":
            found[str(path.relative_to(root))] = TIMES.sub(b"", path.read_bytes())
    return found


TRAININGS = {
    "plain": ["vanilla"],
    "averaged weights": ["balcal-auto"],
    "two-stage": ["tst"],
    "stitched": ["pcs", "--set", "parent.plan.epochs=2"],
    "post-hoc on top": ["balcal+ts"],
    "saved in mid-epoch": ["balcal", "--save-every", "0"],
    "every epoch kept": ["vanilla", "--keep-epochs", "1"],
    "joined": ["2*vanilla+ts"],
}
AFTER_OTHERS = {"tst": "tst", "pcs": "pcs", "2*vanilla+ts": "2xvanilla"}
"""method -> how the folder of its own run begins"""


@pytest.mark.parametrize("method", TRAININGS.values(), ids=TRAININGS)
def test_training(method, tmp_path, cli):
    """Where another run comes first, that one is there: it dies as any other does."""
    root, before = tmp_path / "r", tmp_path / "before"
    command = cli("train", "digits", *method, *QUICK, "--out", root)
    if own := AFTER_OTHERS.get(method[0]):
        command()
        last = list(root.glob(f"digits/{own}-*"))
        assert last
        for run in last:
            shutil.rmtree(run)
        root.rename(before)
    sweep(command, root, tmp_path / "c", remains, before if before.exists() else None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of runs with one finished run of two classifiers in it."""
    root = tmp_path_factory.mktemp("finished") / "runs"
    run = trained("balcal", root, settings=["plan.epochs=2", "plan.batch_size=256"])
    return root, run.relative_to(root)


VERBS = {
    "evaluate beyond": ["evaluate", "RUN", "--corruptions", "fog", "--against", "fashion", "--quiet"],
    "evaluate with a map of outputs": ["evaluate", "RUN", "--with", "gamma", "--against", "fashion", "--quiet"],
    "retrofit": ["retrofit", "RUN", "--with", "vanilla", "--set", "plan.epochs=1", "--quiet"],
    "export": ["export", "RUN", "--to", "state", "--most", "20"],
    "report": ["report", "RUN"],
    "calibrate": ["calibrate", "RUN", "--with", "vs"],
    "arena": [
        "arena",
        "digits",
        "--methods",
        "balcal",
        "--seeds",
        "1",
        *QUICK,
        "--runs",
        "ROOT",
        "--out",
        "ROOT/t.md",
    ],
    "keep epochs": ["train", "digits", "balcal", "--keep-epochs", "1", "--out", "ROOT", *QUICK],
}


@pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)
def test_verbs(arguments, finished, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    source, run = finished
    root = tmp_path / "r"
    command = cli(*(part.replace("ROOT", str(root)).replace("RUN", str(root / run)) for part in arguments))
    sweep(command, root, tmp_path / "c", remains, before=source)


def test_calibrating_files(tmp_path, cli):
    root, rng = tmp_path / "r", np.random.default_rng(0)
    for name in ("held_out", "test"):
        np.savez(tmp_path / f"{name}.npz", probs=rng.dirichlet(np.ones(3), 200), labels=rng.integers(3, size=200))
    command = ["calibrate", tmp_path / "held_out.npz", "--apply", tmp_path / "test.npz", "--with", "ts"]
    sweep(cli(*command, "--out", root / "new" / "calibrated.npz"), root, tmp_path / "c", remains)


def test_fetching_and_unpacking(data_folder, server_url, archive, tmp_path):
    DownloadServer.content = archive.read_bytes()
    stored = with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive, [f"{server_url}/small.tar.gz"])

    def command():
        _read.cache_clear()
        stored()

    sweep(command, tmp_path / "cache", tmp_path / "c", remains)


def test_the_cache_of_decoded_images(data_folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(image_folders, "FEW", 5)
    folder = tmp_path / "pets"
    for number in range(12):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images(1, 8, number)[0]).save(path)
    seen = []

    def command():
        own_images._read.cache_clear()
        (train, test), _ = own_images.folder_parts(folder, None)
        seen.append(torch.cat([train.pick(torch.arange(len(train))), test.pick(torch.arange(len(test)))]))
        assert torch.equal(seen[0], seen[-1])

    sweep(command, tmp_path / "cache", tmp_path / "c", remains)
