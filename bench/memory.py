"""What asking glibc to keep freed blocks is worth: the same steps in processes of their own, with and without.

python bench/memory.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from side_by_side import report

PROBE = """
import json, resource, sys, time
import torch
from balcal.runtime.devices import keep_freed_memory
from balcal.model import Model
from balcal.registry import backbone, method

if sys.argv[2] == "kept":
    assert keep_freed_memory()
name, side, channels, steps = {"cnn-28": ("cnn-28", 28, 1, 60), "wrn-16-2": ("wrn-16-2", 32, 3, 4)}[sys.argv[1]]
model = Model(backbone(name, channels), 10, method("vanilla")).to(memory_format=torch.channels_last)
optimiser = torch.optim.Adam(model.parameters(), 1e-9)
images = torch.randn(128, channels, side, side).contiguous(memory_format=torch.channels_last)
labels = torch.arange(128) % 10
for step in range(steps + 3):
    if step == 3:
        begun, faults = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model.loss(images, labels).backward()
    optimiser.step()
    optimiser.zero_grad()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
print(json.dumps({"ms": 1000 * (time.perf_counter() - begun) / steps, "faults": faults / steps}))
"""

figures: dict[str, object] = {}
for network in ("cnn-28", "wrn-16-2"):
    measured: dict[str, list[dict[str, float]]] = {"kept": [], "given back": []}
    for _ in range(5):
        for way, rows in measured.items():
            done = subprocess.run(
                [sys.executable, "-c", PROBE, network, way], capture_output=True, text=True, check=True
            )
            rows.append(json.loads(done.stdout))
    middle = {
        way: {key: statistics.median(r[key] for r in rows) for key in ("ms", "faults")}
        for way, rows in measured.items()
    }
    figures[network] = {
        "ms per step": {way: round(m["ms"], 1) for way, m in middle.items()},
        "page faults per step": {way: round(m["faults"]) for way, m in middle.items()},
        "speed, kept relative to given back": round(middle["given back"]["ms"] / middle["kept"]["ms"], 3),
    }
report("memory", "python bench/memory.py", figures)
