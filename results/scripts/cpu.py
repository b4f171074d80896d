"""BalCAL, its ablations and all other methods on real CIFAR images with a small network: hours on two cores.

BALCAL_DATA=../shared/data python results/scripts/cpu.py --runs runs --jobs 2    trains what is missing, writes all
BALCAL_DATA=../shared/data python results/scripts/cpu.py paper --runs runs       only the paper's items, from these runs

Contests are arenas: they hold recipe, seed, commit, environment and duration of every run. Items are those of
`balcal paper --tier cpu --found`, without the points of pictures. Figures go to results/data/cpu, pictures to
docs/results. `python results/scripts/write.py` makes docs/results-cpu.md from them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from folders import DATA, DOCS
from PIL import Image

from balcal.arena.result import ArenaResult
from balcal.arena.running import run as arena
from balcal.paper import ITEMS
from balcal.paper.drawing import DRAWINGS
from balcal.paper.measure import Answers
from balcal.paper.render import answer
from balcal.paper.tiers import tier
from balcal.runtime.files import write_atomic

PUBLISHED = ("vanilla", "acls", "ls", "mixup", "mit", "fl", "flsd", "cpc", "plp", "mmce-w", "tst", "vtst", "balcal")
OURS = ("balcal-logits", "balcal-auto")
PARTS = ("vanilla", "etf-1", "etf-k", "balcal-beta", "balcal-noadapter", "balcal-fixed", "balcal-fixedloss", "balcal")
CONTESTS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "cifar10": ("cifar10-cpu", (*PUBLISHED, *OURS), 3),
    "cifar100": ("cifar100-cpu", (*PUBLISHED, *OURS), 2),
    "parts": ("cifar10-cpu", (*PARTS, *OURS), 1),
}
"""task, methods, seeds"""
SHOWN = (
    *("main", "variants", "gamma", "ood", "ood-confidence", "alpha"),
    *("motivation", "alpha-ece", "shift", "delta", "tsne-more", "cam", "alpha-confidence", "distance", "collapse"),
)
SEEDS = 3
ONCE = ("shift", "delta", "alpha", "alpha-ece", "alpha-confidence", "motivation")
"""of the first seed alone: most of their runs have no other, and all points of a curve need the same seeds"""
BULKY = ("points", "labels", "images")
"""what only a picture needs"""
UNDRAWN = ("cam",)
"""its picture has CIFAR images in it, which are not ours to hand out"""
FOLDER, PICTURES = DATA / "cpu", DOCS / "results"


def small(value: Any) -> Any:
    """Round to six digits, and drop what only pictures need."""
    if isinstance(value, dict):
        return {k: small(v) for k, v in value.items() if k not in BULKY}
    if isinstance(value, list | tuple):
        return [small(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def store(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with one line per entry of its lists, so that a diff can be read."""
    lines = []
    for key, value in small(content).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f" {json.dumps(key)}: [\n  {rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    write_atomic(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def contest(name: str, runs: Path, jobs: int) -> None:
    task, methods, seeds = CONTESTS[name]
    result = arena(task, methods, seeds, runs=runs, jobs=jobs)
    keep(result, FOLDER / f"{name}.json")


def keep(result: ArenaResult, path: Path) -> None:
    """Store a result without the folder of its runs."""
    content = result.as_dict()
    content["made"] = {key: value for key, value in content["made"].items() if key != "runs"}
    store(path, content)


def items(budget: str, runs: Path, names: Sequence[str], folder: Path, prefix: str = "") -> None:
    """Answer the paper's items from the runs of a tier that are there."""
    every, first = (Answers(tier(budget), range(n), runs, "cpu", only_found=True) for n in (SEEDS, 1))
    for name in names:
        answers = first if name in ONCE else every
        print(name, flush=True)
        answered = answer(ITEMS[name], answers).as_dict()
        if answered["data"] and name not in UNDRAWN:
            DRAWINGS[name](answered["data"]).savefig(picture := PICTURES / f"{prefix}{name}.png", dpi=100)
            in_few_colours(picture)
        answered["runs"] = [str(Path(run).relative_to(runs)) for run in answered["runs"]]
        store(folder / f"paper-{name}.json", answered)


def in_few_colours(path: Path) -> None:
    """Reduce a picture to 256 colours: fewer bytes, and no visible difference. With 64, a rare colour turns grey."""
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(CONTESTS)}, paper, or its items; all if left out")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    for part in given.parts or (*CONTESTS, "paper"):
        if part in CONTESTS:
            contest(part, given.runs, given.jobs)
        else:
            items("cpu", given.runs, SHOWN if part == "paper" else [part], FOLDER)


if __name__ == "__main__":
    main()
