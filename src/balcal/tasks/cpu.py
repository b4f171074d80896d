"""Real images for machines without a GPU: minutes on two cores, with networks that overfit.

`-cpu`: a share of the training images and no augmentation, so that a small network memorises most of them within
minutes. It is evaluated on all 10,000 test images.

`-fast`: all training images but 5,000, drawn per class, and the network `cnn-32`. At its last epoch it has memorised
almost all images of CIFAR and is over-confident, as the paper's networks are. Plans were tried on held-out images of
CIFAR-10 with plain training and a seed that no table uses (results/data/fast-plan.csv); docs/decisions.md says how this
one was chosen. Flips, but no crops: crops make images hard to memorise. Digits are not flipped. The last epoch's
weights are kept beside the chosen ones, so that `vanilla+last` can be evaluated: choosing the epoch by validation NLL
stops an over-confident network early, and hides what a method does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from balcal.recipe import Plan, Task
from balcal.tasks.embedded import SECOND_STAGES
from balcal.tasks.paper import FROM_PAPER

HELD_OUT = 5_000
ONE_CYCLE = Plan(
    epochs=14,
    batch_size=256,
    optimiser="sgd",
    lr=0.3,
    nesterov=True,
    weight_decay=4e-4,
    schedule="onecycle",
    warmup=0.2,
    precision="auto",
    keep="last",
)
HEADS_ONLY = {name: {**SECOND_STAGES[name], "plan.lr": 0.05} for name in ("tst", "vtst")}
"""second stages: a new head on frozen features"""


def _small(dataset: str, epochs: int, batch_size: int, chosen: Mapping[str, Mapping[str, Any]]) -> Task:
    return Task(
        f"{dataset}-cpu",
        dataset=dataset,
        backbone="resnet-8",
        plan=Plan(epochs=epochs, batch_size=batch_size, optimiser="adam", lr=3e-3, schedule="cosine"),
        val_size=2_500,
        train_size=5_000,
        tuned={**SECOND_STAGES, **FROM_PAPER[dataset], **chosen},
        about=f"5,000 real images of {dataset} to train on, 2,500 to validate, 10,000 to test; no GPU needed",
    )


def _fast(dataset: str, trained: int, augment: Literal["none", "flip"], plan: Plan = ONE_CYCLE) -> Task:
    return Task(
        f"{dataset}-fast",
        dataset=dataset,
        backbone="cnn-32",
        plan=plan,
        val_size=HELD_OUT,
        augment=augment,
        tuned={**SECOND_STAGES, **HEADS_ONLY, **FROM_PAPER[dataset]},
        about=f"all of {dataset}: {trained:,} images that a network memorises, 5,000 to validate; no GPU needed",
    )


TASKS = {
    t.name: t
    for t in (
        _small(
            "cifar10",
            epochs=22,
            batch_size=64,
            # results/data/cpu-delta.csv
            chosen={"balcal": {"head.delta": 0.85}, "balcal-logits": {"head.delta": 0.75}},
        ),
        _small(
            "cifar100",
            epochs=35,  # fifty images a class take longer to memorise
            batch_size=32,
            chosen={"balcal": {"head.delta": 0.6}, "balcal-logits": {"head.delta": 0.6}},
        ),
        _fast("cifar10", 45_000, "flip"),
        _fast("cifar100", 45_000, "flip", replace(ONE_CYCLE, epochs=20)),  # with 14, it knows 98.2 % of them
        _fast("svhn", 68_257, "none"),
    )
}
