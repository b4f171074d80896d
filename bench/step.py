"""What BalCAL costs per step: WRN-16-2, 32 x 32, batch 128, beside vanilla and beside vanilla once more (the noise).

python bench/step.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from side_by_side import ratio, report, take_turns

from balcal.devices import keep_freed_memory
from balcal.model import Model
from balcal.registry import backbone, method

keep_freed_memory()
METHODS = {"vanilla": "vanilla", "vanilla again": "vanilla", "balcal": "balcal", "balcal-logits": "balcal-logits"}


def step(name: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Model(backbone("wrn-16-2"), 10, method(name)).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4)
    images = torch.randn(128, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (128,))

    def run() -> None:
        model.loss(images, labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return run


seconds = take_turns({label: step(name) for label, name in METHODS.items()}, rounds=60)
figures = {
    "what": "forward, loss, tally, backward, SGD step of WRN-16-2 at 32 x 32, batch 128, K = 10",
    "seconds per step": {name: round(sorted(s)[len(s) // 2], 3) for name, s in seconds.items()},
    "time relative to vanilla": {name: ratio(seconds, name, "vanilla") for name in METHODS if name != "vanilla"},
}
report("step", "python bench/step.py", figures)
