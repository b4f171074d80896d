"""Run by torchrun in test_distributed.py: train with the loop alone; every rank writes what it ends with."""

import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import balcal
from balcal.build import build
from balcal.data.batches import MemoryBatches, Pixels
from balcal.evaluation.judge import load_splits
from balcal.registry import dataset, recipe
from balcal.runtime.checkpoints import Memory
from balcal.runtime.devices import joined_world
from balcal.runtime.progress import Progress
from balcal.training.loop import run_epochs
from balcal.training.session import Session

OWN = ("vanilla+ts", "balcal-auto+ts")


def main(methods, out, *settings):
    torch.set_num_threads(1)
    with joined_world(torch.device("cpu")) as world:
        results = {method: trained(method, settings, world) for method in methods.split(",")}
        results |= {f"own loaders, {method}": own_loaders(method, world.rank) for method in OWN}
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


def own_data():
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x[:, :3].argmax(1))


def own_loaders(method, rank=None):
    """`fit` on somebody's own loaders: with a rank, on its share of the samples; else on all of them."""
    torch.manual_seed(rank or 0)
    model = balcal.wrap(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), 3, method, quiet=True)
    data = own_data()
    sampler = None if rank is None else DistributedSampler(data, shuffle=False)
    train = DataLoader(data, 40 if rank is None else 20, sampler=sampler)
    history = balcal.fit(model, train, DataLoader(data, 80), epochs=3, lr=1e-2, quiet=True)
    return {"history": history, "weights": [tensor.double().sum().item() for tensor in model.state_dict().values()]}


if __name__ == "__main__":
    main(*sys.argv[1:])
