"""The task for a user's own images: a moderate network and a plan that suits most; `--set` changes any of it."""

from __future__ import annotations

from balcal.data.dataset import Dataset
from balcal.recipe import Plan, Task

VAL_SHARE = 0.15


def foreign_task(dataset: Dataset) -> Task:
    """Named after the data, which is all that is known of it."""
    count = dataset.sizes[0]
    return Task(
        dataset.name,
        dataset=dataset.name,
        backbone="wrn-16-2",
        plan=Plan(epochs=30, batch_size=min(64, max(2, count // 8)), optimiser="adam", lr=1e-3, schedule="cosine"),
        val_size=max(1, round(VAL_SHARE * count)),
        augment="flip",
        about=f"{count:,} + {dataset.sizes[1]:,} images from {dataset.source}",
    )
