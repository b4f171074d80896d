"""A process may die at any file operation of any verb: the same command again leaves the same bits, and no debris."""

import re

import pytest
import torch
from crash_points import sweep
from test_cli import balcal_cli

VOLATILE = {"log.txt", "environment.json", "seconds.json"}
"""when, where and how long: they differ between any two runs"""
TIMES = re.compile(rb'"(started|seconds|date|created|runs)": ("[^"]*"|[0-9.]+|null)')
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
            code, told, error = balcal_cli(*arguments, capsys=capsys)
            if code:
                raise AssertionError(error)
            return told

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
}


@pytest.mark.parametrize("method", TRAININGS.values(), ids=TRAININGS)
def test_training(method, tmp_path, cli):
    sweep(cli("train", "digits", *method, *QUICK, "--out", tmp_path / "r"), tmp_path / "r", tmp_path / "c", remains)
