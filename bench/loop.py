"""Our loop beside a bare one: same network, same forward, backward and optimiser step, the bare one on ready batches.

python bench/loop.py
"""

from __future__ import annotations

from typing import Any

import torch
from side_by_side import ratio, report, take_turns
from torch.nn.functional import cross_entropy

from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import ImageSet
from balcal.model import Model
from balcal.recipe import Plan
from balcal.registry import backbone, method
from balcal.runtime.checkpoints import Memory
from balcal.runtime.devices import World, keep_freed_memory
from balcal.runtime.progress import Progress
from balcal.training.loop import train_epoch
from balcal.training.session import Session


def compare(name: str, side: int, channels: int, batches: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    plan = Plan(lr=1e-9)  # both stay where they start, so both do the same work
    n = batches * plan.batch_size
    data = ImageSet(torch.randint(256, (n, side, side, channels), dtype=torch.uint8), torch.randint(10, (n,)))
    pixels = Pixels(
        torch.full((channels,), 1 / 64), torch.full((channels,), 2.0), "none" if side == 28 else "crop+flip"
    )
    train = MemoryBatches(data, pixels, plan.batch_size, seed=0)
    model = Model(backbone(name, channels), 10, method("vanilla")).to(memory_format=torch.channels_last)
    progress = Progress("", quiet=True)
    session = Session(model, train, train, plan, 0, Memory(), progress, World())
    progress.start(1000, 0, 0, len(train), len(train))
    ready = list(train.epoch(0))
    network, head = model.backbone, model.head.classifier
    optimiser = session.optimiser  # the very same tensors: where they lie in memory makes a difference of its own

    def ours() -> None:
        train_epoch(session)
        session.step = 0

    def bare() -> None:
        for images, labels in ready:
            loss = cross_entropy(head(network(images)), labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()

    seconds = take_turns({"ours": ours, "bare": bare, "bare again": bare}, rounds)
    return {
        "what": f"{batches} batches of {plan.batch_size} x {channels} x {side} x {side} a turn, vanilla, Adam",
        "ms per step": {name: round(1000 * sorted(s)[len(s) // 2] / batches, 2) for name, s in seconds.items()},
        "speed of our loop relative to the bare one": ratio(seconds, "bare", "ours"),
        "speed of the bare one relative to itself (the noise)": ratio(seconds, "bare again", "bare"),
    }


keep_freed_memory()
figures = {
    "cnn-28": compare("cnn-28", side=28, channels=1, batches=16, rounds=120),
    "wrn-16-2": compare("wrn-16-2", side=32, channels=3, batches=2, rounds=24),
}
report("loop", "python bench/loop.py", figures)
