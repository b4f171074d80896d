"""Two real processes: same gamma on both, the answer of one process, and a clean end when one of them dies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import free_port, torchrun
from runs_helper import history, trained
from shared_files import HELPERS
from two_ranks import OWN, own_loaders

from balcal.core import BalcalError
from balcal.registry import recipe
from balcal.runtime.devices import joined_world
from balcal.training.fit import train_recipe

SETTINGS = ["plan.epochs=6", "head.delta=0.5", "plan.optimiser=sgd", "plan.lr=0.1"]


def test_both_ranks_agree_and_shards_do_not_overlap(tmp_path):
    methods = ["balcal", "balcal-auto", "balcal-k+mixup", "balcal+plp"]
    done = torchrun(str(HELPERS / "two_ranks.py"), ",".join(methods), str(tmp_path), "plan.epochs=3")
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    for method in methods:
        first, second = (each[method] for each in ranks)
        assert first["gamma"] == second["gamma"], f"{method}, to the bit"
        assert first["state"] == second["state"], method
        assert first["records"] == second["records"], method
        assert len(first["seen"]) + len(second["seen"]) == 15 * 64, method
        assert set(first["seen"]).isdisjoint(second["seen"]), method
    for method in OWN:
        first, second = (each[f"own loaders, {method}"] for each in ranks)
        assert first == second, method
    one, first = own_loaders("vanilla+ts"), ranks[0]["own loaders, vanilla+ts"]
    assert first["weights"] == pytest.approx(one["weights"], abs=1e-3), "as one process on the whole batches"
    for found, alone in zip(first["history"], one["history"], strict=True):
        assert found["val_nll"] == pytest.approx(alone["val_nll"], abs=1e-4)


@pytest.mark.parametrize("method", ["balcal+averaged", "balcal+plp"])
def test_two_processes_give_what_one_gives(method, tmp_path):
    """`cnn-8` has no BatchNorm, so nothing but rounding may depend on how batches are shared out."""
    command = ["train", "digits", method, "--out", str(tmp_path / "two"), "--json"]
    for setting in SETTINGS:
        command += ["--set", setting]
    done = torchrun("-m", "balcal", *command)
    assert done.returncode == 0, done.stderr[-3000:]
    two = json.loads(done.stdout)
    one = trained(method, tmp_path / "one", settings=SETTINGS)
    figures = json.loads((one / "metrics.json").read_text())
    for name in ("accuracy", "nll", "ece", "mean_confidence"):
        assert two["test"][name] == pytest.approx(figures["test"][name], abs=1e-4), name
    assert two["dials"]["gamma"] == pytest.approx(figures["dials"]["gamma"], abs=1e-4)
    for a, b in zip(history(Path(two["run"])), history(one), strict=True):
        assert a["val_nll"] == pytest.approx(b["val_nll"], abs=1e-4)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
    assert any(0 < r["gamma"] < 1 for r in history(one)), "the case must exercise the solver"


def test_saves_in_mid_epoch_leave_the_history_as_it_is(tmp_path):
    """To the last digit of the loss, and of gamma: each process keeps its own sums, also over an interruption."""
    done = torchrun(str(HELPERS / "two_ranks_saving.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    histories = {path.parents[2].name: path.read_bytes() for path in tmp_path.glob("*/digits/*/history.jsonl")}
    assert set(histories) == {"never", "always", "resumed"}
    assert histories["always"] == histories["never"]
    assert histories["resumed"] == histories["never"]


def start_rank(rank, port, command, **more):
    env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
    env |= {"MASTER_ADDR": "127.0.0.1"} | more
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_that_is_frozen_is_waited_for_so_long_and_no_longer(tmp_path):
    command = [sys.executable, "-m", "balcal", "train", "digits", "vanilla", "--out", str(tmp_path)]
    command += ["--set", "plan.epochs=500"]
    port = free_port()
    with (
        start_rank(0, port, command, BALCAL_TIMEOUT="20") as first,
        start_rank(1, port, command, BALCAL_TIMEOUT="20") as second,
    ):
        try:
            for line in first.stderr:
                if "epoch 2/" in line:
                    break
            second.send_signal(signal.SIGSTOP)
            _, printed = first.communicate(timeout=240)
        finally:
            first.kill()
            second.kill()
    assert first.returncode == 1, printed
    assert (
        "another process of this run has not answered for 20 seconds (BALCAL_TIMEOUT), so this one stops too" in printed
    )
    assert "Traceback" not in printed


@pytest.mark.parametrize("limit", ["soon", "-1", "nan", "0"])
def test_a_limit_that_is_no_time_is_refused(limit, monkeypatch):
    monkeypatch.setenv("BALCAL_TIMEOUT", limit)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BalcalError, match="BALCAL_TIMEOUT must"), joined_world(torch.device("cpu")):
        pass


def test_several_processes_that_nobody_started_are_not_waited_for(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BalcalError, match="start them with torchrun, or unset WORLD_SIZE"):
        train_recipe(recipe("digits", "vanilla"), "nowhere", "cpu")


def test_when_one_process_dies_the_other_says_so_and_the_run_resumes(tmp_path):
    command = [sys.executable, "-m", "balcal", "train", "digits", "balcal", "--out", str(tmp_path)]
    for setting in ["plan.epochs=12", "plan.batch_size=16"]:
        command += ["--set", setting]
    port, dying = free_port(), [sys.executable, str(HELPERS / "two_ranks_dying.py"), *command[3:]]
    with start_rank(0, port, dying) as first, start_rank(1, port, dying, RANK_STEPS="170") as second:
        _, printed = first.communicate(timeout=600)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 1, printed
    assert "another process of this run has ended, so this one stops too" in printed
    assert "start the same command again to resume" in printed
    done = torchrun(*command[1:])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming at epoch" in done.stderr
    run = next((tmp_path / "digits").iterdir())
    assert [r["epoch"] for r in history(run)] == list(range(12))
    assert (run / "metrics.json").exists()
