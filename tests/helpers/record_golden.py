"""Record the first losses of every method anew, and say which of them moved.

python tests/helpers/record_golden.py             all methods
python tests/helpers/record_golden.py tst vtst    these, and methods that have no record yet
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from conformance_helper import FIRST, GOLDEN, SMALL, STEPS, TRAINED, recorded, watched
from runs_helper import trained


def main(*names):
    torch.set_num_threads(1)
    before = recorded()
    after = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TRAINED:
            if names and name not in names and name in before:
                after[name] = before[name]
                continue
            with watched() as (losses, _):
                trained(name, Path(folder, name), settings=SMALL)
            after[name] = [float(f"{loss:.7g}") for loss in losses[-STEPS:][:FIRST]]
            if name not in before:
                print(f"{name}: new")
            elif after[name] != before[name]:
                moved = max(abs(a - b) / abs(b) for a, b in zip(after[name], before[name], strict=True))
                print(f"{name}: moved by up to {moved:.1e}")
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = (f"{json.dumps(name)}: {json.dumps(after[name])}" for name in sorted(after))
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
