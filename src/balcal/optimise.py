"""Optimisers and learning rates as a plan describes them. The rate is a function of progress, so it needs no state."""

from __future__ import annotations

import math
from bisect import bisect_right

import torch
from torch import nn

from balcal.recipe import Plan


def make_optimiser(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.requires_grad]
    if plan.optimiser == "sgd":
        return torch.optim.SGD(weights, plan.lr, plan.momentum, weight_decay=plan.weight_decay, nesterov=False)
    kind = torch.optim.Adam if plan.optimiser == "adam" else torch.optim.AdamW
    return kind(weights, plan.lr, weight_decay=plan.weight_decay)


def rate(plan: Plan, progress: float) -> float:
    """The learning rate at a share of the training.

    >>> plan = Plan(lr=1.0, schedule="step", milestones=(0.5, 0.75))
    >>> [round(rate(plan, p), 4) for p in (0.0, 0.49, 0.5, 0.8)]
    [1.0, 1.0, 0.1, 0.01]
    >>> [round(rate(Plan(lr=1.0, schedule="cosine"), p), 4) for p in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    """
    if progress < plan.warmup:
        return plan.lr * progress / plan.warmup
    if plan.schedule == "step":
        return plan.lr * 0.1 ** bisect_right(plan.milestones, progress)
    if plan.schedule == "cosine":
        return plan.lr * 0.5 * (1 + math.cos(math.pi * progress))
    return plan.lr


def set_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr
