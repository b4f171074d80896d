"""What BalCAL costs per step: WRN-16-2, 32 x 32, batch 128, beside vanilla and beside vanilla once more (the noise).

python bench/step.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from side_by_side import ratio, report, take_turns

from balcal.model import Model
from balcal.registry import backbone, method
from balcal.runtime.devices import keep_freed_memory

keep_freed_memory()
METHODS = {"vanilla": "vanilla", "vanilla again": "vanilla", "balcal": "balcal"}


class Given(torch.nn.Module):
    """Stands for a network whose features are there already: what is left is the head, the loss and the tally."""

    num_features = 128

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        return x


def step(name: str, network: torch.nn.Module, images: torch.Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Model(network, 10, method(name)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 1e-9, 0.9, weight_decay=5e-4)
    labels = torch.randint(10, (128,))

    def run() -> None:
        model.loss(images, labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return run


pictures = torch.randn(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
features = torch.randn(128, 128, requires_grad=True)
network = backbone("wrn-16-2")  # one backbone for all: where its weights lie in memory makes a difference of its own
seconds = take_turns({label: step(name, network, pictures) for label, name in METHODS.items()}, rounds=80)
heads = take_turns({label: step(name, Given(), features) for label, name in METHODS.items()}, rounds=400)
middle = {label: (statistics.median(seconds[label]), statistics.median(heads[label])) for label in METHODS}
figures = {
    "what": "forward, loss, tally, backward, SGD step of WRN-16-2 at 32 x 32, batch 128, K = 10",
    "seconds per step": {label: round(whole, 3) for label, (whole, _) in middle.items()},
    "ms for head, loss, tally and their update alone": {label: round(1000 * h, 2) for label, (_, h) in middle.items()},
    "the same, added to vanilla's step": {
        label: round(1 + (h - middle["vanilla"][1]) / middle["vanilla"][0], 4) for label, (_, h) in middle.items()
    },
    "time relative to vanilla": {name: ratio(seconds, name, "vanilla") for name in METHODS if name != "vanilla"},
}
report("step", "python bench/step.py", figures)
