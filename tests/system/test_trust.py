"""A run does not believe its files blindly: whatever is altered, the result is the same, or somebody says so."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from runs_helper import trained
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import balcal
from balcal.core import BalcalError
from balcal.data.splits import loader_digest
from balcal.evaluation.beyond import BeyondOptions, evaluate_beyond
from balcal.evaluation.judge import branch_predictions, evaluate
from balcal.registry import method, recipe
from balcal.report import write_report
from balcal.runs import Run
from balcal.runtime import files
from balcal.runtime.devices import Stopped
from balcal.training import loop as train
from balcal.training.fit import train_recipe

SETTINGS = ["plan.epochs=4"]
PLAIN = (("evaluate", "--with", "ts", "--json"), ("audit", "--json"))
BEYOND = (("evaluate", "--with", "ts", "--corruptions", "fog", "--against", "fashion", "--quiet", "--json"),)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same recipe in two seeds, with all that can be asked of it stored."""
    root = tmp_path_factory.mktemp("trust")
    found = [trained("balcal", root, seed, SETTINGS) for seed in (0, 1)]
    for run in found:
        write_report(run)
        held = Run.at(run)
        asked = held.recipe.method + method("ts")
        evaluate(held, asked, torch.device("cpu"))
        evaluate_beyond(
            held, asked, torch.device("cpu"), BeyondOptions(True, True, False, False, ("fog",), ("fashion",)), True
        )
    return found


def alterations(path, other):
    """(what is done to a file, its new content; None: it is gone)"""
    content = path.read_bytes()
    yield "is gone", None
    yield "is empty", b""
    yield "is cut off", content[: len(content) // 2]
    yield "has a flipped byte", content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 4])
    twin = other / path.name
    if twin.exists():
        yield "is of another seed", twin.read_bytes()
    if path.suffix == ".json":
        for text in ("null", "[]", "{}", "7", '"text"'):
            yield f"is {text}", text.encode()


def answers(run, verbs, capsys):
    """What a run says when it is asked: JSON, or a sentence."""
    found = {}
    for verb, *arguments in verbs:
        code, out, error = balcal_cli(verb, run, *arguments, capsys=capsys)
        found[verb] = json.loads(out) if code == 0 else error
    return found


def looked_at(run, verbs):
    """The files that these verbs have to do with; of five severities one."""
    beyond = {"shift+ts.json", "ood+ts.json", "outside-fashion.npz", "outside-fashion-energy.npz", "test-energy.npz"}
    beyond |= {path.name for path in run.glob("predictions/shift-fog-1-*")}
    passed = {".claim", "log.txt", "report.html"} | {path.name for path in run.glob("predictions/shift-*")} - beyond
    for folder in (".", "checkpoints", "predictions"):
        for path in sorted((run / folder).iterdir()):
            if path.is_file() and path.name not in passed and (path.name in beyond) == (verbs is BEYOND):
                yield path


@pytest.mark.parametrize("verbs", [PLAIN, BEYOND], ids=["plain", "beyond"])
def test_one_altered_file_at_a_time(verbs, runs, tmp_path, capsys):
    """Each file of a finished run is lost, cut, spoilt, swapped with another seed's: no other answer without a word."""
    run = tmp_path / "copy" / runs[0].name
    shutil.copytree(runs[0], run)
    expected = answers(run, verbs, capsys)
    trials = 0
    for path in list(looked_at(run, verbs)):
        for what, content in alterations(path, runs[1] / path.relative_to(run).parent):
            path.unlink() if content is None else path.write_bytes(content)
            for name, answer in answers(run, verbs, capsys).items():
                trials += 1
                where = f"{name}: {path.name} {what}"
                if isinstance(answer, str):
                    assert answer.startswith("balcal: "), where
                    assert answer.count("\n") == 1, where
                else:
                    assert answer == expected[name], where
            shutil.rmtree(run)
            shutil.copytree(runs[0], run)
    assert trials > 30


def test_the_branches_are_shown_together_or_computed_again(runs, tmp_path):
    run = tmp_path / runs[0].name
    shutil.copytree(runs[0], run)
    (run / "predictions" / "test-branch1.npz").unlink()
    place = torch.device("cpu")
    assert len(branch_predictions(Run.at(run), place)) == 2
    (run / "predictions" / "test-branch0.npz").write_bytes((run / "predictions" / "test-branch1.npz").read_bytes())
    with pytest.raises(BalcalError, match=r"test-branch0.npz was made under another name"):
        branch_predictions(Run.at(run), place)


def interrupted(tmp_path, epochs=2):
    """A run of 6 epochs that was asked to stop after some of them."""
    asked = recipe("digits", "vanilla", 0, ["plan.epochs=6"])
    with pytest.MonkeyPatch.context() as patch:

        def stop(session):
            if session.epoch == epochs:
                raise Stopped("in a test", 15)

        patch.setattr(train, "stop_if_asked", stop)
        with pytest.raises(Stopped):
            train_recipe(asked, tmp_path, "cpu", quiet=True)
    return Run(tmp_path, asked).path


def test_looking_at_an_unfinished_run_does_not_finish_it(tmp_path, capsys):
    expected = json.loads(
        (trained("vanilla", tmp_path / "whole", settings=["plan.epochs=6"]) / "metrics.json").read_text()
    )
    run = interrupted(tmp_path / "cut")
    before = sorted(run.rglob("*"))
    for verb in (
        ("evaluate", run),
        ("evaluate", run, "--corruptions", "fog"),
        ("calibrate", run, "--with", "ts"),
        ("export", run, "--to", "state"),
        ("report", run),
        ("retrofit", run),
        ("audit", run),
    ):
        code, _, error = balcal_cli(*verb, capsys=capsys)
        assert code == 1, verb
        assert "is not finished: `balcal train` goes on with it" in error, verb
    with pytest.raises(BalcalError, match="is not finished"):
        balcal.load(run)
    assert [path for path in sorted(run.rglob("*")) if path.name != ".claim"] == [
        p for p in before if p.name != ".claim"
    ]
    figures = train_recipe(recipe("digits", "vanilla", 0, ["plan.epochs=6"]), tmp_path / "cut", "cpu", quiet=True)
    assert figures["metrics"] == expected["metrics"]


@pytest.mark.parametrize("lines", [1, 0])
def test_a_stale_history_decides_nothing(lines, tmp_path):
    """A process that died before the history was replaced: neither the epoch nor a child's parent is chosen by it."""
    run = trained("vanilla", tmp_path, settings=["plan.epochs=3", "plan.keep=all"])
    expected = json.loads((run / "metrics.json").read_text())
    text = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text("".join(text.splitlines(keepends=True)[:lines]))
    for path in (*run.glob("predictions/*"), run / "metrics.json", *run.glob("checkpoints/finished.*")):
        path.unlink()
    trained("vanilla", tmp_path, settings=["plan.epochs=3", "plan.keep=all"])
    assert json.loads((run / "metrics.json").read_text()) == expected
    assert (run / "history.jsonl").read_text() == text


def test_a_run_of_an_earlier_version_is_found_and_judged_anew(tmp_path):
    """It has no record of its end, and its predictions do not say what they were made from."""
    run = trained("vanilla", tmp_path)
    expected = json.loads((run / "metrics.json").read_text())
    for record in run.glob("checkpoints/finished.*"):
        record.unlink()
    for state in run.glob("checkpoints/state-*.pt"):
        content = torch.load(state, weights_only=True)
        state.unlink()
        files.save_sealed(
            run / "checkpoints",
            state.name.split(".")[0],
            {name: value for name, value in content.items() if name not in ("weights", "origin")},
        )
    with np.load(run / "predictions" / "test.npz") as arrays:
        np.savez(run / "predictions" / "test.npz", log_probs=arrays["log_probs"] - 1, labels=arrays["labels"])
    (run / "metrics.json").write_text(json.dumps({"metrics": {}}))
    trained("vanilla", tmp_path)
    assert json.loads((run / "metrics.json").read_text()) == expected


def test_starting_over_may_be_cut_short(tmp_path):
    """`--keep-epochs` on a run that did not keep them; killed after each file that it removes, it is no dead end."""
    source = trained("vanilla", tmp_path / "source")
    removed = 0
    while True:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "source", tmp_path / "copy")
        run, count = Run.at(tmp_path / "copy" / source.relative_to(tmp_path / "source")), removed

        with pytest.MonkeyPatch.context() as patch:
            real = os.unlink

            def dies(path, *args, real=real, **kwargs):
                nonlocal count
                count -= 1
                if count < 0:
                    raise KeyboardInterrupt
                real(path, *args, **kwargs)

            patch.setattr(os, "unlink", dies)
            try:
                run.start_over()
                break
            except KeyboardInterrupt:
                removed += 1
        for more in ({}, {"keep_epochs": 1}):
            again = trained("vanilla", tmp_path / "copy", **more)
        assert (again / "history.jsonl").read_bytes() == (source / "history.jsonl").read_bytes()
        assert len(Run.at(again).kept()) == 3
    assert removed > 4


def net(last=nn.ReLU):
    torch.manual_seed(0)
    return balcal.wrap(nn.Sequential(nn.Linear(2, 8), last(), nn.Linear(8, 2)), 2, "vanilla")


def test_fit_does_not_take_up_a_training_on_other_data(tmp_path):
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    loader, inverted = (DataLoader(TensorDataset(x, labels), 16, shuffle=True) for labels in (y, 1 - y))
    first = balcal.fit(net(), loader, loader, epochs=2, out=tmp_path, quiet=True)
    assert balcal.fit(net(), loader, loader, epochs=2, out=tmp_path, quiet=True) == first, "the same call finds it"
    with pytest.raises(BalcalError, match=r"the training data has changed since .* was begun"):
        balcal.fit(net(), inverted, loader, epochs=2, out=tmp_path, quiet=True)
    with pytest.raises(BalcalError, match=r"the validation data has changed since .* was begun"):
        balcal.fit(net(), loader, inverted, epochs=2, out=tmp_path, quiet=True)
    with pytest.raises(BalcalError, match=r"the network has changed since .* was begun"):
        balcal.fit(net(nn.Tanh), loader, loader, epochs=2, out=tmp_path, quiet=True)


class Augmented(Dataset):
    """Images that are never twice the same, with labels that are."""

    def __init__(self, flip):
        self.flip = flip

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return torch.rand(3), (i + self.flip) % 2


def test_a_loader_s_digest_changes_with_its_data_alone():
    state = torch.get_rng_state()
    augmented = [loader_digest(DataLoader(Augmented(flip), 10, shuffle=True)) for flip in (0, 0, 1)]
    assert augmented[0] == augmented[1] != augmented[2]
    assert torch.equal(torch.get_rng_state(), state), "looking draws no number that training would have drawn"
    batches = [[(torch.ones(2, 3), torch.zeros(2))], [(torch.ones(2, 3), torch.ones(2))]]
    assert loader_digest(batches[0]) == loader_digest(list(batches[0])) != loader_digest(batches[1])


def test_a_recipe_that_cannot_be_trained_leaves_no_folder(tmp_path):
    with pytest.raises(BalcalError):
        train_recipe(recipe("digits", "vanilla", 0, ["task.val_size=5000"]), tmp_path / "runs", "cpu", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_file_systems_without_locks_are_no_obstacle(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    trained("vanilla", tmp_path)


def test_check_says_what_does_not_fit(runs, tmp_path, capsys):
    run = tmp_path / runs[0].name
    shutil.copytree(runs[0], run)
    code, printed, _ = balcal_cli("check", run, capsys=capsys)
    assert code == 0, printed
    assert "finished" in printed
    assert "all fit" in printed
    spoilt = {
        "predictions/test.npz": (runs[1] / "predictions" / "test.npz").read_bytes(),
        "metrics.json": (run / "metrics.json").read_bytes().replace(b'"seed": 0', b'"seed": 3'),
        "history.jsonl": b"",
        "data.json": b"null",
        "shift+ts.json": (runs[1] / "shift+ts.json").read_bytes(),
    }
    weights = next(run.glob("checkpoints/weights-*.pt"))
    spoilt[f"checkpoints/{weights.name}"] = weights.read_bytes()[:-1]
    for name, content in spoilt.items():
        (run / name).write_bytes(content)
    code, printed, _ = balcal_cli("check", run, "--json", capsys=capsys)
    assert code == 1
    findings = {each["file"]: each for each in json.loads(printed)["findings"]}
    assert set(findings) == {Path(name).name for name in spoilt}
    assert findings["test.npz"]["wrong"] == "is of another run"
    assert all(each["mend"] for each in findings.values())


def test_check_of_an_unfinished_run(tmp_path, capsys):
    code, printed, _ = balcal_cli("check", interrupted(tmp_path), capsys=capsys)
    assert code == 0, printed
    assert "not finished: `balcal train` goes on with it" in printed


def test_a_parent_that_was_trained_anew_is_noticed(tmp_path):
    """A two-stage run that was interrupted goes on only from the weights that it began with."""
    settings = ["plan.epochs=2"]
    child = trained("tst", tmp_path, settings=settings)
    for record in child.glob("checkpoints/finished.*"):
        record.unlink()
    parent = Run.at(child).recipe.parent
    other = train_recipe(recipe("digits", "vanilla", 1, settings), tmp_path / "other", "cpu", quiet=True)
    state = Run(tmp_path, parent)
    for path in state.checkpoints.iterdir():
        path.unlink()
    theirs = Run.at(Path(other["run"]))
    record = theirs.ending().as_dict() | {"fingerprint": state.fingerprint}
    for path in theirs.checkpoints.glob("weights-*"):
        shutil.copy(path, state.checkpoints)
    files.save_sealed_json(state.checkpoints, "finished", record)
    with pytest.raises(BalcalError, match=r"the run that it starts from has changed since"):
        trained("tst", tmp_path, settings=settings)


def test_one_python_process_after_another(tmp_path):
    """An evaluation during a training is refused, by the lock alone."""
    asked = recipe("digits", "vanilla", 0, ["plan.epochs=3"])
    run = trained("vanilla", tmp_path)
    with Run(tmp_path, asked).claimed():
        done = subprocess.run(
            [sys.executable, "-m", "balcal", "evaluate", str(run)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "is being trained by another process" in done.stderr
    with Run(tmp_path, asked).in_use():
        for verb, code in ((("evaluate", str(run)), 0), (("train", "digits", "vanilla", "--out", str(tmp_path)), 1)):
            more = ["--set", "plan.epochs=3"] if verb[0] == "train" else []
            done = subprocess.run(
                [sys.executable, "-m", "balcal", *verb, *more], capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stderr
