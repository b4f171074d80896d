"""A measure of a run, epoch by epoch: of every epoch whose weights were kept (`--keep-epochs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from balcal.core import BalcalError
from balcal.model import Model, build
from balcal.runs import Run


def over_epochs(run: Run, measure: Callable[[Model], dict[str, Any]], device: torch.device) -> list[dict[str, Any]]:
    """One record for each kept epoch, in order, counted from 1."""
    kept = run.kept()
    if len(kept) < min(2, run.recipe.task.plan.epochs):
        raise BalcalError(f"{run.path} kept the weights of one epoch only: train it with --keep-epochs 1")
    model = build(run.recipe, weights=False).to(device).eval()
    told = []
    for epoch in kept:
        model.load_state_dict(run.load_weights(epoch))
        told.append({"epoch": epoch + 1, **measure(model)})
    return told
