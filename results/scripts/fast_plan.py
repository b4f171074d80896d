"""Trials of network and plan of the `-fast` tasks, on validation images; no test image is read.

BALCAL_DATA=../shared/data python results/scripts/fast_plan.py [NAME ...]   what is missing of TRIALS, or those named

Each trial trains plainly with seed 100, which no table uses. It becomes a row of results/data/fast-plan.csv: figures
of the LAST epoch on the held-out images, and accuracy on 10,000 training images without augmentation. `seconds` is the
fastest epoch, validation included: other work on the machine does not count against a plan.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from folders import DATA

from balcal import registry
from balcal.backbones.small import FastCnn
from balcal.core import Record
from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import check_split, split_off
from balcal.evaluation.predict import predict_batches
from balcal.methods.weights_in_use import LastEpoch
from balcal.model import Model
from balcal.recipe import Plan
from balcal.runtime.devices import keep_freed_memory
from balcal.runtime.progress import Progress
from balcal.runtime.randomness import own_randomness, seed_torch
from balcal.training.fit import fit_batches

TABLE = DATA / "fast-plan.csv"
SEED = 100
SEEN = 10_000
BASE = Plan(
    epochs=18,
    batch_size=256,
    optimiser="sgd",
    lr=0.3,
    nesterov=True,
    weight_decay=5e-4,
    schedule="onecycle",
    warmup=0.2,
    precision="bf16",
)


@dataclass(frozen=True)
class Trial:
    """A network and a plan on a data set."""

    dataset: str = "cifar10"
    widths: tuple[int, ...] = (64, 128, 128)
    plan: Plan = BASE
    augment: str = "flip"
    val_size: int = 5_000


def trial(**plan: Any) -> Trial:
    """CIFAR-10 with the 3-stage network; what is no field of a trial is one of its plan."""
    own = {name: plan.pop(name) for name in ("dataset", "widths", "augment", "val_size") if name in plan}
    return Trial(**own, plan=replace(BASE, **plan))


WIDE = (64, 128, 256)
TRIALS = {
    "wide": trial(widths=WIDE),
    "hundred": trial(widths=WIDE, dataset="cifar100"),
    "whitened": trial(widths=WIDE, epochs=12, weight_decay=2e-4),
}
"""the first two were run when the stem still started with random filters"""


def run(asked: Trial) -> dict[str, Any]:
    dataset, cpu = registry.dataset(asked.dataset), torch.device("cpu")
    whole, _ = dataset.load()
    check_split(whole, dataset.num_classes, "the training part")
    train, val = split_off(whole, asked.val_size, dataset.num_classes, seed=1)
    with own_randomness():
        seed_torch(SEED, "weights")
        method = replace(registry.method("vanilla"), select=LastEpoch())
        model = Model(FastCnn(dataset.channels, 24, asked.widths), dataset.num_classes, method)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen, plain = (Pixels.of(dataset, cpu, augment) for augment in (asked.augment, "none"))
    batches = MemoryBatches(train, seen, asked.plan.batch_size, SEED)
    held_out = MemoryBatches(val, plain, 2 * asked.plan.batch_size)
    times = [time.monotonic()]

    def on_epoch(record: Record) -> None:
        times.append(time.monotonic())
        figures = {name: round(value, 4) for name, value in record.items() if isinstance(value, float)}
        print(record["epoch"], f"{times[-1] - times[-2]:.1f} s", figures, flush=True)

    history = fit_batches(model, batches, held_out, asked.plan, SEED, Progress("trial", True), on_epoch=on_epoch)
    part = train.take(torch.arange(min(SEEN, len(train))))
    known = predict_batches(model, MemoryBatches(part, plain, 512))
    last = history[-1]
    return {
        "train_acc": round(float((known.log_probs.argmax(1) == known.labels).double().mean()), 4),
        **{name: round(last[f"val_{name}"], 4) for name in ("acc", "ece", "nll", "nll_ts")},
        "threads": torch.get_num_threads(),
        "seconds": round(min(after - before for before, after in pairwise(times)), 1),
    }


def described(asked: Trial) -> dict[str, Any]:
    plan = asked.plan
    return {
        "dataset": asked.dataset,
        "widths": "-".join(map(str, asked.widths)),
        "augment": asked.augment,
        "epochs": plan.epochs,
        "batch": plan.batch_size,
        "lr": plan.lr,
        "warmup": plan.warmup,
        "decay": plan.weight_decay,
        "decay_on": "weights" if plan.decay_weights_only else "all",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*TRIALS, []], help="all, if left out")
    names = parser.parse_args().names or list(TRIALS)
    keep_freed_memory()
    for name in names:
        done = list(csv.DictReader(TABLE.open())) if TABLE.exists() else []
        if name in [row["trial"] for row in done]:
            continue
        print(name, flush=True)
        row = {"trial": name, **described(TRIALS[name]), **run(TRIALS[name])}
        with TABLE.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
