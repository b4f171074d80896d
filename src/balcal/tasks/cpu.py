"""Real CIFAR images for machines without a GPU: a few minutes on two cores, with a network that overfits.

A tenth of the training images and no augmentation, so that a small network learns them by heart within minutes and
becomes over-confident as the paper's large ones do within days. All 10,000 test images judge.
"""

from __future__ import annotations

from balcal.recipe import Plan, Task

BACKBONE = "wrn-10-1"
"""about 1,000 training images a second on two cores"""
PLAN = Plan(epochs=30, batch_size=64, optimiser="adam", lr=3e-3, schedule="cosine")
SECOND_STAGES = {"tst": {"plan.epochs": 5}, "vtst": {"plan.epochs": 5}, "pcs": {"plan.epochs": 20}}

TASKS = {
    t.name: t
    for t in (
        Task(
            f"{dataset}-cpu",
            dataset=dataset,
            backbone=BACKBONE,
            plan=PLAN,
            val_size=2_500,
            train_size=5_000,
            tuned=SECOND_STAGES,
            about=f"5,000 real images of {dataset} to train on, 2,500 to validate, 10,000 to judge; no GPU needed",
        )
        for dataset in ("cifar10", "cifar100")
    )
}
