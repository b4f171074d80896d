"""What each method costs per step, beside vanilla and beside vanilla once more (the noise), for 10, 100, 1000 classes.

python bench/losses.py [ROUNDS]

Methods that change what goes through the network are timed as whole steps of WRN-16-2 at 32 x 32, batch 128. What a
loss adds is small beside such a step, so head and loss are timed alone, on features that are there already, and what
they take more than vanilla's is put beside vanilla's whole step. `plp` adds nothing, and is left out.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import ratio, report, take_turns
from torch import Tensor, nn

from balcal.model import Model
from balcal.registry import backbone, method, table
from balcal.runtime.devices import keep_freed_memory

keep_freed_memory()
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BASE = {"vanilla": "vanilla", "vanilla again": "vanilla", "balcal": "balcal"}
WHOLE = BASE | {name: name for name in ("mixup", "mit", "balcal-k+mixup", "balcal+mit", "balcal+cpc")}
LOSSES = [name for name, entry in table("methods").items() if "loss" in entry.changes]
ALONE = BASE | {name: name for name in [*LOSSES, *(f"balcal+{name}" for name in LOSSES)]}


class Given(nn.Module):
    """Stands for a network whose features are there already."""

    num_features = 128

    def forward_features(self, x: Tensor) -> Tensor:
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x


def step(name: str, network: nn.Module, images: Tensor, classes: int) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Model(network, classes, method(name)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 1e-9, 0.9, weight_decay=5e-4)
    labels = torch.randint(classes, (len(images),))

    def run() -> None:
        model.loss(images, labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return run


def per_step(classes: int) -> dict[str, Any]:
    whole = take_turns({label: step(name, network, pictures, classes) for label, name in WHOLE.items()}, ROUNDS)
    alone = take_turns({label: step(name, Given(), features, classes) for label, name in ALONE.items()}, 2 * ROUNDS)
    base, plain = (statistics.median(seconds["vanilla"]) for seconds in (whole, alone))
    middle = {label: statistics.median(seconds) for label, seconds in alone.items()}
    return {
        "vanilla, ms per step": round(1000 * base, 1),
        "whole step, relative to vanilla": {label: ratio(whole, label, "vanilla") for label in WHOLE},
        "head and loss alone, ms": {label: round(1000 * seconds, 2) for label, seconds in middle.items()},
        "the same, added to vanilla's step": {
            label: round(1 + (seconds - plain) / base, 4) for label, seconds in middle.items()
        },
    }


pictures = torch.randn(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
features = torch.randn(128, 128, requires_grad=True)
network = backbone("wrn-16-2")  # one backbone for all: where its weights lie in memory makes a difference of its own
figures = {
    "what": "time per step relative to vanilla: forward, loss, tally, backward, SGD; WRN-16-2 at 32 x 32, batch 128",
    "rounds": ROUNDS,
    **{f"{classes} classes": per_step(classes) for classes in (10, 100, 1000)},
}
report("losses", "python bench/losses.py", figures)
