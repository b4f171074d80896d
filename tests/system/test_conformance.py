"""What every method owes, alone and in the combinations of the paper, on a few real images."""

import json
import math
import os
import sys

import pytest
import torch
from command_line import balcal_cli, torchrun
from conformance_helper import AFTERWARDS, FIRST, ON_TOP, SMALL, SMALLER, STEPS, TRAINED, drifted, recorded, watched
from runs_helper import history, same, trained, trained_after_power_cut, whole
from shared_files import HELPERS

import balcal
from balcal.data.batches import MemoryBatches, Pixels
from balcal.evaluation.judge import load_splits
from balcal.evaluation.predict import predict_batches
from balcal.registry import dataset, recipe, table
from balcal.runs import Run
from balcal.runtime.provenance import describe


@pytest.fixture(scope="module", autouse=True)
def _in_haste():
    """Whether the disk has really got everything is for test_kill.py to ask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


class Trial:
    """A method, trained once, and everything that there is to see of it."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        with watched() as (losses, models):
            self.run = trained(name, folder, settings=SMALL)
        self.all_losses, self.model = losses, models[-1]
        self.losses = losses[-STEPS:]
        self.history = history(self.run)
        self.asked = recipe("digits", name, 0, SMALL)


@pytest.fixture(scope="module", params=[*TRAINED, *ON_TOP])
def trial(request, tmp_path_factory):
    return Trial(request.param, tmp_path_factory.mktemp("trial"))


def first_epoch_of(recipe, root):
    return history(Run(root, recipe).path)[0]["loss"]


def test_lowers_its_loss(trial):
    """By a twentieth at least, from the first epoch to the last; if each begins anew, from the parent's first."""
    restarts = trial.asked.method.changes.get("before_epoch") == "pcs"
    chosen = json.loads((trial.run / "metrics.json").read_text())["epoch"]
    first = first_epoch_of(trial.asked.parent if restarts else trial.asked, trial.folder)
    assert trial.history[chosen if restarts else -1]["loss"] < 0.95 * first
    assert len(trial.losses) == STEPS
    assert all(map(math.isfinite, trial.all_losses))
    assert trial.history[chosen]["loss"] == pytest.approx(sum(trial.losses[8 * chosen : 8 * chosen + 8]) / 8, rel=1e-5)


def test_survives_saving_and_loading_to_the_bit(trial):
    """The model in memory and one loaded under another seed say the same."""
    torch.manual_seed(4711)
    loaded = balcal.load(trial.run)
    assert same(dict(loaded.state_dict()), dict(trial.model.state_dict()))
    test = MemoryBatches(load_splits(trial.asked.task).test, Pixels.of(dataset("digits"), torch.device("cpu")), 64)
    found = [predict_batches(model, test).log_probs for model in (trial.model, loaded)]
    assert torch.equal(*found)
    assert torch.equal(found[0], Run.at(trial.run).load_predictions("test").log_probs)


def test_once_more_and_resumed_to_the_bit(trial, tmp_path):
    """Trained again from the start, and interrupted in mid-epoch: every loss, weight and prediction is the same."""
    if trial.name != trial.run.name.rpartition("-seed")[0]:
        pytest.skip("the same run as without what is applied afterwards")
    cut = len(trial.all_losses) - STEPS + 13
    with watched() as (losses, _):
        again = trained_after_power_cut(trial.name, tmp_path, cut, SMALL)
    assert same(whole(again), whole(trial.run))
    assert [*losses[:cut], *losses[cut + 1 :]] == trial.all_losses, "the batch of the power cut was seen twice"


def test_its_first_losses_are_the_recorded_ones(trial):
    name = trial.asked.for_training().method.name
    golden = recorded().get(name)
    if name not in TRAINED:
        pytest.skip("a combination of our own")
    assert golden is not None, "record it with `python tests/helpers/record_golden.py`"
    for step, (loss, before) in enumerate(zip(trial.losses[:FIRST], golden, strict=True)):
        assert loss == pytest.approx(before, rel=drifted(name, step)), (
            f"loss {step + 1} moved; if that is meant, `python tests/helpers/record_golden.py` and say why"
        )


def test_prints_itself_and_keeps_its_name(trial, capsys):
    method = balcal.method(trial.name)
    assert method.name == str(method) == trial.name
    assert method == balcal.method(trial.name)
    assert repr(method) == repr(balcal.method(trial.name))
    status, out, _ = balcal_cli("show", trial.name, capsys=capsys)
    assert status == 0
    for role in method.changes:
        assert role == "parent" or f"{getattr(method, role)}" in out
    assert json.loads(json.dumps(describe(method)))["name"] == trial.name
    asked = json.loads((trial.run / "recipe.json").read_text())
    assert Run.at(trial.run).recipe == trial.asked.for_training()
    assert asked["fingerprint"] == trial.run.name.rpartition("-")[2]


def test_every_record_has_its_method():
    assert sorted(recorded()) == sorted(TRAINED)


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_is_applied_afterwards_keeps_its_name(name, capsys):
    """The rest of what these owe is in test_fitting.py."""
    assert balcal.method(name).name == balcal.method(f"balcal+{name}").name.removeprefix("balcal+") == name
    assert recipe("digits", f"balcal+{name}").address() == recipe("digits", "balcal").address()
    status, out, _ = balcal_cli("show", name, capsys=capsys)
    assert status == 0
    method = balcal.method(name)
    assert all(str(getattr(method, role)) in out for role in method.changes)


ALONE = ["tst", "balcal+pcs"]
"""one process must give the same: each sample stands for itself, and nothing is drawn for a process's share"""
SHARED = ["mmce-w", "mit", "vtst+ts"]


def test_in_two_processes(tmp_path):
    """Of kinds that test_distributed.py has not: both processes end with the same weights, and ALONE with one's."""
    script = HELPERS / "two_ranks_registry.py"
    done = torchrun(str(script), str(tmp_path / "two"), *ALONE, *SHARED)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / "two" / f"rank{rank}.json").read_text()) for rank in (0, 1))
    for name in (*ALONE, *SHARED):
        assert first[name][1] == second[name][1], f"{name}: to the bit"
        assert first[name][0] != second[name][0], f"{name}: each has its own share of the images"
    for name in ALONE:
        trained(name, tmp_path / "one", settings=SMALLER)
    for one in (tmp_path / "one" / "digits").iterdir():
        two = tmp_path / "two" / "digits" / one.name
        for a, b in zip(history(two), history(one), strict=True):
            for figure in ("loss", "val_nll", "val_acc"):
                assert a[figure] == pytest.approx(b[figure], abs=1e-3), (one.name, figure)


@pytest.mark.parametrize("name", ["mmce", "mmce-w", "mdca", "esd", "mixup", "mit"])
def test_what_looks_at_a_whole_batch_says_what_sharing_it_means(name):
    method = table("methods")[name]
    home = sys.modules[type(getattr(method, next(iter(method.changes)))).__module__]
    assert "process" in home.__doc__
