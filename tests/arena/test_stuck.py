"""Nobody waits for ever, for a run that another process holds or for a cluster that died; nobody is left behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from command_line import balcal_cli
from runs_helper import held_by_somebody

from balcal import arena
from balcal.arena import jobs as work
from balcal.arena.schedule import Resources, train_missing
from balcal.core import BalcalError
from balcal.paper import item
from balcal.paper.measure import trainings
from balcal.paper.tiers import tier
from balcal.registry import recipe
from balcal.runs import Run
from balcal.runtime.claims import Claimed
from balcal.runtime.devices import Stopped, StopRequest

SETTINGS = ["plan.epochs=2"]
LIMIT = 200
"""seconds after which a test has failed; none waits for so long otherwise"""


def until(reached, what):
    for _ in range(LIMIT * 20):
        if found := reached():
            return found
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen within {LIMIT} s")


class Struck:
    """stderr that sends this process a signal as soon as something is said."""

    def __init__(self, saying, signum):
        self.saying, self.signum, self.said = saying, signum, ""

    def write(self, text):
        self.said += text
        if self.saying in text:
            os.kill(os.getpid(), self.signum)

    def flush(self):
        pass

    def isatty(self):
        return False


@pytest.fixture
def held(tmp_path):
    """A run of `vanilla` that somebody else is at; let go in the end, so that a test that fails does end."""
    run = Run(tmp_path, recipe("digits", "vanilla", 0, SETTINGS))
    with ExitStack() as claim:
        claim.enter_context(held_by_somebody(run))
        late = threading.Timer(LIMIT, claim.close)
        late.start()
        yield run
        late.cancel()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_arena_that_waits_for_somebody_says_so_once_and_stops_when_asked(
    signum, code, held, tmp_path, capsys, monkeypatch
):
    screen = Struck("has to wait", signum)
    monkeypatch.setattr(sys, "stderr", screen)
    arguments = ["digits", "--methods", "vanilla", "--seeds", "1", "--set", SETTINGS[0], "--runs", tmp_path]
    ended, out, _ = balcal_cli("arena", *arguments, capsys=capsys)
    assert (ended, out) == (code, "")
    waits, stopped = screen.said.splitlines()
    assert waits.startswith(
        f"{held.recipe.address()} has to wait: {held.path} is being trained or evaluated by another process"
    )
    assert stopped == "balcal: stopped after 0 of 1 runs; everything is saved: give the same command again to resume"


def test_so_does_a_paper(tmp_path, monkeypatch):
    needed = trainings([item("gamma")], tier("smoke"), [0])[:1]
    monkeypatch.setattr(sys, "stderr", Struck("has to wait", signal.SIGTERM))
    with ExitStack() as claim:
        claim.enter_context(held_by_somebody(Run(tmp_path, needed[0].recipe)))
        late = threading.Timer(LIMIT, claim.close)
        late.start()
        with pytest.raises(Stopped, match="stopped after 0 of 1 runs"):
            train_missing(needed, Resources(tmp_path, "cpu", quiet=True))
        late.cancel()


@pytest.mark.timeout(LIMIT + 30)
def test_so_do_processes(held, tmp_path):
    """Pieces are taken in order: when the second run is finished, somebody waits for the first one."""
    second = Run(tmp_path, recipe("digits", "vanilla", 1, SETTINGS))

    def ask():
        until(lambda: second.finished, "the other run")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    with pytest.raises(Stopped, match="stopped after 1 of 2 runs") as stopped:
        arena.run("digits", ["vanilla"], 2, settings=SETTINGS, runs=tmp_path, jobs=2, quiet=True)
    thread.join()
    assert stopped.value.exit_code == 143
    with pytest.raises(Claimed), held.claimed():
        pass


@pytest.mark.parametrize("alive", [True, False])
def test_who_holds_a_run_and_writes_nothing_is_not_waited_for(alive, tmp_path, monkeypatch, capsys):
    """Sleeping is counted, not slept. One who writes now and then may take as long as it wants."""
    run = Run(tmp_path, recipe("digits", "vanilla", 0, SETTINGS))
    slept = []
    with ExitStack() as claim:
        claim.enter_context(held_by_somebody(run))

        def sleep(seconds):
            slept.append(seconds)
            if alive and len(slept) % 4 == 0:
                (run.path / "log.txt").write_text("epoch\n" * len(slept))
            if len(slept) == 50:
                claim.close()

        monkeypatch.setattr(work, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        result = arena.run("digits", ["vanilla"], 1, settings=SETTINGS, runs=tmp_path, patience=5, quiet=True)
    if alive:
        assert (len(slept), result.complaints) == (50, [])
    else:
        (complaint,) = result.complaints
        assert "it has written nothing for 5 s, and is not waited for any longer" in complaint
        assert sum(slept) == 5
    assert capsys.readouterr().err.count("has to wait") == 1


def test_a_request_to_stop_between_two_steps_is_not_lost():
    with StopRequest() as outer:
        with StopRequest() as first:
            os.kill(os.getpid(), signal.SIGTERM)
            assert first
        with StopRequest() as second:
            assert second.signum == signal.SIGTERM
        assert outer
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with StopRequest() as later:
        assert not later


def processes():
    """(id, parent, state) of every process."""
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    return [(int(pid), int(parent), state) for pid, parent, state in map(str.split, told.splitlines())]


@pytest.mark.timeout(2 * LIMIT)
def test_a_killed_arena_leaves_nobody_behind_and_is_taken_up_again(tmp_path):
    """One worker is training and one waits when the process that started them is killed."""
    first, second = (Run(tmp_path, recipe("digits", "vanilla", seed, ["plan.epochs=2000"])) for seed in (0, 1))
    command = ["arena", "digits", "--methods", "vanilla", "--seeds", "2", "--set", "plan.epochs=2000", "--jobs", "2"]
    with (
        held_by_somebody(first),
        subprocess.Popen([sys.executable, "-m", "balcal", *command, "--runs", str(tmp_path), "--quiet"]) as process,
    ):
        until(lambda: second.epochs() > 1, "an epoch")
        children = [pid for pid, parent, _ in processes() if parent == process.pid]
        assert len(children) >= 2
        process.kill()
    until(lambda: not [1 for pid, _, state in processes() if pid in children and state[0] != "Z"], "their end")
    assert not second.finished
    for run in (first, second):
        with held_by_somebody(run):
            state = run.load_state()
    assert state["epoch"] > 0


def dask(program, *arguments):
    command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments, "--no-dashboard"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.timeout(2 * LIMIT)
def test_a_cluster_that_falls_silent_or_goes_away_is_one_sentence(tmp_path, capsys):
    """First its only worker is frozen, later its scheduler is killed; what was trained before is there."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'balcal[dask]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    first = Run(tmp_path, recipe("digits", "vanilla", 0, ["plan.epochs=2000"]))
    settings = ["--set", "plan.epochs=2000", "--runs", tmp_path, "--quiet"]
    asked = ["arena", "digits", "--methods", "vanilla", "--seeds", "1", "--backend", "dask", *settings]
    with (
        dask("scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]) as scheduler,
        dask("worker", address, "--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path)) as worker,
    ):
        try:
            until(lambda: answers(address), "the cluster")
            for process, signum, patience, said in (
                (worker, signal.SIGSTOP, 3, "no worker of the Dask cluster at {} showed a sign of life for 3 s"),
                (scheduler, signal.SIGKILL, 1800, "the Dask scheduler at {} has gone away"),
            ):
                epochs = first.epochs()
                thread = threading.Thread(target=strike, args=(process, signum, first, epochs))
                thread.start()
                code, out, err = balcal_cli(*asked, "--scheduler", address, "--patience", patience, capsys=capsys)
                thread.join()
                assert (code, out, err.count("\n")) == (1, "", 1), err
                assert err.startswith("balcal: " + said.format(address))
                assert err.endswith("what was trained is kept\n")
                worker.send_signal(signal.SIGCONT)
                assert first.epochs() > epochs
        finally:
            scheduler.kill()
            worker.kill()


def answers(address):
    from distributed import Client

    try:
        with Client(address, timeout=5, set_as_default=False) as client:
            return client.ncores()
    except OSError:
        return None


def strike(process, signum, run, epochs):
    """A worker that was frozen goes on with the run it had: epochs alone do not say that the next arena is there."""
    until(lambda: run.epochs() > epochs + 1 and (signum == signal.SIGSTOP or submitted()), "an epoch")
    process.send_signal(signum)


def submitted():
    """Whether a client of this process is connected and waits for work of its own."""
    from distributed import Client

    return any(client.status == "running" and client.futures for client in list(Client._instances))


def test_patience_is_a_time():
    with pytest.raises(BalcalError, match="patience is a number of seconds above 0, not 0"):
        arena.run("digits", ["vanilla"], 1, patience=0, quiet=True)
