"""One optimisation step of recipes of the paper's protocol, on a handful of random images, at their real resolution.

Plain training and BalCAL on every task, and every other method on the first task that has it; `--all` for every recipe.
Writes what was executed to bench/results/paper_steps.json, and goes on from there if it was interrupted. Needs no data;
vision transformers need timm.

    python bench/paper_steps.py [--all]
"""

import json
import sys
import time
from pathlib import Path

import torch

from balcal.core import BalcalError
from balcal.paper import ITEMS
from balcal.paper.budget import time_steps
from balcal.paper.measure import trainings
from balcal.paper.tiers import tier
from balcal.recipe import Recipe

RESULT = Path(__file__).parent / "results" / "paper_steps.json"


IMAGES = 2


def chosen(everything: bool) -> list[Recipe]:
    found = [training.recipe for training in trainings(ITEMS.values(), tier("paper"), [0])]
    seen: set[str] = set()
    some = []
    for recipe in found:
        name = recipe.method.name
        if everything or name not in seen or (name in ("vanilla", "balcal") and not recipe.overrides):
            some.append(recipe)
        seen.add(name)
    backbones: set[tuple[str, str]] = set()

    def late(recipe: Recipe) -> bool:
        """Plain training and BalCAL on each network come first."""
        key = (recipe.task.backbone, recipe.method.name)
        again = key in backbones
        backbones.add(key)
        return again or recipe.method.name not in ("vanilla", "balcal")

    return sorted(some, key=late)


def executed(recipe: Recipe) -> dict[str, object]:
    row: dict[str, object] = {
        "task": recipe.task.name,
        "backbone": recipe.task.backbone,
        "method": recipe.method.name,
        "settings": list(recipe.overrides),
    }
    begun = time.monotonic()
    try:
        timed = time_steps(recipe, torch.device("cpu"), steps=0, largest=IMAGES)
        row |= {"images": timed.batch, "weights_mb": round(timed.weight_bytes / 1e6, 1)}
    except BalcalError as error:
        row |= {"refused": str(error)}
    return row | {"seconds": round(time.monotonic() - begun, 2)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = json.loads(RESULT.read_text())["steps"] if RESULT.exists() else []
    done = {(row["task"], row["method"], *row["settings"]) for row in rows if "images" in row}
    for recipe in chosen("--all" in sys.argv):
        if (recipe.task.name, recipe.method.name, *recipe.overrides) not in done:
            rows.append(executed(recipe))
            print(json.dumps(rows[-1]), flush=True)
            RESULT.write_text(json.dumps({"torch": torch.__version__, "steps": rows}, indent=1) + "\n")
    print(f"{sum('images' in row for row in rows)} of {len(rows)} recipes took a step")
