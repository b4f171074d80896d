"""Arenas of real runs: the same numbers whoever does the work, and nothing is lost when somebody is killed."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from command_line import balcal_cli
from runs_helper import held_by_somebody

from balcal import arena
from balcal.arena.entries import contest
from balcal.arena.processes import worker_pids
from balcal.arena.schedule import Training, waves
from balcal.cli.train import arena as verb
from balcal.registry import recipe
from balcal.runs import Run
from balcal.runtime.files import save_sealed_json
from balcal.training import loop as train

METHODS, SEEDS, SETTINGS = ("vanilla", "balcal", "tst"), 2, ("plan.epochs=3",)
COMMAND = ["arena", "digits", "--methods", ",".join(METHODS), "--set", SETTINGS[0]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Three methods, each in two seeds, by this process."""
    runs = tmp_path_factory.mktemp("alone")
    return arena.run("digits", METHODS, SEEDS, settings=SETTINGS, runs=runs, quiet=True)


def numbers(result):
    """All that must not depend on who did the work."""
    return json.loads(json.dumps([result.rows(), [cell.figures for cell in result.cells]]))


@contextmanager
def held(runs, method, seed):
    """A run that somebody else is at, so that no arena with it can be over before we let go of it."""
    run = Run(runs, recipe("digits", method, seed, SETTINGS))
    with ExitStack() as claim:
        claim.enter_context(held_by_somebody(run))
        yield run, claim.close


def while_killing(runs, pids, work, signum=signal.SIGKILL):
    """A signal to one of the processes, as soon as a run has an epoch and no end; or when one run is left."""
    killed = []

    def strike():
        while not killed:
            (last.path / "log.txt").touch()  # whoever holds a run shows that it is alive
            done = {path.parent for path in runs.glob("digits/*/metrics.json")}
            busy = {path.parent for path in runs.glob("digits/*/history.jsonl")} - done
            if (busy or len(done) == 5) and (found := pids()):
                os.kill(found[0], signum)
                killed.append(found[0])
            time.sleep(0.005)
        let_go()

    with held(runs, "tst", 1) as (last, let_go):
        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        result = work()
        thread.join()
    return result


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_two_processes_give_the_same_numbers_and_one_may_be_killed(signum, alone, tmp_path, capsys):
    """Or frozen: then it is noticed, and ended. Or asked to stop, by somebody who does not mean us."""

    patience = {"patience": 8.0} if signum == signal.SIGSTOP else {}

    def work():
        return arena.run("digits", METHODS, SEEDS, settings=SETTINGS, runs=tmp_path, jobs=2, quiet=True, **patience)

    result = while_killing(tmp_path, worker_pids, work, signum)
    assert not result.complaints
    assert numbers(result) == numbers(alone)
    if signum == signal.SIGSTOP:
        assert "a worker process showed no sign of life for 8 s, and was ended" in capsys.readouterr().err


def test_a_cluster_gives_the_same_numbers_and_a_worker_may_be_killed(alone, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'balcal[dask]'")
    monkeypatch.setenv("DASK_LOGGING__DISTRIBUTED", "critical")
    places = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**places, local_directory=str(tmp_path / "dask")) as cluster:

        def pids():
            return [worker.pid for worker in cluster.workers.values() if worker.pid]

        def work():
            address = cluster.scheduler_address
            return arena.run("digits", METHODS, SEEDS, settings=SETTINGS, runs=tmp_path, scheduler=address, quiet=True)

        result = while_killing(tmp_path, pids, work)
    assert not result.complaints
    assert result.made["backend"] == "dask"
    assert numbers(result) == numbers(alone)


@pytest.mark.parametrize(("signum", "code", "jobs"), [(signal.SIGTERM, 143, 2), (signal.SIGINT, 130, 1)])
def test_interrupted_and_repeated_it_goes_on(signum, code, jobs, alone, tmp_path):
    command = [
        sys.executable,
        "-m",
        "balcal",
        *COMMAND,
        "--seeds",
        str(SEEDS),
        "--runs",
        str(tmp_path),
        "--jobs",
        str(jobs),
    ]
    with (
        held(tmp_path, "tst", 1),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stderr:
            if "digits arena: 1/6" in line:
                break
        process.send_signal(signum)
        out, err = process.communicate()
    assert process.returncode == code, err
    assert re.search(r"balcal: stopped after \d of 6 runs; everything is saved: give the same command again", err), err
    assert out == ""
    begun = {path.parent for path in tmp_path.glob("digits/*/metrics.json")}
    assert 1 <= len(begun) < 6
    result = arena.run("digits", METHODS, SEEDS, settings=SETTINGS, runs=tmp_path, quiet=True)
    assert {run.run for run in result.runs if run.found} == {str(path.relative_to(tmp_path)) for path in begun}
    assert numbers(result) == numbers(alone)


def test_one_failing_run_stops_no_other(alone, tmp_path, capsys):
    """A damaged checkpoint of `vanilla` in seed 1: it fails, and so does `tst`, which starts from it."""
    run = Run(tmp_path, recipe("digits", "vanilla", 1, SETTINGS))
    damaged = run.checkpoints / "state-e0001-s000000.0123456789abcdef.pt"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"nonsense")
    arguments = [*COMMAND, "--seeds", "2", "--runs", tmp_path, "--quiet", "--out", tmp_path / "table.csv"]
    code, out, err = balcal_cli(*arguments, "--format", "runs", capsys=capsys)
    assert code == 1
    assert err.count("\n") == 2
    assert re.search(r"balcal: digits/vanilla-seed1-\w+: no checkpoint in .* is whole: delete that folder", err)
    assert re.search(
        r"balcal: digits/tst-seed1-\w+: the run that it starts from, digits/vanilla-seed1-\w+, has fai", err
    )
    assert "| `vanilla` (1 of 2 seeds) |" in out
    assert "| `balcal` |" in out
    for row in csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())):
        empty = row["method"] != "balcal" and row["seed"] == "1"
        assert (row["accuracy"] == row["nll"] == "") == empty == bool(row["error"])
        if not empty:
            figures = alone.cell(row["entry"], int(row["seed"])).figures
            assert float(row["ece"]) == pytest.approx(figures["ece"], rel=1e-5)
    next(path for path in damaged.parent.iterdir()).unlink()
    code, out, err = balcal_cli(*arguments, capsys=capsys)
    assert (code, err) == (0, "")
    assert "of 2 seeds" not in out


def test_an_entry_that_cannot_be_judged_leaves_the_others_of_its_run_theirs(tmp_path):
    """`late` and a run of an earlier version, which did not look at temperatures."""

    def held() -> arena.ArenaResult:
        return arena.run("digits", ("vanilla", "late"), 1, settings=SETTINGS, runs=tmp_path, quiet=True)

    whole = held()
    run = Run(tmp_path, recipe("digits", "vanilla", 0, SETTINGS))
    ended = run.ending()
    for path in run.checkpoints.glob("finished.*"):
        path.unlink()
    older = [{k: v for k, v in record.items() if k != "val_nll_ts"} for record in ended.history]
    save_sealed_json(run.checkpoints, "finished", replace(ended, history=older).as_dict())
    result = held()
    for entry in ("vanilla", "vanilla+ts"):
        assert result.cell(entry, 0).figures == whole.cell(entry, 0).figures
    for entry in ("vanilla+late", "vanilla+late+ts"):
        assert whole.cell(entry, 0).figures
        assert "an earlier version trained it" in result.cell(entry, 0).error
    assert result.complaints


def test_without_a_single_run_cells_are_visibly_empty(tmp_path, capsys, monkeypatch):
    def breaks(*arguments):
        raise RuntimeError("no such rate")

    monkeypatch.setattr(train, "set_rate", breaks)
    settings = ["--set", "plan.epochs=1"]
    arguments = ["arena", "digits", "--methods", "vanilla", "--seeds", "1", *settings, "--runs", tmp_path, "--quiet"]
    code, out, err = balcal_cli(*arguments, capsys=capsys)
    assert code == 1
    assert re.match(r"balcal: digits/vanilla-seed0-\w+: RuntimeError in \w+.py, line \d+: ", err)
    assert "| `vanilla` (0 of 1 seeds) | — | — | — | — | — | — |" in out
    _, out, _ = balcal_cli(*arguments, "--format", "latex", capsys=capsys)
    assert r"\texttt{vanilla+ts} (0 of 1 seeds) & --- & ---" in out


def test_a_search_sees_the_validation_split_only_and_is_recorded(tmp_path):
    deltas = ("0.3", "0.9")
    found = arena.run(
        *("digits", ["vanilla", "balcal"], 2), settings=SETTINGS, search=["head.delta=" + ",".join(deltas)],
        runs=tmp_path, quiet=True,
    )  # fmt: skip
    (search,) = found.searches
    assert search["method"] == "balcal"
    assert "validation NLL" in search["by"]
    by_hand = {}
    for delta in deltas:
        runs = [Run(tmp_path, recipe("digits", "balcal", s, [*SETTINGS, f"head.delta={delta}"])) for s in (0, 1)]
        by_hand[delta] = [min(record["val_nll"] for record in run.history()) for run in runs]
    tried = {each["settings"][0].removeprefix("head.delta="): each["val_nll"] for each in search["tried"]}
    assert tried == by_hand
    best = min(by_hand, key=lambda delta: np.mean(by_hand[delta]))
    assert search["chosen"] == [f"head.delta={best}"]
    assert (
        f"`balcal`: head.delta={best}, chosen among head.delta=0.3, head.delta=0.9 on the validation" in found.table()
    )
    assert found.cell("balcal+ts", 1).run == recipe("digits", "balcal", 1, [*SETTINGS, f"head.delta={best}"]).address()
    assert found.cell("vanilla", 0).run == recipe("digits", "vanilla", 0, SETTINGS).address()
    assert len(found.runs) == 6


def test_the_result_survives_a_file(alone, tmp_path):
    again = arena.ArenaResult.load(alone.save(tmp_path / "a.json"))
    assert json.dumps(again.rows()) == json.dumps(alone.rows())
    assert again.compare("vanilla", "balcal+ts") == alone.compare("vanilla", "balcal+ts")
    assert json.loads(alone.table("json"))["rows"] == json.loads(json.dumps(alone.rows()))
    kept = list((Path(alone.made["runs"]) / "arena").glob("digits-*.json"))
    assert [arena.ArenaResult.load(path).cells for path in kept] == [alone.cells]


def test_every_run_says_what_made_it(alone):
    assert len(alone.runs) == 6, "tst starts from the runs of vanilla, which are there once"
    for run in alone.runs:
        assert (run.status, run.found, run.epochs) == ("done", False, 3)
        assert run.seconds > 0
        assert run.environment["threads"] == 1
        assert {"balcal", "torch", "python", "commit"} <= run.environment.keys()
        assert run.recipe["seed"] == run.seed
        assert run.recipe["task"]["plan"]["epochs"] == 3


def test_the_table_has_means_spreads_and_marks(alone):
    accuracy = [alone.cell("balcal", seed).figures["accuracy"] for seed in range(SEEDS)]
    mean, spread = 100 * np.mean(accuracy), 100 * np.std(accuracy, ddof=1)
    assert f"{mean:.2f} ± {spread:.2f}" in alone.table()
    row = next(line for line in alone.table().splitlines() if line.startswith("| `vanilla` |"))
    assert row.split("|")[2].strip().endswith("≡"), "a temperature changes no prediction"
    assert "Holm" in alone.table()
    latex = alone.table("latex")
    assert latex.count(r"\\") == 7
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"$\pm$"):
        assert part in latex
    lines = list(csv.DictReader(io.StringIO(alone.table("csv"))))
    assert [line["entry"] for line in lines] == list(alone.entries)
    assert float(lines[2]["accuracy"]) == pytest.approx(np.mean(accuracy), rel=1e-5)
    assert len(alone.table("runs").splitlines()) == 1 + 6 * SEEDS


def test_one_seed_speaks_of_runs_only(alone):
    runs = Path(alone.made["runs"])
    one = arena.run("digits", METHODS, [1], settings=SETTINGS, runs=runs, quiet=True)
    assert all(run.found for run in one.runs)
    judgements = {d.judgement for found in one.against("vanilla+ts").values() for d in found.values()}
    assert "better here" in judgements or "worse here" in judgements
    assert not judgements & {"better", "worse"}
    assert "speaks of these runs only" in one.table().replace("\n", " ")
    assert "**" not in one.table()


def test_five_seeds_unless_somebody_says_otherwise():
    for call in (arena.run, verb):
        assert signature(call).parameters["seeds"].default == 5


def test_runs_that_were_trained_one_by_one_are_found(tmp_path, capsys):
    """As on a cluster, where each run is a job of its own."""
    quick = ["--set", "epochs=1"]
    for seed in "01":
        balcal_cli("train", "tumours", "vanilla", "--seed", seed, *quick, "--out", tmp_path, capsys=capsys)
    arguments = ["arena", "tumours", "--methods", "vanilla", *quick, "--seeds", "2", "--runs", tmp_path]
    code, out, err = balcal_cli(*arguments, capsys=capsys)
    assert (code, err.count(": found")) == (0, 2)
    assert "| `vanilla` |" in out


def test_parents_come_first_and_once():
    asked = contest("digits", ["pcs", "tst", "vanilla"], range(2), ["plan.epochs=2"], ())
    first, second = ([t.recipe for t in wave] for wave in waves(map(Training, asked.trainings())))
    assert [r.method.name for r in second] == ["pcs", "tst"] * 2
    assert len(first) == len({r.address() for r in first}) == 4, "vanilla, and vanilla with all epochs kept, per seed"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--methods", "vanila"], "unknown method `vanila`; did you mean `vanilla`?"),
        (["--methods", "vanilla", "--set", "head.delta=0.9"], "none of vanilla has a setting `head.delta`"),
        (["--methods", "balcal", "--search", "head.delta"], "is not a search: write it as name.field=value,value"),
        (["--methods", "balcal", "--search", "head.delta=0.9,warm"], "`head.delta=warm` does not fit"),
        (["--methods", "balcal", "--against", "ls"], "unknown entry `ls`"),
        (["--methods", "vanilla", "--format", "word"], "unknown format `word`"),
        (["--backend", "dask", "--scheduler", "tcp://127.0.0.1:9"], "no Dask scheduler answers at tcp://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_clear_sentence(arguments, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("balcal.arena.workers.ANSWER_SECONDS", 0.5)
    code, out, err = balcal_cli("arena", "digits", *arguments, capsys=capsys)
    assert (code, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
