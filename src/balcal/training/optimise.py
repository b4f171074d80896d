"""Optimiser, learning rate and weight averaging, as a plan describes them.

The rate is a function of progress, so it needs no state. The average is the polynomial-decay averaging of Shamir &
Zhang, ICML 2013:

    mean_k = (1 - a_k) mean_(k-1) + a_k weights_k,    a_k = (p + 1) / (k + p)

so that the k-th step counts about as k^p: with p = 3 half of the weight lies on the last sixth of the steps so far.
Nothing depends on the length of the training. The optimiser goes on with its own weights; the average is what is
validated and kept.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from balcal.recipe import Plan


def make_optimiser(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    groups = parameter_groups(model, plan)
    if plan.optimiser == "sgd":
        nesterov = plan.nesterov and plan.momentum > 0  # torch refuses the pair, which is plain descent
        return torch.optim.SGD(groups, plan.lr, plan.momentum, weight_decay=plan.weight_decay, nesterov=nesterov)
    kind = torch.optim.Adam if plan.optimiser == "adam" else torch.optim.AdamW
    return kind(groups, plan.lr, weight_decay=plan.weight_decay)


def parameter_groups(model: nn.Module, plan: Plan) -> list[dict[str, Any]]:
    """What is trained; with `decay_weights_only`, vectors (norms, biases) in a second group without weight decay.

    >>> layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> [len(group["params"]) for group in parameter_groups(layer, Plan())]
    [4]
    >>> [len(group["params"]) for group in parameter_groups(layer, Plan(decay_weights_only=True))]
    [1, 3]
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not plan.decay_weights_only:
        return [{"params": trained}]
    vectors = [p for p in trained if p.ndim < 2]
    rest: dict[str, Any] = {"params": [p for p in trained if p.ndim >= 2]}
    return [rest, {"params": vectors, "weight_decay": 0.0}] if vectors else [rest]


def rate(plan: Plan, progress: float) -> float:
    """The learning rate at a share of the training.

    >>> plan = Plan(lr=1.0, schedule="step", milestones=(0.5, 0.75))
    >>> [round(rate(plan, p), 4) for p in (0.0, 0.49, 0.5, 0.8)]
    [1.0, 1.0, 0.1, 0.01]
    >>> [round(rate(Plan(lr=1.0, schedule="cosine"), p), 4) for p in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    >>> [round(rate(Plan(lr=1.0, schedule="onecycle", warmup=0.2), p), 4) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < plan.warmup:
        return plan.lr * progress / plan.warmup
    if plan.schedule == "step":
        return plan.lr * 0.1 ** bisect_right(plan.milestones, progress)
    if plan.schedule == "cosine":
        return plan.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if plan.schedule == "onecycle" and plan.warmup < 1:
        return plan.lr * (1 - progress) / (1 - plan.warmup)
    return plan.lr


def set_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr


class RunningMean:
    """The average of a model's parameters and of its backbone's BatchNorm statistics; not of the head's buffers."""

    def __init__(self, model: nn.Module, power: float) -> None:
        counted = (buffer for buffer in model.get_submodule("backbone").buffers() if buffer.is_floating_point())
        self.live: list[Tensor] = [p.detach() for p in (*model.parameters(), *counted)]
        self.power, self.steps = power, 0
        self.mean = [tensor.clone() for tensor in self.live]

    def restart(self) -> None:
        """Forget the steps so far."""
        self.steps = 0

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now."""
        self.steps += 1
        share = (self.power + 1) / (self.steps + self.power)
        torch._foreach_lerp_(self.mean, self.live, share)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, the model has the average in place of its own weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, mean in zip(self.live, self.mean, strict=True):
            aside = live.clone()
            live.copy_(mean)
            mean.copy_(aside)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for mine, saved in zip(self.mean, state["mean"], strict=True):
            mine.copy_(saved)
