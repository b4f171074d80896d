"""The loop. It knows no method by name: what a method changes, it brings along in its roles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from balcal.core import BalcalError, Outputs, Record
from balcal.metrics.meter import TemperedNll, TopLabel, lowest_tempered
from balcal.model import batch_loss, compile_backbone, finish_tally
from balcal.optimise import rate, set_rate
from balcal.randomness import generator, own_randomness, seed_torch
from balcal.stopping import Stopped
from balcal.stores import Weights
from balcal.underway import Session, asked_later, keep_weights, resume, save

KEPT = 1 << 26
"""logits of the validation split that are kept until its dials are solved; where there are more, it is gone through
twice"""


def run_epochs(session: Session) -> list[Record]:
    """Train to the last epoch, from wherever the store says that we are; leave the chosen epoch in the model."""
    model, plan, store = session.model, session.plan, session.store
    method, world = model.method, session.world
    if plan.compile:
        compile_backbone(model)
    with (
        own_randomness(),
        session.stop if store.lasting else nullcontext(),
        closing(session.progress),
        thawing(session),
    ):
        resume(session)
        session.progress.start(plan.epochs, session.epoch, session.step, len(session.train), len(session.val))
        while session.epoch < plan.epochs:
            begin_epoch(session)
            train_epoch(session)
            record: Record = {"epoch": session.epoch, "loss": mean_loss(session)}
            if method.tally and method.tally.on == "train":
                record |= finish_tally(model, method.tally, session.sums or {}, world)
            last = of_last_step(session)
            with session.mean.in_use() if session.mean else nullcontext():
                record |= better_of(session, validate(session), last)
                session.history.append(record)
                keep_weights(session)
            session.epoch, session.step, session.sums = session.epoch + 1, 0, None
            session.seen.zero_()
            save(session)
            session.progress.end_epoch(record)
            if world.first:
                session.told(record)
            stop_if_asked(session)
    if world.first:
        chosen = method.select(session.history)
        later = {pick(session.history) for pick in asked_later(plan)}
        store.forget_weights(keep={chosen} | later | plan.kept(plan.epochs))
        model.load_state_dict(store.load_weights(chosen))
    world.share(*model.state_dict().values())
    return session.history


def begin_epoch(session: Session) -> None:
    """Let the method freeze weights, or set them anew; of an epoch that was begun before, what was saved counts."""
    model = session.model
    begun = deepcopy(model.state_dict()) if session.step else None
    model.train()
    seed_torch(session.seed, "epoch", session.epoch)
    anew = model.method.before_epoch(model, session.epoch, session.plan.epochs)
    if begun is not None:
        model.load_state_dict(begun)
    elif anew:
        session.optimiser.state.clear()
        if session.mean:
            session.mean.restart()
    exchange_gradients(session)


def train_epoch(session: Session) -> None:
    """The rest of the epoch: forward, backward, step; the tally counts on the side."""
    model, plan, method = session.model, session.plan, session.model.method
    epoch, steps = session.epoch, len(session.train)
    if method.tally and method.tally.on == "train" and session.sums is None:
        session.sums = method.tally.start(model)
    for step, (images, labels) in enumerate(session.train.epoch(epoch, session.step), session.step):
        if not session.train.checked:
            session.health.look(images, labels, f"batch {step + 1} of epoch {epoch + 1}")
        seed_torch(session.seed, "step", epoch, step, session.world.rank)
        group_start = step - step % plan.accumulate
        group_size = min(plan.accumulate, steps - group_start)
        group_ends = step + 1 == group_start + group_size
        with autocast(session), nullcontext() if group_ends else unsynchronised(session):
            rng = generator(session.seed, "mix", epoch, step)
            loss = batch_loss(session.network, method, images, labels, rng, session.sums)
            session.health.loss(loss)
            torch.autograd.backward(loss * (session.train.share(labels) / group_size))
        session.seen += loss.detach()
        session.progress.train_batch(loss.detach())
        if group_ends:
            if plan.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            set_rate(session.optimiser, rate(plan, (epoch + group_start / steps) / plan.epochs))
            session.optimiser.step()
            session.optimiser.zero_grad()
            if session.mean:
                session.mean.add()
            session.step = step + 1
            due = session.world.first and session.store.save_is_due()
            if session.step < steps and session.world.any(bool(session.stop) or due):
                save(session)
                stop_if_asked(session)


def of_last_step(session: Session) -> tuple[Record, Weights] | None:
    """At the very end, if the plan asks for it: the weights that training arrived at, to be held against their mean."""
    plan = session.plan
    if session.mean is None or not plan.average_or_last or session.epoch + 1 < plan.epochs:
        return None
    return validate(session), deepcopy(session.model.state_dict())


def better_of(session: Session, mean: Record, last: tuple[Record, Weights] | None) -> Record:
    """Figures of whichever would be better once calibrated, which the model then has; if alike, of the mean."""
    if last is None:
        return mean
    figures, weights = last
    if lowest_tempered([mean, figures]) == 0:
        return mean | {"weights": "average"}
    session.model.load_state_dict(weights)
    return figures | {"weights": "last step"}


@torch.no_grad()
def validate(session: Session) -> Record:
    """Figures of the fused prediction with the dials now in force: the ones that the checkpoint will hold."""
    model, world, tally = session.model, session.world, session.model.method.tally
    world.share(*model.buffers())
    model.eval()
    record: Record = {}
    seen: Iterable[tuple[Outputs, Tensor]] = forward(session)
    if tally and tally.on == "val":
        sums, kept, room = tally.start(model), [], KEPT if getattr(tally, "only_weights", False) else 0
        for outputs, labels in seen:
            tally.add(sums, outputs, labels)
            room -= outputs.logits.numel()
            if room >= 0:
                kept.append((outputs, labels))
            else:
                kept.clear()
        record |= finish_tally(model, tally, sums, world)
        again = ((replace(outputs, weights=model.head.weights), labels) for outputs, labels in kept)
        seen = again if room >= 0 else forward(session)
    meter, tempered = TopLabel(device=session.device), TemperedNll(session.device)
    for outputs, labels in seen:
        log_probs = outputs.log_probs()
        meter.add(log_probs, labels)
        tempered.add(log_probs, labels)
    world.sum(*meter.tensors(), *tempered.tensors())
    figures = meter.compute()
    if math.isnan(figures["nll"]):
        raise BalcalError("the predictions on the validation split are NaN: lower the learning rate (plan.lr)")
    figures["nll_ts"] = tempered.compute()
    return record | {f"val_{name}": value for name, value in figures.items()}


def forward(session: Session) -> Iterator[tuple[Outputs, Tensor]]:
    """This process's share of the validation split, through the network as it is."""
    for number, (images, labels) in enumerate(session.val.epoch(0), 1):
        if len(labels):
            if not session.val.checked:
                session.health.look(images, labels, f"validation batch {number}")
            with autocast(session):
                outputs = session.model(images, branches=True)
            yield outputs, labels
        session.progress.val_batch()


def autocast(session: Session) -> AbstractContextManager[Any]:
    """bf16 where it was asked for; losses and statistics are in float32 all the same (see Model.forward)."""
    return torch.autocast(session.device.type, torch.bfloat16) if session.plan.precision == "bf16" else nullcontext()


def unsynchronised(session: Session) -> AbstractContextManager[Any]:
    """While gradients are still being gathered, processes need not exchange them."""
    return session.network.no_sync() if isinstance(session.network, DistributedDataParallel) else nullcontext()


def exchange_gradients(session: Session) -> None:
    """DistributedDataParallel waits for every gradient that it was told of: tell it anew when some are frozen."""
    trained = {number for number, weight in enumerate(session.free) if weight.requires_grad}
    if session.world.size > 1 and trained != session.exchanged:
        session.network = session.model  # lets go of the old one, and of its hooks, before there is a new one
        session.network = DistributedDataParallel(session.model)
        session.exchanged = trained


@contextmanager
def thawing(session: Session) -> Iterator[None]:
    """Whatever was frozen on the way, the caller finds the model as free as it was."""
    try:
        yield
    finally:
        for weight in session.free:
            weight.requires_grad_(True)


def mean_loss(session: Session) -> float:
    """Over all batches and processes, each process's own sum in the order of their ranks."""
    return float(session.world.rows(session.seen).sum()) / (len(session.train) * session.world.size)


def stop_if_asked(session: Session) -> None:
    if session.world.any(bool(session.stop)):
        where = f"after epoch {session.epoch}"
        if session.step:
            where = f"in epoch {session.epoch + 1} after batch {session.step} of {len(session.train)}"
        raise Stopped(where, session.stop.signum)
