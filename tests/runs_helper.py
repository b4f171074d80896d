"""Small recipes and a way to compare what two run folders hold."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from balcal import train
from balcal.registry import recipe
from balcal.sessions import train_recipe

QUICK = ["plan.epochs=3"]


def trained(method, out, seed=0, settings=(), **more):
    figures = train_recipe(recipe("digits", method, seed, [*QUICK, *settings]), out, "cpu", quiet=True, **more)
    return Path(figures["run"])


def train_often_saved(method, out, settings, errors):
    """For a process that is going to be killed."""
    torch.set_num_threads(1)
    with open(errors, "a") as file:
        os.dup2(file.fileno(), 2)
    trained(method, out, settings=settings, save_every=0.05)


def trained_after_power_cut(method, out, step, settings=()):
    """Interrupted before its n-th optimiser step, counted over all stages, then resumed."""
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
    """Everything that must be equal to the bit: history, kept weights, last state, predictions."""
    found = {"history": (run / "history.jsonl").read_text(), "state": newest_state(run)}
    for path in sorted((run / "checkpoints").glob("weights-*.pt")):
        found[path.name.split(".")[0]] = torch.load(path, weights_only=True)
    for path in sorted((run / "predictions").glob("*.npz")):
        with np.load(path) as arrays:
            found[path.name] = {n: str(a) if a.dtype.kind == "U" else torch.from_numpy(a) for n, a in arrays.items()}
    return found


def newest_state(run):
    return torch.load(sorted((run / "checkpoints").glob("state-*.pt"))[-1], weights_only=True)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def history(run):
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
