"""Tasks whose images come with the package or with scikit-learn: no download."""

from __future__ import annotations

from balcal.recipe import Plan, Task

SECOND_STAGES = {
    "tst": {"plan.epochs": 5},
    "vtst": {"plan.epochs": 5},
    "pcs": {"plan.epochs": 20},
}
"""A head on a frozen backbone learns fast; the paper has 40 epochs after 600. For `pcs`: how many candidates."""

TASKS = {
    t.name: t
    for t in (
        Task(
            "fashion",
            dataset="fashion",
            backbone="cnn-28",
            plan=Plan(epochs=15, batch_size=128, optimiser="adam", lr=3e-3, schedule="cosine"),
            val_size=2000,
            tuned={  # lowest validation NLL: results/data/fashion-delta.csv, docs/decisions.md
                "balcal": {"head.delta": 0.99},
                "balcal-logits": {"head.delta": 0.93},
                **SECOND_STAGES,
                "tst": {"plan.epochs": 5, "plan.lr": 3e-4},
            },
            about="8,000 + 2,000 real images of clothes; a plain network overfits in about half a minute on 2 cores",
        ),
        Task(
            "fashion-few",
            dataset="fashion",
            backbone="cnn-28",
            plan=Plan(epochs=24, batch_size=128, optimiser="adam", lr=3e-3, keep="last"),
            val_size=2000,
            train_size=2000,
            tuned=SECOND_STAGES,
            about="2,000 of these images, which a network memorises, so that it is over-confident; for the demo",
        ),
        Task(
            "digits",
            dataset="digits",
            backbone="cnn-8",
            plan=Plan(epochs=20, batch_size=64, optimiser="adam", lr=3e-3, schedule="cosine"),
            val_size=297,
            tuned=SECOND_STAGES,
            about="1,000 digits of 8 x 8 pixels: a few seconds, for smoke tests",
        ),
    )
}
