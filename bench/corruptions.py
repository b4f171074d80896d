"""Corrupting 10,000 images of 32 x 32 pixels in 15 ways and 5 severities, beside the package `imagecorruptions-imaug`.

BALCAL_PEER_PYTHON=/path/to/python python bench/corruptions.py

The peer needs opencv, scikit-image and numba, so it may live in an interpreter of its own; where it cannot be imported,
ours is timed alone. Both are given in seconds of processor time, extrapolated from what was measured in turns. The peer
knows the constants of ImageNet-C only (and a milder elastic transform of its own), so ours is timed with those as well.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from side_by_side import report

from balcal.data.catalog import fashion
from balcal.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt, corrupt_with
from balcal.data.corruptions.constants import CONSTANTS

MANY, CALLS, ROUNDS, WANTED = 2_000, 40, 3, 10_000
PEER = f"""
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, imagecorruptions, cv2
cv2.setNumThreads(1)
images = np.load(sys.argv[1])[:{CALLS}]
print("ready", flush=True)
for line in sys.stdin:
    name, seconds = line.strip(), 0.0
    for severity in range(1, 6):
        imagecorruptions.corrupt(images[0], corruption_name=name, severity=severity)
        begun = time.process_time()
        for image in images:
            imagecorruptions.corrupt(image, corruption_name=name, severity=severity)
        seconds += time.process_time() - begun
    print(seconds / (5 * len(images)), flush=True)
"""


def pictures() -> np.ndarray:
    """(2000, 32, 32, 3): each channel is an image of fashion, with a margin."""
    grey = np.pad(fashion()[0].images[: 3 * MANY, :, :, 0].numpy(), ((0, 0), (2, 2), (2, 2)))
    return np.ascontiguousarray(grey.reshape(MANY, 3, 32, 32).transpose(0, 2, 3, 1))


def peer(path: str) -> Callable[[str], float] | None:
    """Seconds that the package takes for one image, mean over severities; none if it is not to be had."""
    python = os.environ.get("BALCAL_PEER_PYTHON", sys.executable)
    process = subprocess.Popen(
        [python, "-c", PEER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    if process.stdout is None or process.stdin is None or process.stdout.readline().strip() != "ready":
        print(f"imagecorruptions cannot be imported by {python}: set BALCAL_PEER_PYTHON to one that has it")
        return None
    ask, answer = process.stdin, process.stdout

    def seconds(name: str) -> float:
        ask.write(f"{name}\n")
        ask.flush()
        return float(answer.readline())

    return seconds


def ours(images: np.ndarray, run: Callable[[np.ndarray, int], object]) -> float:
    total = 0.0
    for severity in SEVERITIES:
        run(images[:2], severity)  # tables and plates are made once in a process
        begun = time.process_time()
        run(images, severity)
        total += time.process_time() - begun
    return total / (len(SEVERITIES) * len(images))


def main() -> None:
    images = pictures()
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"balcal-bench-{os.getpid()}.npy")
    np.save(path, images)
    theirs = peer(path)
    kinds: dict[str, list[list[float]]] = {name: [] for name in CORRUPTIONS}
    for _ in range(ROUNDS):
        for name in CORRUPTIONS:
            small = ours(images, lambda x, s, name=name: corrupt(x, name, s))
            large = ours(images[:400], lambda x, s, name=name: corrupt_with(x, name, CONSTANTS[name][224][s - 1], 0))
            kinds[name].append([small, large, theirs(name) if theirs else float("nan")])
    os.unlink(path)
    table = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in kinds.items()}
    scale = WANTED * len(SEVERITIES)
    figures = {
        "measured": f"{ROUNDS} rounds of {MANY} images (ours) and {CALLS} calls (theirs) for each kind and severity",
        f"seconds for {WANTED} images x 15 x 5, balcal": round(scale * sum(row[0] for row in table.values()), 1),
        "microseconds an image, balcal": {name: round(1e6 * row[0], 1) for name, row in table.items()},
    }
    if theirs:
        same = [row for name, row in table.items() if name != "elastic_transform"]
        figures |= {
            f"seconds for {WANTED} images x 15 x 5, imagecorruptions": round(scale * sum(r[2] for r in table.values())),
            "microseconds an image, imagecorruptions": {n: round(1e6 * row[2], 1) for n, row in table.items()},
            "times faster": {n: round(row[2] / row[0], 1) for n, row in table.items()},
            "times faster, all 15": round(sum(r[2] for r in table.values()) / sum(r[0] for r in table.values()), 1),
            "times faster with the same constants": {
                n: round(row[2] / row[1], 1) for n, row in table.items() if n != "elastic_transform"
            },
            "times faster with the same constants, 14": round(sum(r[2] for r in same) / sum(r[1] for r in same), 1),
        }
    report("corruptions", "BALCAL_PEER_PYTHON=... python bench/corruptions.py", json.loads(json.dumps(figures)))


if __name__ == "__main__":
    main()
