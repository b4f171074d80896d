"""Run by torchrun in test_conformance.py: train methods one by one; every rank writes what it ends with."""

import json
import sys
from pathlib import Path

import torch
from conformance_helper import SMALLER, watched

from balcal.registry import recipe
from balcal.runtime.devices import joined_world
from balcal.training.fit import Machine, train_here


def main(out, *methods):
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    results = {}
    with joined_world(cpu) as world:
        machine = Machine(cpu, world, quiet=True, save_every=300.0)
        for method in methods:
            with watched() as (losses, models):
                train_here(recipe("digits", method, 0, SMALLER), Path(out), machine)
            state = models[-1].state_dict()
            results[method] = [losses, {name: tensor.double().sum().item().hex() for name, tensor in state.items()}]
        Path(out, f"rank{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
