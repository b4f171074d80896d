"""Trials for docs/research/auto.md, on validation images only: networks with two classifiers, and ways to fuse them.

BALCAL_DATA=../shared/data python results/scripts/auto_trials.py fashion cifar10 --seeds 100,101 --runs runs

Trains what is missing, evaluates every epoch's weights on the validation split, and compares ways to fuse the logits of
the two classifiers. One half of the split fits and chooses the epoch, the other half is scored; then the halves swap.
Replaces the rows of these tasks, seeds and trainings in results/data/auto-trials.csv. Reads no test image.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from folders import DATA
from joblib import Parallel, delayed
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn

from balcal import registry
from balcal.arena.schedule import Resources, Training, train_missing
from balcal.build import build
from balcal.core import Head, Outputs
from balcal.evaluation.judge import batches_of, load_splits
from balcal.methods.balcal import Balanced, BalancedHead
from balcal.methods.gamma import RefitGamma
from balcal.methods.parts.gamma_search import Curve, shares, solve_gamma
from balcal.metrics import ece as expected_calibration_error
from balcal.recipe import Recipe
from balcal.runs import Run

TASKS = {
    "fashion": ("fashion", "", ()),
    "cifar10": ("cifar10-cpu", "", ()),
    "cifar100": ("cifar100-cpu", "", ()),
    "mixup": ("cifar10-cpu", "+mixup", ("mix.alpha=2",)),
}
FIXED, LAST = "head.loss_follows=false", "plan.average=none"
MEAN = "plan.average=3"
TRAININGS = {
    "vanilla": ("vanilla", ()),
    "vanilla, averaged": ("vanilla", (MEAN,)),
    "follows": ("balcal-mean", (LAST,)),
    "follows, averaged": ("balcal-mean", ()),
    "w<=0.8": ("balcal-mean", (LAST,)),
    "w<=0.8, averaged": ("balcal-mean", ()),
    "w=0.5, averaged": ("balcal-mean", (FIXED,)),
    "w=0.5": ("balcal-mean", (FIXED, LAST)),
    "w=0.8": ("balcal-mean", (FIXED, LAST, "head.gamma=0.8")),
    "w=0.2": ("balcal-mean", (FIXED, LAST, "head.gamma=0.2")),
    "w=0.5, beta=K": ("balcal-mean", (FIXED, LAST, "head.beta=K")),
    "w=0.5, no adapter": ("balcal-mean", (FIXED, LAST, "head.adapter=none")),
    "w=0.5, conv": ("balcal-mean", (FIXED, LAST, "head.adapter=conv")),
}
CSV = DATA / "auto-trials.csv"


class AttendedHead(BalancedHead):
    """The fixed classifier's share of the loss is never less than a fifth, so that its adapter goes on learning."""

    def set_gamma(self, gamma: float) -> None:
        super().set_gamma(gamma)
        share = min(gamma, 0.8)
        self.loss_weights.copy_(torch.tensor([share, 1 - share]))


class Attended(Balanced):
    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        classifier = learnable or nn.Linear(features, num_classes)
        return AttendedHead(classifier, self.fixed(features, num_classes, channels), self)


def recipe(task: str, training: str, seed: int) -> Recipe:
    name, joined, settings = TASKS[task]
    method, more = TRAININGS[training]
    method = joined[1:] if joined and method == "vanilla" else method + joined
    made = registry.recipe(name, method, seed, (*settings, *more))
    if not training.startswith("w<="):
        return made
    return replace(made, method=replace(made.method, head=Attended(fusion="logits", delta=1.0)))


@torch.no_grad()
def validation_logits(run: Run, epoch: int) -> tuple[Tensor, Tensor]:
    """Logits (branches, N, K) of the validation split under the weights of an epoch, and labels."""
    kept = run.path / "trials" / f"val-{epoch:04d}.npz"
    if not kept.exists():
        model = build(run.recipe)
        model.load_state_dict(run.load_weights(epoch))
        model.eval()
        batches = batches_of(run, load_splits(run.recipe.task).val, torch.device("cpu"))
        outputs = [(model(x, branches=True).logits, y) for x, y in batches.epoch(0)]
        kept.parent.mkdir(exist_ok=True)
        logits, labels = torch.cat([z for z, _ in outputs], 1), torch.cat([y for _, y in outputs])
        np.savez(kept, logits=logits.numpy(), labels=labels.numpy())
    with np.load(kept) as arrays:
        return torch.from_numpy(arrays["logits"]).double(), torch.from_numpy(arrays["labels"])


Weights = tuple[float, float]
"""of s and of e in softmax(a s + b e)"""
Rule = Callable[[Tensor, Tensor], Weights]
"""(logits, labels) -> weights"""


def nll(logits: Tensor, labels: Tensor, weights: Weights) -> float:
    return float(torch.nn.functional.cross_entropy(fused(logits, weights), labels))


def fused(logits: Tensor, weights: Weights) -> Tensor:
    """A single classifier has nothing to be fused with."""
    return weights[0] * logits[0] + (weights[1] * logits[1] if len(logits) > 1 else 0.0)


def raw(logits: Tensor, labels: Tensor) -> Weights:
    return 1.0, 0.0


def temperature(logits: Tensor, labels: Tensor) -> Weights:
    found = minimize_scalar(lambda u: nll(logits, labels, (np.exp(u), 0.0)), bounds=(-4, 4), method="bounded")
    return float(np.exp(found.x)), 0.0


def by_balance(largest: float) -> Rule:
    """conf = acc, on a grid from 0 to `largest`."""

    def rule(logits: Tensor, labels: Tensor) -> Weights:
        grid = np.linspace(0, largest, 1 + int(32 * largest))
        probs = [fused(logits, (g, 1 - g)).softmax(1).max(1) for g in grid]
        conf = np.array([float(top.mean()) for top, _ in probs])
        acc = np.array([float((pick == labels).double().mean()) for _, pick in probs])
        g = solve_gamma(Curve(grid, conf, acc), delta=1.0).value
        return g, 1 - g

    return rule


def as_built(logits: Tensor, labels: Tensor) -> Weights:
    """conf = acc as `balcal-mean` has it: above 1 gamma is a factor on s, and e is out."""
    half = torch.full((2,), 0.5, dtype=torch.float64)
    fitted = RefitGamma(by="balance").fit(Outputs(logits, half, half, "logits"), labels)
    return shares(float(fitted.gamma))


def by_nll(largest: float) -> Rule:
    def rule(logits: Tensor, labels: Tensor) -> Weights:
        found = minimize_scalar(lambda g: nll(logits, labels, (g, 1 - g)), bounds=(0, largest), method="bounded")
        return float(found.x), 1 - float(found.x)

    return rule


def both_free(logits: Tensor, labels: Tensor) -> Weights:
    """a and b not below 0, of lowest NLL: a convex problem."""
    rows = torch.arange(len(labels))

    def value(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_probs = fused(logits, tuple(weights)).log_softmax(1)
        off = log_probs.exp()
        off[rows, labels] -= 1
        slope = (off * logits).sum(2).mean(1)
        return -float(log_probs[rows, labels].mean()), slope.numpy()

    found = minimize(value, np.array([0.5, 0.5]), jac=True, method="L-BFGS-B", bounds=[(0, None), (0, None)])
    return tuple(found.x.tolist())


ALONE: dict[str, tuple[Rule, Rule]] = {
    "raw": (raw, raw),
    "ts": (raw, temperature),
    "ts, late": (temperature, temperature),
}
"""how the epoch is chosen, and how it predicts"""
TOGETHER: dict[str, tuple[Rule, Rule]] = {
    name: (rule, rule)
    for name, rule in {
        "conf=acc, g<=1": by_balance(1.0),
        "conf=acc, g<=4": by_balance(4.0),
        "conf=acc, as built": as_built,
        "nll, g<=1": by_nll(1.0),
        "nll, g<=4": by_nll(4.0),
        "nll, a and b": both_free,
        "s alone, ts, late": temperature,
    }.items()
}


@dataclass(frozen=True)
class Row:
    task: str
    seed: int
    training: str
    rule: str
    nll: float
    accuracy: float
    ece: float
    gap: float
    """confidence minus accuracy"""
    epoch: float
    a: float
    b: float


def scores_of(task: str, training: str, seed: int, run: Run) -> Iterator[Row]:
    epochs = [validation_logits(run, epoch) for epoch in range(len(run.history()))]
    labels = epochs[0][1]
    halves = torch.arange(len(labels)) % 2 == 0
    for name, (choose, predict) in (ALONE if len(epochs[0][0]) == 1 else TOGETHER).items():
        found = []
        for here in (halves, ~halves):
            there = ~here
            scores = [nll(z[:, here], labels[here], choose(z[:, here], labels[here])) for z, _ in epochs]
            epoch = int(np.argmin(scores))
            z = epochs[epoch][0]
            weights = predict(z[:, here], labels[here])
            probs, y = fused(z[:, there], weights).softmax(1), labels[there]
            top, pick = probs.max(1)
            right = (pick == y).double()
            figures = (nll(z[:, there], y, weights), float(right.mean()))
            error = float(expected_calibration_error(probs=probs, labels=y))
            found.append((*figures, error, float(top.mean() - right.mean()), epoch + 1, *weights))
        yield Row(task, seed, training, name, *(round(float(x), 5) for x in np.mean(found, 0)))


def rows_of(task: str, training: str, seed: int, run: Run) -> list[Row]:
    torch.set_num_threads(1)
    return list(scores_of(task, training, seed, run))


def rewrite(path: Path, new: Iterable[Row]) -> None:
    """Rows of what was tried again take the place of the old ones."""
    rows = [asdict(row) for row in new]
    done = {(row["task"], str(row["seed"]), row["training"]) for row in rows}
    old = list(csv.DictReader(path.open())) if path.exists() else []
    kept = [row for row in old if (row["task"], row["seed"], row["training"]) not in done]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--trainings", default="/".join(TRAININGS), help="separated by /")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    wanted = [
        (task, training, int(seed), recipe(task, training, int(seed)))
        for task in given.tasks
        for seed in given.seeds.split(",")
        for training in given.trainings.split("/")
        if (task, training) != ("cifar100", "w=0.5, no adapter")  # 64 features hold no frame of 100 classes
    ]
    train_missing([Training(made, keep=1) for *_, made in wanted], Resources(given.runs, jobs=given.jobs))
    found = Parallel(given.jobs)(delayed(rows_of)(*what, Run(given.runs, made)) for *what, made in wanted)
    rewrite(CSV, chain.from_iterable(found))


if __name__ == "__main__":
    main()
