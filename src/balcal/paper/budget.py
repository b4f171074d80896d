"""What training would cost on this machine: runs, hours and disk, from a few timed steps of each network.

The real network is timed at its real resolution. Images are random bytes, so no data is needed. On a CPU, CPU time
counts, shared among the threads: other programs on the machine do not matter. The fastest step counts, as it was
disturbed least. Where memory or patience forbid the whole batch, a smaller one is timed and the time scaled up in
proportion; `Timed.batch` says which it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from balcal import registry
from balcal.arena.schedule import Training
from balcal.build import build
from balcal.core import BalcalError
from balcal.data.batches import Pixels
from balcal.model import Model, batch_loss
from balcal.recipe import Recipe
from balcal.runtime.randomness import generator, own_randomness
from balcal.training.optimise import make_optimiser

SHARE_OF_MEMORY = 0.4
STEPS = 3
PATIENCE = 4.0
"""seconds that one step may take"""
PASSES = {"mit": 2.0, "tst": 1 / 3, "vtst": 1 / 3}
"""work per image, in passes forward and back: two mixtures; forward only, through a frozen backbone"""
CLEAN_PASS = 1 / 3
"""gamma under mixup needs the clean batch, forward only"""
STATES = 2
"""training states that stay on disk, each with the optimiser's buffers"""


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
            with torch.autocast(device.type, torch.bfloat16, enabled=plan.precision == "bf16"):
                loss = _loss(model, recipe, batch, device, step)
            loss.backward()  # type: ignore[no-untyped-call]
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
    pixels = Pixels.of(dataset, device, task.augment, task.side, task.pixels)
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
    """Bytes that are free now; two gigabytes where the system does not say."""
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


@dataclass(frozen=True)
class TimedNetwork:
    """What a budget says of a network that was timed."""

    backbone: str
    side: int
    dataset: str
    batch: int
    batch_size: int
    seconds_per_image: float
    epoch_seconds: float

    def sentence(self) -> str:
        scaled = f"; {self.batch_size} in the recipe, taken in proportion" if self.batch != self.batch_size else ""
        return (
            f"timed: {self.backbone} at {self.side} x {self.side}, {self.batch} images a step{scaled}: "
            f"{self.seconds_per_image * 1000:.3g} ms an image, {self.epoch_seconds:.3g} s an epoch"
        )


@dataclass(frozen=True)
class Budget:
    runs: int
    """needed altogether"""
    missing: int
    hours: float
    """to train the missing ones, one after the other, on this machine"""
    gigabytes: float
    timed: tuple[TimedNetwork, ...]
    untimed: tuple[str, ...] = ()
    """networks that cannot be built here, and why; their runs are in no sum"""

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "timed": [asdict(each) for each in self.timed], "untimed": list(self.untimed)}

    def sentences(self) -> list[str]:
        return [
            f"{self.runs} runs, {self.missing} of them missing: about {_hours(self.hours)} on this machine alone, one "
            f"after the other, and {self.gigabytes:.1f} GB on disk",
            *(each.sentence() for each in self.timed),
            *(f"not counted: {text}" for text in self.untimed),
            "evaluation, corruptions and OOD sets come on top",
        ]


def _hours(hours: float) -> str:
    if hours < 0.02:
        return f"{hours * 3600:.0f} seconds"
    if hours < 1:
        return f"{hours * 60:.0f} minutes"
    years = hours / 24 / 365
    return f"{hours:,.1f} hours" if years < 1 else f"{hours:,.0f} hours ({years:,.0f} years)"


def estimate(
    needed: Sequence[Training], out: Path, device: torch.device, say: Callable[[str], None] = lambda text: None
) -> Budget:
    """Time each network once, with plain training; what a method does on top is counted in passes."""
    timed: dict[tuple[str, int, str, int], Timed | None] = {}
    untimed: list[str] = []
    missing = [training for training in needed if training.missing(out)]
    seconds = size = 0.0
    for training in missing:
        recipe = training.recipe
        key = network_of(recipe)
        if key not in timed:
            say(f"timing {key[0]} at {key[1]} x {key[1]}")
            try:
                timed[key] = time_steps(registry.recipe(recipe.task.name, "vanilla", 0, plain_settings(recipe)), device)
            except BalcalError as error:  # a network of a package that is not there
                timed[key] = None
                untimed.append(f"{recipe.task.name}: {error}")
        step = timed[key]
        if step:
            seconds += step.seconds_per_epoch * recipe.task.plan.epochs * passes(recipe)
            size += disk_bytes(training, step.weight_bytes)
    networks = tuple(
        TimedNetwork(*key[:3], step.batch, step.batch_size, step.seconds_per_image, step.seconds_per_epoch)
        for key, step in timed.items()
        if step
    )
    return Budget(len(needed), len(missing), seconds / 3600, size / 1e9, networks, tuple(untimed))


def network_of(recipe: Recipe) -> tuple[str, int, str, int]:
    """Backbone, side of its images, data set, batch size."""
    dataset = registry.dataset(recipe.task.dataset)
    return recipe.task.backbone, recipe.task.side or dataset.side, dataset.name, recipe.task.plan.batch_size


def plain_settings(recipe: Recipe) -> list[str]:
    """The settings of task and plan, which a plain run has as well."""
    return [text for text in recipe.overrides if text.split(".")[0] in ("task", "plan")]


def passes(recipe: Recipe) -> float:
    parts = recipe.method.name.split("+")
    clean = CLEAN_PASS if "mixup" in parts and recipe.method.tally else 0.0
    return math.prod(PASSES.get(part, 1.0) for part in parts) + clean


def disk_bytes(training: Training, weight_bytes: int) -> float:
    """States (weights and the optimiser's buffers), chosen weights, kept epochs, predictions."""
    task = training.recipe.task
    dataset = registry.dataset(task.dataset)
    remembered = 1 if task.plan.optimiser == "sgd" else 2
    keep = training.keep or task.plan.keep_every
    epochs = 1 + (task.plan.epochs // keep if keep else 0)
    predictions = 4 * dataset.num_classes * (task.val_size + dataset.sizes[1])
    return weight_bytes * (STATES * (1 + remembered) + epochs) + predictions
