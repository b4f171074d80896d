"""One training under way: what the loop works with, what of it must not be lost, and how it is taken up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from balcal.averaging import RunningMean
from balcal.core import BalcalError, Record, Select, Sums, sum_dtype
from balcal.data.batches import Batches
from balcal.devices import World
from balcal.health import Health
from balcal.metrics.meter import lowest_tempered, most_accurate
from balcal.model import Model
from balcal.optimise import make_optimiser
from balcal.progress import Progress
from balcal.recipe import Plan
from balcal.stopping import StopRequest
from balcal.stores import Store


@dataclass
class Session:
    """One training: what the loop works with, and where in it we are."""

    model: Model
    train: Batches
    val: Batches
    plan: Plan
    seed: int
    store: Store
    progress: Progress
    world: World
    told: Callable[[Record], None] = field(default=lambda record: None)
    """whoever else wants to know of each epoch, in the first process"""

    def __post_init__(self) -> None:
        if self.plan.precision == "auto":
            raise BalcalError("plan.precision=auto is settled when a recipe is made: use balcal.registry.recipe")
        self.epoch = self.step = 0
        """where we are: the next batch to train on"""
        self.device = self.model.head.weights.device
        self.free = [p for p in self.model.parameters() if p.requires_grad]
        """what may be trained; a method may freeze some of it for a while"""
        self.network: nn.Module = self.model
        self.exchanged: set[int] = set()
        """numbers of those in `free` whose gradients `network` gathers from all processes"""
        self.optimiser = make_optimiser(self.model, self.plan)
        power = self.plan.average
        self.mean = None if power is None else RunningMean(self.model, power)
        """what is validated, kept and used in place of the weights themselves"""
        self.health = Health(self.device, self.model.num_classes)
        self.history: list[Record] = []
        self.sums: Sums | None = None
        self.seen = torch.zeros((), dtype=sum_dtype(self.device), device=self.device)
        """sum of the losses of this epoch, in this process"""
        self.stop = StopRequest()


def keep_weights(session: Session) -> None:
    """The epoch that would be chosen if this were the last one stays, and those that plan.keep asks for.

    So do those that may be asked for afterwards.
    """
    if session.world.first:
        now, always = len(session.history) - 1, session.plan.kept(len(session.history))
        pickers = (session.model.method.select, *asked_later(session.plan))
        chosen = {pick(session.history) for pick in pickers}
        if now in always | chosen:
            session.store.save_weights(now, session.model.state_dict())
        before = {pick(session.history[:-1] or session.history) for pick in pickers}  # the state on disk needs them yet
        session.store.forget_weights(keep=chosen | before | always)


def asked_later(plan: Plan) -> tuple[Select, ...]:
    """Choices that may be asked for afterwards: that of `late` of any run, that of `by-accuracy` with keep=last."""
    return (lowest_tempered, most_accurate) if plan.keep == "last" else (lowest_tempered,)


def save(session: Session) -> None:
    """Everything needed to go on from here. What the processes have counted so far stays apart, a row for each: added
    up in another order, it would be another sum."""
    session.health.check()
    seen, counted = session.world.rows(session.seen), None
    if session.sums is not None:
        counted = {name: session.world.rows(tensor) for name, tensor in session.sums.items()}
    if not session.world.first:
        return
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
    )


def resume(session: Session) -> None:
    """Take up where the store's last state left off."""
    state = session.world.told(session.store.load_state() if session.world.first else None)
    if state is None:
        return
    session.epoch, session.step, session.history = state["epoch"], state["step"], state["history"]
    session.model.load_state_dict(state["model"])
    session.optimiser.load_state_dict(state["optimiser"])
    if session.mean:
        session.mean.load_state_dict(state["mean"])
    apart = state["seen"].ndim == 1  # an earlier version kept one sum for all processes
    session.seen.copy_(_own_part(state["seen"] if apart else state["seen"][None], session.world))
    if state["sums"] is not None:
        rows = {name: tensor if apart else tensor[None] for name, tensor in state["sums"].items()}
        session.sums = {name: _own_part(each, session.world).to(session.device) for name, each in rows.items()}
    if session.world.first and session.history:
        session.told(session.history[-1])  # a process that died may have saved it and told nobody
    session.progress.note(f"resuming at epoch {session.epoch + 1}, batch {session.step + 1}")


def _own_part(rows: Tensor, world: World) -> Tensor:
    """This process's row; where as many processes as rows are no longer there, all of it goes to the first one."""
    if len(rows) == world.size:
        return rows[world.rank].clone()
    return rows.sum(0) * (1 if world.first else 0)
