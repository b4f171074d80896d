"""One optimisation step of every recipe of the paper's protocol, on a handful of random images.

Shows that each of them can be built and trained, at its real resolution with its real network; writes what was executed
to bench/results/paper_steps.json. Needs no data; vision transformers need timm, and say so if it is not there.

    python bench/paper_steps.py [IMAGES]
"""

import json
import sys
import time
from pathlib import Path

import torch

from balcal.core import BalcalError
from balcal.paper import ITEMS
from balcal.paper.running import trainings
from balcal.paper.tiers import tier
from balcal.paper.timing import time_steps

RESULT = Path(__file__).parent / "results" / "paper_steps.json"


def executed(images: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for training in trainings(ITEMS.values(), tier("paper"), [0]):
        recipe = training.recipe
        row = {
            "task": recipe.task.name,
            "backbone": recipe.task.backbone,
            "method": recipe.method.name,
            "settings": list(recipe.overrides),
        }
        begun = time.monotonic()
        try:
            timed = time_steps(recipe, torch.device("cpu"), steps=0, largest=images)
            row |= {"images": timed.batch, "weights_mb": round(timed.weight_bytes / 1e6, 1)}
        except BalcalError as error:
            row |= {"refused": str(error)}
        rows.append(row | {"seconds": round(time.monotonic() - begun, 2)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = executed(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
    RESULT.write_text(json.dumps({"torch": torch.__version__, "steps": rows}, indent=1) + "\n")
    print(f"{sum('images' in row for row in rows)} of {len(rows)} recipes took a step")
