"""What precision, memory format and `plan.compile` do to a training step, one thread, processor time.

python bench/formats.py [ROUNDS]

Our training puts weights into channels-last. `plan.precision=auto` takes bf16 where the CPU has instructions for it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import ratio, report, take_turns

from balcal.model import Model, compile_backbone
from balcal.registry import backbone, method
from balcal.runtime.devices import cpu_has_bf16, keep_freed_memory

OURS = "fp32, channels last"
VARIANTS = {
    "fp32, contiguous": ("fp32", torch.contiguous_format, False),
    OURS: ("fp32", torch.channels_last, False),
    f"{OURS}, again": ("fp32", torch.channels_last, False),
    "fp32, channels last, compiled": ("fp32", torch.channels_last, True),
    "bf16, contiguous": ("bf16", torch.contiguous_format, False),
    "bf16, channels last": ("bf16", torch.channels_last, False),
    "bf16, channels last, compiled": ("bf16", torch.channels_last, True),
}
NETWORKS = {"cnn-32": 256, "resnet-8": 64, "wrn-16-2": 128}
"""images of 32 x 32 a step"""


def step(network: str, batch: int, precision: str, layout: torch.memory_format, compiled: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Model(backbone(network, 3), 10, method("balcal-logits")).to(memory_format=layout)
    if compiled:
        compile_backbone(model)
    optimiser = torch.optim.SGD(model.parameters(), 1e-9, 0.9, nesterov=True, weight_decay=5e-4)
    images = torch.randn(batch, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.randint(10, (batch,))

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model.loss(images, labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return run


def compare(network: str, batch: int, rounds: int) -> dict[str, Any]:
    turns = {name: step(network, batch, *variant) for name, variant in VARIANTS.items()}
    begun = time.perf_counter()
    turns["fp32, channels last, compiled"]()
    compiling = time.perf_counter() - begun
    seconds = take_turns(turns, rounds, time.process_time)
    return {
        "images a step": batch,
        "ms an image": {name: round(1000 * statistics.median(each) / batch, 3) for name, each in seconds.items()},
        f"time relative to {OURS}": {name: ratio(seconds, name, OURS) for name in turns if name != OURS},
        "seconds to compile": round(compiling),
    }


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
torch.set_num_threads(1)
keep_freed_memory()
figures = {name: compare(name, batch, rounds) for name, batch in NETWORKS.items()}
report("formats", f"python bench/formats.py {rounds}", {"bf16 instructions": cpu_has_bf16(), **figures})
