"""A whole epoch, training and validation, of BalCAL's variants beside plain training, and of that beside itself.

python bench/epoch.py

Networks and proportions are those of `cifar10-cpu` and `cifar100-cpu` (two training images for each that validates),
and WRN-16-2; images are random. What `balcal-auto` asks at the end, once in a training, is timed by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from side_by_side import ratio, report, take_turns

from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import ImageSet
from balcal.model import Model
from balcal.recipe import Plan
from balcal.registry import backbone, method
from balcal.runtime.checkpoints import Memory
from balcal.runtime.devices import World, keep_freed_memory
from balcal.runtime.progress import Progress
from balcal.training.loop import begin_epoch, of_last_step, train_epoch, validate
from balcal.training.session import Session

METHODS = ("balcal", "balcal-logits", "balcal-val", "balcal-auto")
EPOCHS = 1000


def session_of(name: str, network: str, classes: int, images: int, batch: int) -> Session:
    torch.manual_seed(0)
    asked = method(name)
    # weights stay where they start, so every turn does the same work
    plan = Plan(**asked.brings | {"lr": 1e-9, "batch_size": batch, "epochs": EPOCHS})
    pixels = Pixels(torch.full((3,), 1 / 64), torch.full((3,), 2.0), "none")

    def batches(count: int, size: int, seed: int | None) -> MemoryBatches:
        data = ImageSet(torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8), torch.randint(classes, (count,)))
        return MemoryBatches(data, pixels, size, seed=seed)

    train, val = batches(images, batch, 0), batches(images // 2, 2 * batch, None)
    model = Model(backbone(network, 3), classes, asked).to(memory_format=torch.channels_last)
    progress = Progress("", quiet=True)
    session = Session(model, train, val, plan, 0, Memory(), progress, World())
    progress.start(plan.epochs, 0, 0, len(train), len(val))
    return session


def epoch_of(session: Session) -> Callable[[], None]:
    def turn() -> None:
        begin_epoch(session)
        train_epoch(session)
        with session.mean.in_use() if session.mean else nullcontext():
            validate(session)
        session.step, session.sums = 0, None

    return turn


def question_of(session: Session) -> Callable[[], None]:
    session.epoch = EPOCHS - 1

    def turn() -> None:
        of_last_step(session)

    return turn


def compare(network: str, classes: int, images: int, batch: int, rounds: int) -> dict[str, Any]:
    names = {"vanilla": "vanilla", "vanilla again": "vanilla"} | {name: name for name in METHODS}
    size = (network, classes, images, batch)
    turns = {title: epoch_of(session_of(name, *size)) for title, name in names.items()}
    turns["the question at the end"] = question_of(session_of("balcal-auto", *size))
    seconds = take_turns(turns, rounds)
    return {
        "what": f"{images} + {images // 2} images of {classes} classes a turn, batches of {batch}",
        "time relative to vanilla": {title: ratio(seconds, title, "vanilla") for title in turns if title != "vanilla"},
    }


torch.set_num_threads(1)
keep_freed_memory()
figures = {
    "resnet-8, 10 classes": compare("resnet-8", 10, images=640, batch=64, rounds=20),
    "resnet-8, 100 classes": compare("resnet-8", 100, images=640, batch=32, rounds=20),
    "wrn-16-2, 10 classes": compare("wrn-16-2", 10, images=256, batch=64, rounds=12),
}
report("epoch", "python bench/epoch.py", figures)
