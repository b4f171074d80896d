"""One training in progress: what the loop works with, how it is saved and resumed, and a check for bad numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from balcal.core import BalcalError, Record, Select, Sums
from balcal.data.batches import Batches
from balcal.data.loaders import tensors_of
from balcal.data.targets import Labels, check_targets
from balcal.metrics.epoch_meter import lowest_head_losses, lowest_tempered, most_accurate
from balcal.model import Model
from balcal.recipe import Plan
from balcal.runtime.checkpoints import Store
from balcal.runtime.devices import StopRequest, World, sum_dtype
from balcal.runtime.progress import Progress
from balcal.training.optimise import OwnOptimiser, RunningMean, make_optimiser


@dataclass
class Session:
    """What the loop works with, and its position in the training."""

    model: Model
    train: Batches
    val: Batches
    plan: Plan
    seed: int
    store: Store
    progress: Progress
    world: World
    on_epoch: Callable[[Record], None] = field(default=lambda record: None)
    """called with each epoch's record, on rank 0"""
    own: OwnOptimiser | None = None
    """a user's optimiser and scheduler, in place of the plan's"""

    def __post_init__(self) -> None:
        if self.plan.precision == "auto":
            raise BalcalError("plan.precision=auto is settled when a recipe is made: use balcal.registry.recipe")
        self.epoch = self.step = 0
        """the next batch to train on"""
        self.device = self.model.head.weights.device
        self.free = [p for p in self.model.parameters() if p.requires_grad]
        """the trainable weights; a method may freeze some of them for a while"""
        self.network: nn.Module = self.model
        self.exchanged: set[int] = set()
        """indices into `free` of the weights whose gradients `network` gathers from all processes"""
        if self.plan.norm_momentum is not None:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = self.plan.norm_momentum
        self.optimiser = self.own.optimiser if self.own else make_optimiser(self.model, self.plan)
        power = self.plan.average
        self.mean = None if power is None else RunningMean(self.model, power)
        """validated, kept and used in place of the weights themselves"""
        self.health = Health(self.device, self.model.num_classes)
        self.history: list[Record] = []
        self.sums: Sums | None = None
        self.seen = torch.zeros((), dtype=sum_dtype(self.device), device=self.device)
        """sum of this epoch's losses, in this process"""
        self.stop = StopRequest()


def keep_weights(session: Session) -> None:
    """Keep the weights of the epoch that would be chosen if this were the last one, and those that `plan.keep` names.

    The epoch that `late` would choose is kept as well: any run may be evaluated with it later.
    """
    if session.world.first:
        now, always = len(session.history) - 1, session.plan.kept(len(session.history))
        pickers = (session.model.method.select, *asked_later(session.plan))
        chosen = {pick(session.history) for pick in pickers}
        if now in always | chosen:
            session.store.save_weights(now, session.model.state_dict())
        before = {pick(session.history[:-1] or session.history) for pick in pickers}  # the state on disk needs these
        session.store.forget_weights(keep=chosen | before | always)


def asked_later(plan: Plan) -> tuple[Select, ...]:
    """Choices of an epoch that an evaluation may make: `late` in any run, those of `by-...` in one with keep=last."""
    return (lowest_tempered, most_accurate, lowest_head_losses) if plan.keep == "last" else (lowest_tempered,)


def save(session: Session) -> None:
    """Save everything needed to resume from here.

    The sums of the processes are saved as one row each: added up in another order, they would round differently.
    """
    session.health.check()
    seen, counted = session.world.rows(session.seen), None
    if session.sums is not None:
        counted = {name: session.world.rows(tensor) for name, tensor in session.sums.items()}
    if not session.world.first:
        return
    scheduler = session.own and session.own.scheduler
    session.store.save_state(
        {
            "epoch": session.epoch,
            "step": session.step,
            "history": session.history,
            "sums": counted,
            "seen": seen,
            "model": session.model.state_dict(),
            "optimiser": session.optimiser.state_dict(),
            "mean": session.mean and session.mean.state_dict(),
        }
        | ({"scheduler": scheduler.state_dict()} if scheduler else {})
    )


def resume(session: Session) -> None:
    """Load the store's last state, if there is one."""
    state = session.world.broadcast(session.store.load_state() if session.world.first else None)
    if state is None:
        return
    session.epoch, session.step, session.history = state["epoch"], state["step"], state["history"]
    session.model.load_state_dict(state["model"])
    session.optimiser.load_state_dict(state["optimiser"])
    if session.own and session.own.scheduler:
        session.own.scheduler.load_state_dict(state["scheduler"])
    if session.mean:
        session.mean.load_state_dict(state["mean"])
    apart = state["seen"].ndim == 1  # an earlier version kept one sum for all processes
    session.seen.copy_(_own_part(state["seen"] if apart else state["seen"][None], session.world))
    if state["sums"] is not None:
        rows = {name: tensor if apart else tensor[None] for name, tensor in state["sums"].items()}
        session.sums = {name: _own_part(each, session.world).to(session.device) for name, each in rows.items()}
    if session.world.first and session.history:
        session.on_epoch(session.history[-1])  # a process that died may have saved it before calling this
    session.progress.note(f"resuming at epoch {session.epoch + 1}, batch {session.step + 1}")


def _own_part(rows: Tensor, world: World) -> Tensor:
    """This process's row; if the number of processes has changed, the first process takes the sum of all rows."""
    if len(rows) == world.size:
        return rows[world.rank].clone()
    return rows.sum(0) * (1 if world.first else 0)


class Health:
    """Finds images, labels and losses that are not finite, or out of range, before anything is saved.

    On a CPU every batch is checked before it is used. On an accelerator a flag is kept there and read before a save,
    so that training does not wait for it.
    """

    def __init__(self, device: torch.device, num_classes: int) -> None:
        self.num_classes = num_classes
        self.at_once = device.type == "cpu"
        self.finite = {name: torch.ones((), dtype=torch.bool, device=device) for name in ("images", "loss")}

    def look(self, inputs: Any, labels: Labels, where: str) -> None:
        """Check a batch before the network sees it; its shapes are checked already."""
        if len(labels) == 0:
            raise BalcalError(f"{where} is empty")
        check_targets(labels, self.num_classes, where)
        for images in tensors_of(inputs):
            if not images.is_floating_point():
                continue
            total = images.sum()  # finite only if every pixel is, and cheap
            if not self.at_once:
                self.finite["images"] &= total.isfinite()
            elif not math.isfinite(total):
                bad = (~images.isfinite()).flatten(1).any(1).nonzero()
                first = f"image {int(bad[0])}" if len(bad) else "the sum"
                raise BalcalError(
                    f"{first} of {where} has NaN or infinite values: correct the data, or leave that image out"
                )

    def loss(self, loss: Tensor) -> None:
        """Check a loss before the weights are changed."""
        if not self.at_once:
            self.finite["loss"] &= loss.detach().isfinite()
        elif not math.isfinite(loss.detach()):
            self.finite["loss"].fill_(False)
            self.check()

    def check(self) -> None:
        """Raise an error if anything was not finite; called before every save."""
        if not self.finite["images"]:
            raise BalcalError(
                "some images of this epoch have NaN or infinite values: correct the data, or leave them out"
            )
        if not self.finite["loss"]:
            raise BalcalError(
                "the loss is no longer finite: lower the learning rate (plan.lr) or clip gradients (plan.clip=1)"
            )
