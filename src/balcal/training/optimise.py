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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from balcal.core import BalcalError, Record
from balcal.recipe import Plan

OF_OPTIMISER = ("lr", "momentum", "nesterov", "weight_decay", "decay_weights_only")
"""settings of a plan that an optimiser object brings itself"""
OF_SCHEDULER = ("schedule", "milestones", "warmup")
KINDS: tuple[str, ...] = get_args(get_type_hints(Plan)["optimiser"])


def check_one_spelling(settings: Mapping[str, Any]) -> None:
    if "optimizer" in settings and "optimiser" in settings:
        raise BalcalError("optimizer= and optimiser= mean the same: pass one of them")


@dataclass
class OwnOptimiser:
    """A user's optimiser, and scheduler, in place of the plan's. The plan's schedule, if any, scales the rates."""

    optimiser: torch.optim.Optimizer
    scheduler: Any = None
    every: Literal["epoch", "step"] = "epoch"
    """when the scheduler steps"""

    def __post_init__(self) -> None:
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]

    def before_step(self, plan: Plan, progress: float) -> None:
        factor = rate(replace(plan, lr=1.0), progress)
        if self.scheduler is None:
            for group, lr in zip(self.optimiser.param_groups, self.rates, strict=True):
                group["lr"] = lr * factor

    def after_step(self) -> None:
        if self.scheduler is not None and self.every == "step":
            self.scheduler.step()

    def after_epoch(self, record: Record) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(record["val_nll"])
        elif self.scheduler is not None and self.every == "epoch":
            self.scheduler.step()

    def facts(self) -> list[str]:
        """What it is, for the fingerprint of a training."""
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimiser.param_groups]
        return [type(self.optimiser).__name__, str(groups), type(self.scheduler).__name__, self.every]


def own_optimiser(model: nn.Module, settings: dict[str, Any], scheduler: Any, every: Any) -> OwnOptimiser | None:
    """Take a user's own objects out of the settings and check that they belong to this model and to each other."""
    check_one_spelling(settings)
    name = "optimizer" if "optimizer" in settings else "optimiser"
    optimiser = settings.get(name)
    if isinstance(scheduler, str):
        if "schedule" in settings:
            raise BalcalError("scheduler= and schedule= mean the same: pass one of them")
        settings["schedule"], scheduler = scheduler, None
    if optimiser is None or isinstance(optimiser, str):
        if optimiser is None:
            settings.pop(name, None)
        if scheduler is not None:
            raise BalcalError("scheduler= needs optimizer= as well: the object that it schedules")
        if every is not None:
            raise BalcalError("scheduler_every= is for scheduler=, and there is none: leave it out")
        _check_precision(model)
        return None
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise BalcalError(
            f"{name}= takes {', '.join(KINDS)}, or an object of torch.optim made of model.parameters(), "
            f"not {type(optimiser).__name__}"
        )
    del settings[name]
    clash = [each for each in OF_OPTIMISER if each in settings]
    if clash:
        raise BalcalError(f"{name}= brings its own {clash[0]}: set it there, and leave out {clash[0]}=")
    if isinstance(optimiser, torch.optim.LBFGS):
        raise BalcalError("LBFGS computes the loss several times a step, and fit computes it once: choose another one")
    _check_weights(model, optimiser, name)
    if scheduler is None:
        return OwnOptimiser(optimiser)
    return OwnOptimiser(optimiser, scheduler, _check_scheduler(scheduler, optimiser, settings, every))


def _check_precision(model: nn.Module) -> None:
    half = next((key for key, w in model.named_parameters() if w.requires_grad and w.dtype is torch.float16), None)
    if half is not None:
        raise BalcalError(
            f"weights in float16, such as {half}, are too coarse to be trained: wrap network.float() (precision='bf16' "
            "saves time), or freeze them with requires_grad_(False)"
        )


def _check_weights(model: nn.Module, optimiser: torch.optim.Optimizer, name: str) -> None:
    held = {id(weight) for group in optimiser.param_groups for weight in group["params"]}
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    missing = [key for key, weight in trained.items() if id(weight) not in held]
    if missing:
        raise BalcalError(
            f"{name}= does not hold {len(missing)} of the model's {len(trained)} trainable weights, such as "
            f"{missing[0]}: make it of model.parameters() after balcal.wrap, or freeze those with requires_grad_(False)"
        )
    foreign = held - {id(weight) for weight in model.parameters()}
    if foreign:
        raise BalcalError(f"{name}= holds {len(foreign)} weights of another model: make it of model.parameters()")


def _check_scheduler(
    scheduler: Any, optimiser: torch.optim.Optimizer, settings: Mapping[str, Any], every: Any
) -> Literal["epoch", "step"]:
    clash = [each for each in OF_SCHEDULER if each in settings]
    if clash:
        raise BalcalError(f"scheduler= and {clash[0]}= would both set the learning rate: pass one of them")
    if not all(hasattr(scheduler, each) for each in ("step", "state_dict", "load_state_dict")):
        raise BalcalError(f"scheduler= takes an object of torch.optim.lr_scheduler, not {type(scheduler).__name__}")
    if getattr(scheduler, "optimizer", optimiser) is not optimiser:
        raise BalcalError(
            "scheduler= was made for another optimiser than optimizer=: make it for the one that you pass"
        )
    if every not in (None, "epoch", "step"):
        raise BalcalError(f'scheduler_every must be "epoch" or "step", not {every!r}')
    if every == "step" and isinstance(scheduler, ReduceLROnPlateau):
        raise BalcalError("ReduceLROnPlateau looks at the validation loss, which is known after an epoch")
    return every or ("step" if isinstance(scheduler, OneCycleLR | CyclicLR) else "epoch")


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
    """The average of a model's parameters and of its backbone's BatchNorm statistics; not of the head's buffers.

    The higher `power`, the more later steps count.

    >>> import balcal
    >>> model = balcal.wrap(nn.Sequential(nn.Linear(2, 2)), num_classes=2, method="vanilla")
    >>> mean = RunningMean(model, power=3)
    >>> mean.add()  # after each step
    >>> with mean.in_use():
    ...     found = model(torch.zeros(1, 2)).shape
    """

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
