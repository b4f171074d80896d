"""Real CIFAR images for machines without a GPU: a few minutes on two cores, with a network that overfits.

A share of the training images and no augmentation, so that a small network memorises them within minutes and becomes
over-confident as the paper's large ones do within days. It is evaluated on all 10,000 test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from balcal.recipe import Plan, Task
from balcal.tasks.embedded import SECOND_STAGES
from balcal.tasks.paper import FROM_PAPER


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
    )
}
