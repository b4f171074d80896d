"""What training would cost: a few steps of the real network at its real resolution, on this machine.

Images are random bytes, so no data is needed. On a CPU it is CPU time that counts, shared among the threads, so that
others at work on the machine do not; the fastest step counts, being the least disturbed. Where memory or patience
forbid the whole batch a smaller one is timed, and a step of the whole one is taken to be longer in proportion:
`Timed.batch` says which it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from balcal import registry
from balcal.data.batches import Pixels
from balcal.model import Model, batch_loss, build
from balcal.optimise import make_optimiser
from balcal.randomness import generator, own_randomness
from balcal.recipe import Recipe

SHARE_OF_MEMORY = 0.4
STEPS = 3
PATIENCE = 4.0
"""seconds that one step may take"""


@dataclass(frozen=True)
class Timed:
    """A timed step, and what follows for a whole run."""

    seconds_per_image: float
    batch: int
    """how many images the timed step had"""
    steps_per_epoch: int
    batch_size: int
    """how many images a step of the recipe has"""
    weight_bytes: int

    @property
    def seconds_per_epoch(self) -> float:
        return self.seconds_per_image * self.batch_size * self.steps_per_epoch


def images_to_train_on(recipe: Recipe) -> int:
    task = recipe.task
    left = registry.dataset(task.dataset).sizes[0] - task.val_size - task.calibrate_size
    return left if task.train_size is None else min(left, task.train_size)


def time_steps(recipe: Recipe, device: torch.device, steps: int = STEPS, largest: int | None = None) -> Timed:
    """Forward, backward and step, the tally included, `steps` times after a first one; the fastest counts."""
    plan = recipe.task.plan
    with own_randomness():
        torch.manual_seed(0)
        model = build(recipe, weights=False).to(device).train()
        optimiser = make_optimiser(model, plan)
        first = _clock(device)
        per_image = _saved_bytes(model, recipe, device) / 2
        fitting = int(SHARE_OF_MEMORY * free_memory(device) / max(1.0, per_image))
        forward = max(1e-9, _clock(device) - first)
        patient = int(2 * PATIENCE / (3 * forward))  # backward takes about twice as long as forward
        batch = max(2, min(plan.batch_size, fitting, patient, largest or plan.batch_size))
        took = []
        for step in range(steps + 1):
            begun = _clock(device)
            _loss(model, recipe, batch, device, step).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad()
            took.append(_clock(device) - begun)
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    steps_per_epoch = max(1, images_to_train_on(recipe) // plan.batch_size)
    return Timed(min(took[1:] or took) / batch, batch, steps_per_epoch, plan.batch_size, weights)


def seconds_per_epoch(recipe: Recipe, device: torch.device) -> float:
    return time_steps(recipe, device, steps=9).seconds_per_epoch


def _loss(model: Model, recipe: Recipe, batch: int, device: torch.device, step: int) -> Tensor:
    dataset, task = registry.dataset(recipe.task.dataset), recipe.task
    pixels = Pixels.of(dataset, device, task.augment, task.side)
    shape = (batch, dataset.side, dataset.side, dataset.channels)
    images = torch.randint(256, shape, dtype=torch.uint8).to(device)
    labels = torch.arange(batch, device=device) % dataset.num_classes
    tally = model.method.tally
    sums = tally.start(model) if tally and tally.on == "train" else None
    return batch_loss(model, model.method, pixels(images, torch.rand(batch, 3)), labels, generator(0, step), sums)


def _saved_bytes(model: Model, recipe: Recipe, device: torch.device) -> int:
    """What a forward pass of two images keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    own = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _loss(model, recipe, 2, device, 0)
    return sum(size for place, size in kept.items() if place not in own)


def free_memory(device: torch.device) -> int:
    """Bytes that are free now; two gigabytes where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 2 << 30


def _clock(device: torch.device) -> float:
    """Seconds, when all that was asked of the device is done."""
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
