"""Run by torchrun in test_distributed.py: train with the loop alone; every rank writes what it ends with."""

import hashlib
import json
import sys
from pathlib import Path

import torch

from balcal.build import build
from balcal.data.batches import MemoryBatches, Pixels
from balcal.evaluation.judge import load_splits
from balcal.registry import dataset, recipe
from balcal.runtime.checkpoints import Memory
from balcal.runtime.devices import joined_world
from balcal.runtime.progress import Progress
from balcal.training.loop import run_epochs
from balcal.training.session import Session


def main(methods, out, *settings):
    torch.set_num_threads(1)
    with joined_world(torch.device("cpu")) as world:
        results = {method: trained(method, settings, world) for method in methods.split(",")}
    Path(out, f"rank{world.rank}.json").write_text(json.dumps(results))


def trained(method, settings, world):
    cpu = torch.device("cpu")
    asked = recipe("digits", method, 0, settings)
    splits, plan, pixels = load_splits(asked.task), asked.task.plan, Pixels.of(dataset("digits"), cpu)
    torch.manual_seed(world.rank)  # different weights on purpose: the first process's must win
    model = build(asked)
    train = MemoryBatches(splits.train, pixels, plan.batch_size, 0, world.rank, world.size)
    val = MemoryBatches(splits.val, pixels, 100, None, world.rank, world.size)
    seen = [
        hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest() for images, _ in train.epoch(0) for x in images
    ]
    records = run_epochs(Session(model, train, val, plan, 0, Memory(), Progress("", quiet=True), world))
    state = {name: tensor.flatten().double().sum().item().hex() for name, tensor in model.state_dict().items()}
    return {"gamma": [r["gamma"].hex() for r in records], "state": state, "records": records, "seen": seen}


if __name__ == "__main__":
    main(*sys.argv[1:])
