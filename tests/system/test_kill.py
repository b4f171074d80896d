"""Training processes are really killed, at random moments; nothing is lost and no bit changes."""

import multiprocessing
import random
import re
import signal
import subprocess
import sys
import time

import pytest
from runs_helper import same, train_until_killed, trained, whole

LONG = ["plan.epochs=16", "plan.batch_size=16"]


@pytest.mark.parametrize("method", ["balcal-auto"])
def test_ten_kills_leave_no_trace(method, tmp_path):
    """SIGKILL at least ten times in one run, in mid-epoch too; the end is that of an uninterrupted run, to the bit."""
    context = multiprocessing.get_context("forkserver")  # children start in milliseconds, with torch loaded
    context.set_forkserver_preload(["balcal.training.fit", "balcal.methods.balcal", "sklearn.datasets"])
    rng = random.Random(method)
    kills = 0
    for attempt in range(40):
        saves = rng.randint(1, 5) if attempt % 4 else 0  # one in four strikes at any moment from the start on
        strike = (method, saves, rng.uniform(0, 0.02 if saves else 0.2)) if kills < 12 else None
        args = (method, tmp_path / "killed", LONG, tmp_path / "err.txt", strike)
        process = context.Process(target=train_until_killed, args=args)
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        if process.exitcode != -signal.SIGKILL:
            pytest.fail((tmp_path / "err.txt").read_text()[-2000:])
        kills += 1
    assert kills >= 10
    run = next((tmp_path / "killed" / "digits").iterdir())
    resumed = re.findall(r"resuming at epoch (\d+), batch (\d+)", (run / "log.txt").read_text())
    assert any(int(batch) > 1 for _, batch in resumed), "at least one kill must have struck in mid-epoch"
    assert len(resumed) >= 5
    assert not list(run.glob("**/.unfinished-*"))
    assert same(whole(run), whole(trained(method, tmp_path / "whole", settings=LONG)))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_finishes_the_batch_saves_and_says_so(signum, code, tmp_path):
    command = [sys.executable, "-m", "balcal", "train", "digits", "balcal", "--out", str(tmp_path / "stopped")]
    command += [part for setting in ["plan.epochs=300", "plan.batch_size=16"] for part in ("--set", setting)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "epoch 2/" in line:
                break
        time.sleep(0.05)
        process.send_signal(signum)
        printed = process.stderr.read()
    assert process.returncode == code
    assert "everything is saved: give the same command again to resume" in printed
    assert "Traceback" not in printed
    run = next((tmp_path / "stopped" / "digits").iterdir())
    states = list((run / "checkpoints").glob("state-*.pt"))
    assert states
    assert not (run / "metrics.json").exists()


def test_a_finished_run_says_so_and_does_nothing(tmp_path):
    run = trained("vanilla", tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (run / "checkpoints").iterdir()}
    command = [sys.executable, "-m", "balcal", "train", "digits", "vanilla", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--set", "plan.epochs=3"], capture_output=True, text=True, check=True)
    assert "is finished already: nothing to train" in done.stderr
    assert "accuracy" in done.stdout
    assert {p: p.stat().st_mtime_ns for p in (run / "checkpoints").iterdir()} == before
