"""Train small runs, interrupt them, and compare two run folders."""

import fcntl
import json
import os
import signal
import threading
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from balcal.registry import recipe
from balcal.runtime.checkpoints import Folder
from balcal.training import loop as train
from balcal.training.fit import train_recipe

QUICK = ["plan.epochs=3"]


def trained(method, out, seed=0, settings=(), **more):
    """The folder of a run of three epochs on digits."""
    figures = train_recipe(recipe("digits", method, seed, [*QUICK, *settings]), out, "cpu", quiet=True, **more)
    return Path(figures["run"])


def train_until_killed(method, out, settings, errors, strike=None):
    """Train, and die by SIGKILL on the way; to be called in a process of its own.

    `strike` says when: (method of the run, number of its saves, seconds after that). Every 15th step is saved, so this
    does not depend on the speed of the machine.
    """
    torch.set_num_threads(1)
    with open(errors, "a") as file:
        os.dup2(file.fileno(), 2)
    if strike:
        stage, saves, later = strike
        steps, seen, real = count(1), [], Folder.save_state
        end = threading.Timer(later, os.kill, (os.getpid(), signal.SIGKILL))

        def save(folder, state):
            real(folder, state)
            seen.extend([state["epoch"]] * folder.path.name.startswith(f"{stage}-"))
            if len(seen) >= saves and not end.ident:
                end.start()

        Folder.save_state, Folder.save_is_due = save, lambda folder: next(steps) % 15 == 0
        if not saves:
            end.start()
    trained(method, out, settings=settings)


def trained_after_power_cut(method, out, step, settings=()):
    """Train, interrupted before the n-th optimiser step (counted over all stages), and resumed."""
    steps, real = [], train.set_rate

    def breaks(*arguments):
        steps.append(1)
        if len(steps) == step:
            raise RuntimeError("power cut")
        real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "set_rate", breaks)
        with pytest.raises(RuntimeError, match="power cut"):
            trained(method, out, settings=settings, save_every=0)
    return trained(method, out, settings=settings)


def whole(run):
    """Everything in a run that must be bit-identical: history, kept weights, last state, predictions."""
    found = {"history": (run / "history.jsonl").read_text(), "state": newest_state(run)}
    del found["state"]["weights"]  # with keep_epochs it has more than without
    for path in sorted((run / "checkpoints").glob("weights-*.pt")):
        found[path.name.split(".")[0]] = torch.load(path, weights_only=True)
    for path in sorted((run / "predictions").glob("*.npz")):
        with np.load(path) as arrays:
            found[path.name] = {n: str(a) if a.dtype.kind == "U" else torch.from_numpy(a) for n, a in arrays.items()}
    return found


def newest_state(run):
    return torch.load(sorted((run / "checkpoints").glob("state-*.pt"))[-1], weights_only=True)


def same(a, b):
    """Whether nested values are equal, tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


@contextmanager
def held_by_somebody(run):
    """Inside the block, the run is locked as if another process trained it."""
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / ".claim", "w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
