"""The training loop. It knows no method by name: whatever a method changes is in its roles."""

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
from balcal.data.targets import Labels, as_rows, tally_rows, weighted_loss
from balcal.metrics.epoch_meter import TemperedNll, TopLabel, lowest_tempered
from balcal.model import batch_loss, compile_backbone, finish_tally
from balcal.runtime.checkpoints import Weights
from balcal.runtime.devices import Stopped, sum_dtype
from balcal.runtime.randomness import generator, own_randomness, seed_torch
from balcal.training.optimise import rate, set_rate
from balcal.training.session import Session, asked_later, keep_weights, resume, save

KEPT = 1 << 26
"""at most so many logits of the validation split are kept until the tally has set the head's weights; a larger split
goes through the network twice"""


def run_epochs(session: Session) -> list[Record]:
    """Train to the last epoch, from the store's last state; load the weights of the chosen epoch into the model."""
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
            if session.own:
                session.own.after_epoch(record)
            save(session)
            session.progress.end_epoch(record)
            if world.first:
                session.on_epoch(record)
            stop_if_asked(session)
    if world.first:
        chosen = method.select(session.history)
        later = {pick(session.history) for pick in asked_later(plan)}
        store.forget_weights(keep={chosen} | later | plan.kept(plan.epochs))
        model.load_state_dict(store.load_weights(chosen))
    world.share(*model.state_dict().values())
    return session.history


def begin_epoch(session: Session) -> None:
    """Let the method freeze or reset weights. In an epoch that is resumed, the saved weights win."""
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
    """Train the rest of the epoch: forward, backward, step. The tally counts along the way."""
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
            torch.autograd.backward(loss * weight_of(session, labels) / group_size)
        session.seen += loss.detach()
        session.progress.train_batch(loss.detach())
        if group_ends:
            if plan.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            progress = (epoch + group_start / steps) / plan.epochs
            if session.own:
                session.own.before_step(plan, progress)
            else:
                set_rate(session.optimiser, rate(plan, progress))
            session.optimiser.step()
            session.optimiser.zero_grad()
            if session.own:
                session.own.after_step()
            if session.mean:
                session.mean.add()
            session.step = step + 1
            due = session.world.first and session.store.save_is_due()
            if session.step < steps and session.world.any(bool(session.stop) or due):
                save(session)
                stop_if_asked(session)


def weight_of(session: Session, labels: Labels) -> float:
    """Of this process's part of a batch. Processes average their gradients; `sum_loss` is the sum over all images."""
    if session.plan.sum_loss:
        return float(len(labels) * session.world.size)
    return session.train.share(labels)


def of_last_step(session: Session) -> tuple[Record, Weights] | None:
    """After the last epoch, if the plan asks for it: figures and weights of the last step, to compare with the mean."""
    plan = session.plan
    if session.mean is None or not plan.average_or_last or session.epoch + 1 < plan.epochs:
        return None
    return validate(session), deepcopy(session.model.state_dict())


def better_of(session: Session, mean: Record, last: tuple[Record, Weights] | None) -> Record:
    """Load whichever weights are better once calibrated, and return their figures; the mean wins a tie."""
    if last is None:
        return mean
    figures, weights = last
    if lowest_tempered([mean, figures]) == 0:
        return mean | {"weights": "average"}
    session.model.load_state_dict(weights)
    return figures | {"weights": "last step"}


@torch.no_grad()
def validate(session: Session) -> Record:
    """Figures of the fused prediction on the validation split, with the head's weights that the checkpoint holds."""
    model, world, tally = session.model, session.world, session.model.method.tally
    world.share(*model.buffers())
    model.eval()
    record: Record = {}
    seen: Iterable[tuple[Outputs, Labels]] = forward(session)
    if tally and tally.on == "val":
        sums, kept, room = tally.start(model), [], KEPT if tally.only_weights else 0
        for outputs, labels in seen:
            tally_rows(tally, sums, outputs, labels)
            room -= outputs.logits.numel()
            if room >= 0:
                kept.append((replace(outputs, features=None), labels))
            else:
                kept.clear()
        record |= finish_tally(model, tally, sums, world)
        again = ((replace(outputs, weights=model.head.weights), labels) for outputs, labels in kept)
        seen = again if room >= 0 else forward(session)
    meter, tempered = TopLabel(device=session.device), TemperedNll(session.device)
    by_head = torch.zeros(2, dtype=sum_dtype(session.device), device=session.device)
    for outputs, labels in seen:
        row, hard, weights = as_rows(labels)
        log_probs = outputs.log_probs() if row is None else outputs.log_probs()[row]
        meter.add(log_probs, hard, weights)
        tempered.add(log_probs, hard, weights)
        by_head += head_losses(session, outputs, labels)
    world.sum(*meter.tensors(), *tempered.tensors(), by_head)
    figures = meter.compute()
    if len(model.head.weights) > 1:
        figures["head_losses"] = float(by_head[0] / by_head[1])
    if math.isnan(figures["nll"]):
        raise BalcalError("the predictions on the validation split are NaN: lower the learning rate (plan.lr)")
    figures["nll_ts"] = tempered.compute()
    return record | {f"val_{name}": value for name, value in figures.items()}


def head_losses(session: Session, outputs: Outputs, labels: Labels) -> Tensor:
    """(sum over samples of the loss of all branches, each with weight 1; how many samples these count as)."""
    if len(outputs.logits) == 1:
        return session.seen.new_zeros(2)
    loss, (row, hard, weights) = session.model.method.loss, as_rows(labels)
    if row is None or weights is None:
        losses, count = torch.stack([loss(logits, hard) for logits in outputs.logits]), float(len(hard))
    else:
        losses = torch.stack([weighted_loss(loss, logits[row], hard, weights) for logits in outputs.logits])
        count = float(weights.sum())
    return torch.stack([losses.sum() * count, losses.new_tensor(count)]).to(session.seen.dtype)


def forward(session: Session) -> Iterator[tuple[Outputs, Labels]]:
    """Outputs and labels of this process's share of the validation split."""
    for number, (images, labels) in enumerate(session.val.epoch(0), 1):
        if len(labels):
            if not session.val.checked:
                session.health.look(images, labels, f"validation batch {number}")
            with autocast(session):
                outputs = session.model(images, branches=True)
            yield outputs, labels
        session.progress.val_batch()


def autocast(session: Session) -> AbstractContextManager[Any]:
    """bf16 if the plan says so. Losses and statistics stay in float32 (see Model.forward)."""
    return torch.autocast(session.device.type, torch.bfloat16) if session.plan.precision == "bf16" else nullcontext()


def unsynchronised(session: Session) -> AbstractContextManager[Any]:
    """Skip the exchange of gradients between processes while they are still being accumulated."""
    return session.network.no_sync() if isinstance(session.network, DistributedDataParallel) else nullcontext()


def exchange_gradients(session: Session) -> None:
    """Wrap the model anew when other weights are frozen: DistributedDataParallel waits for every gradient it knows."""
    trained = {number for number, weight in enumerate(session.free) if weight.requires_grad}
    if session.world.size > 1 and trained != session.exchanged:
        session.network = session.model  # releases the old wrapper and its hooks before there is a new one
        session.network = DistributedDataParallel(session.model)
        session.exchanged = trained


@contextmanager
def thawing(session: Session) -> Iterator[None]:
    """Unfreeze at the end whatever a method has frozen on the way."""
    try:
        yield
    finally:
        for weight in session.free:
            weight.requires_grad_(True)


def mean_loss(session: Session) -> float:
    """Over all batches and processes. The processes' sums are added in the order of their ranks."""
    return float(session.world.rows(session.seen).sum()) / (len(session.train) * session.world.size)


def stop_if_asked(session: Session) -> None:
    if session.world.any(bool(session.stop)):
        where = f"after epoch {session.epoch}"
        if session.step:
            where = f"in epoch {session.epoch + 1} after batch {session.step} of {len(session.train)}"
        raise Stopped(where, session.stop.signum)
