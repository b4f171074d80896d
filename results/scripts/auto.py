"""The final runs of docs/research/auto.md: five tasks, five seeds, test images used once; then the follow-up tasks.

BALCAL_DATA=../shared/data python results/scripts/auto.py --runs runs --jobs 2    trains what is missing
BALCAL_DATA=../shared/data python results/scripts/auto.py --few --runs runs       only methods of the plan's claims

It writes results/data/auto, from which `python results/scripts/write.py` makes docs/research/auto-final.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from cpu import keep
from folders import DATA

from balcal.arena.result import ArenaResult
from balcal.arena.running import run as arena

SEEDS = 5
FOLDER = DATA / "auto"
PLAIN = (
    *("vanilla", "late", "averaged+late", "ls", "fl", "mixup", "mit"),
    *("balcal", "balcal-logits", "balcal-val", "balcal-mean", "balcal-half", "balcal-auto"),
)
MIXED = (
    *("mixup", "mixup+late", "mixup+averaged+late"),
    *("balcal+mixup", "balcal-k+mixup", "balcal-val+mixup"),
    *("balcal-mean+mixup", "balcal-half+mixup", "balcal-auto+mixup"),
)


@dataclass(frozen=True)
class Final:
    """A task, its methods, and the name of plain training on it."""

    about: str
    task: str
    settings: tuple[str, ...] = ()
    methods: tuple[str, ...] = PLAIN
    plain: str = "vanilla"
    winner: str = "balcal-mean"
    """by the plan's rule"""
    trial: str = "balcal-half"
    """of the follow-up"""

    @property
    def reference(self) -> str:
        return f"{self.plain}+ts"

    @property
    def few(self) -> tuple[str, ...]:
        """Those that the claims are about: plain training, the controls, the winner; and the follow-up's."""
        late = "late" if self.plain == "vanilla" else f"{self.plain}+late"
        return self.plain, late, self.control.removesuffix("+ts"), self.winner, self.trial

    @property
    def control(self) -> str:
        """The same average and the same choice of the epoch, without a second classifier."""
        return "averaged+late+ts" if self.plain == "vanilla" else f"{self.plain}+averaged+late+ts"


FINALS = {
    "fashion": Final("small, grey, easy", "fashion"),
    "cifar10": Final("real images, over-confident", "cifar10-cpu"),
    "cifar100": Final("many classes, few images of each", "cifar100-cpu"),
    "mixup": Final(
        "strong mixing, under-confident",
        "cifar10-cpu",
        ("mix.alpha=2",),
        MIXED,
        *("mixup", "balcal-mean+mixup", "balcal-half+mixup"),
    ),
    "noisy": Final("labels by one person each", "cifar10-cpu", ("task.dataset=cifar10n-random1",)),
}
MIXING = {
    "methods": ("mixup", "mixup+late", "balcal-mean+mixup", "balcal-auto+mixup"),
    "plain": "mixup",
    "winner": "balcal-mean+mixup",
    "trial": "balcal-auto+mixup",
}
FRESH = {
    "mixup-split": Final("strong mixing, other images", "cifar10-cpu", ("mix.alpha=2", "task.split_seed=2"), **MIXING),
    "mixup-100": Final("strong mixing, many classes", "cifar100-cpu", ("mix.alpha=2",), **MIXING),
    "mixup-fashion": Final("strong mixing, easy", "fashion", ("mix.alpha=2",), **MIXING),
    "noisy-split": Final(
        "labels by one person each, other images",
        "cifar10-cpu",
        ("task.dataset=cifar10n-random1", "task.split_seed=2"),
        ("vanilla", "late", "ls", "fl", "mixup", "mit", "balcal-mean", "balcal-auto"),
        trial="balcal-auto",
    ),
}
"""of the second follow-up: is the average always right?"""
ALL = FINALS | FRESH
THEN = {"balcal-auto": "balcal-mean", "balcal-either": "balcal-auto"}
"""names in files of runs that were made before `balcal-auto` asked at the end, and what they are called today"""


def recorded(path: Path) -> ArenaResult:
    """A result under the names of today."""
    result = json.loads(path.read_text())
    mine = [run for run in result["runs"] if run["method"].startswith("balcal-auto")]
    if all("average_or_last" not in run["recipe"]["task"]["plan"] for run in mine):
        renamed = re.sub("|".join(THEN), lambda name: THEN[name[0]], json.dumps(result))
        result = json.loads(renamed)
    return ArenaResult.of(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"{', '.join(ALL)}; the first five if left out")
    parser.add_argument("--few", action="store_true", help="only those that the plan's claims are about")
    parser.add_argument("--and", dest="more", default="", help="with --few: these as well, joined by commas")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    for name in given.tasks or FINALS:
        asked = ALL[name]
        result = arena(
            asked.task,
            (*asked.few, *filter(None, given.more.split(","))) if given.few else asked.methods,
            SEEDS,
            settings=asked.settings,
            against=asked.reference,
            runs=given.runs,
            jobs=given.jobs,
        )
        keep(result, FOLDER / f"{name}.json")
        for complaint in result.complaints:
            print(complaint, file=sys.stderr)


if __name__ == "__main__":
    main()
