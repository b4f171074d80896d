"""What is it in the second classifier that helps? Trials for docs/research/auto.md, on validation images only.

BALCAL_DATA=../shared/data python results/scripts/auto_why.py fashion cifar10 --seeds 100,101,102 --runs runs

Plain training beside trainings with a second classifier that has half of the loss, in four kinds: one thing changed at
a time, from any second classifier (an auxiliary loss) over a normalised one to the frame. Figures as in auto_trials.py,
of the learnable classifier alone (`s alone`) and of both; rows go to results/data/auto-why.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from auto_trials import TASKS, rewrite, scores_of
from folders import DATA
from torch import Tensor, nn
from torch.nn import functional as F

from balcal import registry
from balcal.arena.schedule import Resources, Training, train_missing
from balcal.core import Head
from balcal.methods.balcal import Balanced, BalancedHead
from balcal.recipe import Recipe
from balcal.runs import Run

Kind = Literal["linear", "cosine", "random", "frame"]
KINDS: dict[str, Kind | None] = {
    "plain training": None,
    "a linear one": "linear",
    "a cosine one, learnable": "cosine",
    "a cosine one, fixed at random": "random",
    "a cosine one, fixed on a frame": "frame",
}
CSV = DATA / "auto-why.csv"


class SecondHead(BalancedHead):
    """Two classifiers, of which the second one is not (always) on a frame."""

    def become(self, kind: Kind) -> None:
        self.kind = kind
        width, classes = self.etf.shape
        if kind == "linear":
            self.second = nn.Linear(width, classes)
        elif kind == "cosine":
            self.second = nn.Parameter(F.normalize(torch.randn(width, classes), dim=0))
        elif kind == "random":
            self.etf.copy_(F.normalize(torch.randn(width, classes), dim=0))

    def etf_logits(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        adapted = self.adapter(features, feature_map)
        if self.kind == "linear":
            return self.second(adapted)
        columns = F.normalize(self.second, dim=0) if self.kind == "cosine" else self.etf
        return self.beta * F.normalize(adapted, dim=1) @ columns


@dataclass(frozen=True)
class Second(Balanced):
    """Its kind; the adapter before it is the same for all."""

    kind: Kind = "frame"

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        classifier = learnable or nn.Linear(features, num_classes)
        head = SecondHead(classifier, self.fixed(features, num_classes, channels), self)
        head.become(self.kind)
        return head


def recipe(task: str, kind: Kind | None, seed: int) -> Recipe:
    name, _, settings = TASKS[task]
    if kind is None:
        return registry.recipe(name, "vanilla", seed, settings)
    usual = registry.recipe(name, "balcal-val", seed, settings)
    head = Second(fusion="logits", delta=1.0, loss_follows=False, kind=kind)
    return replace(usual, method=replace(usual.method, head=head))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=[task for task in TASKS if task != "mixup"])
    parser.add_argument("--seeds", default="100,101,102")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    wanted = [
        (task, name, int(seed), recipe(task, kind, int(seed)))
        for task in given.tasks
        for seed in given.seeds.split(",")
        for name, kind in KINDS.items()
    ]
    train_missing([Training(made, keep=1) for *_, made in wanted], Resources(given.runs, jobs=given.jobs))
    torch.set_num_threads(1)
    rewrite(CSV, (row for *what, made in wanted for row in scores_of(*what, Run(given.runs, made))))


if __name__ == "__main__":
    main()
