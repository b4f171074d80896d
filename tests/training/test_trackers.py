"""Trackers get every epoch and the figures in their own formats; a tracker that fails does not stop a training."""

import csv
import errno
import multiprocessing
import os
import signal
import sqlite3
import sys

import pytest
from runs_helper import QUICK, history, same, trained, trained_after_power_cut, whole
from terminal import Terminal
from tracking import track

from balcal.core import BalcalError
from balcal.registry import recipe
from balcal.runtime.progress import Progress
from balcal.training import trackers
from balcal.training.fit import train_recipe
from balcal.training.trackers import Tracked, Trackers


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_every_epoch_and_the_end_and_changes_nothing_of_the_run(tmp_path):
    table = tmp_path / "epochs.csv"
    plain = trained("balcal", tmp_path / "plain")
    run = trained("balcal", tmp_path / "tracked", track=[f"csv:{table}"])
    assert run.name == plain.name, "trackers are no part of the recipe"
    assert same(whole(run), whole(plain))
    *epochs, end = rows(table)
    assert [float(row["val_ece"]) for row in epochs] == [record["val_ece"] for record in history(run)]
    assert [int(row["epoch"]) for row in epochs] == [1, 2, 3]
    assert epochs[0]["run"] == f"digits/{run.name}"
    assert 0 < float(end["test_accuracy"]) <= 1
    trained("balcal", tmp_path / "tracked", track=[f"csv:{table}"])
    assert rows(table) == [*epochs, end], "a finished run is sent again, and replaces its lines"
    trained("vanilla", tmp_path / "tracked", settings=["plan.epochs=1"], track=[f"csv:{table}"])
    assert len(rows(table)) == 6
    assert rows(table)[0]["gamma"] == epochs[0]["gamma"]


def test_a_resumed_run_goes_on_where_it_was(tmp_path):
    table = tmp_path / "epochs.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runs_helper.train_recipe", lambda *a, **k: train_recipe(*a, **k, track=[f"csv:{table}"]))
        run = trained_after_power_cut("balcal", tmp_path, step=30)
    assert [row["epoch"] for row in rows(table)] == ["1", "2", "3", ""]
    assert [float(row["loss"]) for row in rows(table)[:3]] == [record["loss"] for record in history(run)]


def started(*arguments):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["balcal.training.trackers"])
    process = context.Process(target=track, args=arguments)
    process.start()
    return process


def test_two_processes_take_turns_in_one_file_and_lose_nothing(tmp_path):
    """Strictly one after the other, and each is killed in the end: what it wrote stays."""
    table, turns = tmp_path / "epochs.csv", []
    for name in ("a", "b"):
        mine, theirs = multiprocessing.Pipe()
        turns.append((name, mine, started(table, name, 3, theirs)))
    for step in (1, 2, 3):
        for _, pipe, _ in turns:
            pipe.send("go")
            assert pipe.recv() == step
    for _, _, process in turns:
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert [(row["run"], row["epoch"]) for row in rows(table)] == [(n, str(e)) for e in (1, 2, 3) for n in "ab"]
    for row in rows(table):
        assert float(row["loss"]) == 1 / int(row["epoch"])
        assert float(row[f"only_{row['run']}"]) == int(row["epoch"])
    assert os.listdir(tmp_path) == ["epochs.csv"]


def test_three_processes_at_once_lose_nothing(tmp_path):
    table = tmp_path / "epochs.csv"
    table.write_text("run,epoch,note\nearlier,1,kept\n")
    processes = [started(table, name, 20) for name in "abc"]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = [(row["run"], row["epoch"]) for row in rows(table)]
    assert len(found) == 1 + 3 * 21
    assert set(found) == {("earlier", "1")} | {(n, str(e)) for n in "abc" for e in range(1, 21)} | {
        (n, "") for n in "abc"
    }
    assert rows(table)[0]["note"] == "kept"


def test_a_file_system_without_locks_keeps_its_file_and_a_taken_one_is_given_up(tmp_path, monkeypatch):
    """The first says so with another number than that of a lock which somebody else has."""
    table, errors = tmp_path / "epochs.csv", [errno.ENOLCK]

    def refused(file, how):
        raise OSError(errors[0], os.strerror(errors[0]))

    monkeypatch.setattr(trackers.fcntl, "flock", refused)
    monkeypatch.setattr(trackers, "LOCK_SECONDS", 0.1)
    notes = []
    tracker = Trackers((f"csv:{table}",), notes.append)
    tracker.start(Tracked("a"))
    tracker.epoch({"epoch": 0, "loss": 1.0})
    assert notes == []
    errors[0] = errno.EWOULDBLOCK
    tracker.epoch({"epoch": 1, "loss": 1.0})
    assert [row["epoch"] for row in rows(table)] == ["1"]
    (note,) = notes
    assert "another process has kept" in note
    assert "training goes on without it" in note


def test_a_file_that_is_no_table_of_ours_is_left_alone(tmp_path):
    table, notes = tmp_path / "theirs.csv", []
    table.write_text("a,b\n1,2,3\n")
    tracker = Trackers((f"csv:{table}",), notes.append)
    tracker.start(Tracked("a"))
    tracker.epoch({"epoch": 0, "loss": 1.0})
    assert "name another file" in notes[0]
    assert table.read_text() == "a,b\n1,2,3\n"


def test_tensorboard_reads_back_every_epoch(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'balcal[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trained("balcal", tmp_path, track=[f"tensorboard:{tmp_path / 'board'}"])
    events = EventAccumulator(str(tmp_path / "board" / "digits" / run.name))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("val_nll")]
    assert points == [(r["epoch"] + 1, pytest.approx(r["val_nll"])) for r in history(run)]
    assert len(events.Scalars("gamma")) == 3
    assert events.Scalars("test_ece")[0].step == 3


@pytest.mark.filterwarnings("ignore")  # MLflow and SQLAlchemy warn of each other
def test_mlflow_reads_back_every_epoch(tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'balcal[mlflow]'")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracked = Tracked("digits/balcal-seed0-0123456789", {"task.name": "digits", "seed": "0"})
    records = [{"epoch": e, "loss": 1.0 / (e + 1), "branch": "root"} for e in range(3)]
    notes = []
    first = Trackers((f"mlflow:{uri}",), notes.append)
    first.start(tracked)
    first.replay(records[:2])
    again = Trackers((f"mlflow:{uri}",), notes.append)
    again.start(Tracked(tracked.name, tracked.settings, epochs=2))
    again.epoch(records[2])
    again.finish({"ece": 0.03})
    assert notes == []
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("balcal").experiment_id])
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert run.data.params == {"task.name": "digits", "seed": "0"}
    assert run.data.metrics["test_ece"] == 0.03
    assert run.info.status == "FINISHED"
    assert sqlite3.connect(tmp_path / "mlflow.db").execute("select count(*) from runs").fetchone() == (1,)


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'balcal[wandb]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    notes = []
    tracker = Trackers(("wandb:balcal-test",), notes.append)
    tracker.start(Tracked("digits/balcal-seed0-0123456789", {"seed": "0"}))
    tracker.epoch({"epoch": 0, "loss": 1.0})
    tracker.finish({"ece": 0.03})
    assert notes == []
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


class Broken:
    def __init__(self, target, tracked):
        if target == "at once":
            raise RuntimeError("no such place")
        self.epochs = 0

    def epoch(self, step, figures):
        self.epochs += 1
        if self.epochs == 2:
            raise OSError("the server has gone away\nwith details")

    def finish(self, step, figures):
        raise AssertionError("it was dropped before")


def test_a_failing_tracker_stops_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(trackers.KINDS, "csv", Broken)
    asked = recipe("digits", "balcal", 0, QUICK)
    figures = train_recipe(asked, tmp_path, "cpu", track=["csv:later", "csv:at once"])
    assert figures["epoch"] >= 0
    printed = capsys.readouterr().err
    assert "csv:at once has failed (RuntimeError: no such place): training goes on without it" in printed
    assert "csv:later has failed (OSError: the server has gone away): training goes on without it" in printed
    assert printed.count("has failed") == 2


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    notes = []
    tracker = Trackers(("wandb:mine",), notes.append)
    tracker.start(Tracked("a"))
    tracker.epoch({"epoch": 0, "loss": 1.0})
    assert notes == ["wandb is not installed, so wandb:mine is not kept: pip install 'balcal[wandb]'"]


@pytest.mark.parametrize(("asked", "said"), [("cvs:x", "did you mean `csv`"), ("csv", "does not say where to")])
def test_a_mistyped_tracker_is_an_error_before_anything_is_trained(tmp_path, asked, said):
    with pytest.raises(BalcalError, match=said):
        trained("balcal", tmp_path, track=[asked])
    assert not list(tmp_path.iterdir())


def test_a_terminal_shows_a_line_per_epoch_and_sparklines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = Progress("digits balcal seed 0")
    shown.start(3, 0, 0, 10, 2)
    for epoch, (acc, ece, gamma) in enumerate([(0.5, 0.2, 1.0), (0.8, 0.1, 0.9), (0.9, 0.02, 0.7)]):
        shown.end_epoch({"epoch": epoch, "loss": 1.0, "val_nll": 0.5, "val_acc": acc, "val_ece": ece, "gamma": gamma})
    shown.close()
    for text in ("epoch 1/3  loss 1.000", "epoch 3/3", "acc ▁▆█ 90.0%", "ECE █▄▁ 2.0%", "gamma █▆▁ 0.700"):
        assert text in screen.said, text
