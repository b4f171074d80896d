"""Run by torchrun in test_distributed.py: one training three times: saved never, saved at each step, resumed."""

import sys
from pathlib import Path

import torch

from balcal.registry import recipe
from balcal.runtime.devices import joined_world
from balcal.training import loop as train
from balcal.training.fit import Machine, train_here

RECIPE = recipe("digits", "balcal", 0, ["plan.epochs=1", "plan.batch_size=16", "task.train_size=480"])


def main(out):
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    with joined_world(cpu) as world:
        for name, seconds in (("never", 1e9), ("always", 0)):
            train_here(RECIPE, Path(out, name), Machine(cpu, world, quiet=True, save_every=seconds))
        resumed = Machine(cpu, world, quiet=True, save_every=0)
        really, steps = train.set_rate, []

        def breaks(*arguments):
            steps.append(arguments)
            if len(steps) == 20:
                raise InterruptedError
            really(*arguments)

        train.set_rate = breaks
        try:
            train_here(RECIPE, Path(out, "resumed"), resumed)
        except InterruptedError:
            train.set_rate = really
            train_here(RECIPE, Path(out, "resumed"), resumed)


if __name__ == "__main__":
    main(sys.argv[1])
