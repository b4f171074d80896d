"""Join runs: train those that are missing, and record what was joined. The joined run has no weights of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from balcal import registry
from balcal.build import as_method
from balcal.core import Predictions, Record
from balcal.data.splits import manifest
from balcal.evaluation.judge import RunFigures, batches_of, evaluate, load_chosen, load_splits, predictions_of
from balcal.evaluation.members import MEMBERS, joined_seals, mean_of, parts_of, seals
from balcal.evaluation.predict import predict_batches
from balcal.methods.joining import members
from balcal.metrics.epoch_meter import TemperedNll, TopLabel
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.provenance import describe, flattened
from balcal.training.trackers import Tracked, Trackers

if TYPE_CHECKING:
    from balcal.training.fit import Machine

SOLVED = ("gamma", "beta")
"""of each member by itself: their mean is nothing that a model has"""


def train_joined(
    recipe: Recipe, out: Path, machine: Machine, train: Callable[[Recipe, Path, Machine], RunFigures | None]
) -> RunFigures | None:
    """Train the members that are missing, join them, and evaluate; figures on the first rank."""
    run, world = Run(out, recipe), machine.world
    parts_of(run, run.recipe.method)  # an error, before anything is trained
    keep = run.recipe.method.join.keep if run.recipe.method.join else None
    each = replace(machine, keep_epochs=keep or machine.keep_epochs)
    for one in members(run.recipe):
        found = Run(out, one)
        there = found.finished and not found.lacks(each.plan(one.task.plan)) and (found.path / "metrics.json").exists()
        if not world.broadcast(there):
            train(one, out, each)
    figures: RunFigures | None = None
    with run.claimed() if world.first else nullcontext():
        if world.first:
            trackers = Trackers(machine.track, run.say)
            trackers.start(Tracked(run.recipe.address(), flattened(describe(run.recipe))))
            _join(run, machine.device)
            figures = evaluate(run, run.recipe.method, machine.device)
            if recipe.method.changes != run.recipe.method.changes:
                figures = evaluate(run, recipe.method, machine.device)
            trackers.finish(figures["metrics"])
        world.wait()
    return figures


def _join(run: Run, device: torch.device) -> None:
    """Record the members, unless that is recorded already."""
    method = as_method(run.recipe.method)
    joined = parts_of(run, method)
    found = seals(joined)
    if run.finished:
        if joined_seals(run) == found:
            run.write_for_people()
            return
        run.start_over()  # a member was trained anew
    splits, dataset = load_splits(run.recipe.task), registry.dataset(run.recipe.task.dataset)
    data = manifest(splits) | ({"title": dataset.title} if dataset.title else {})
    for member, _ in joined:
        member.check_data(data)
    run.begin(device, data)
    run.load_state()
    run.save_weights(0, cast(dict[str, torch.Tensor], {MEMBERS: found}))
    if run.recipe.task.calibrate_size:
        model = load_chosen(run, method, device)
        val = predict_batches(model, batches_of(run, splits.val, device))
    else:
        val = mean_of([predictions_of(*part, device)[0] for part in joined])
    chosen = [member.ending().history[how.select(member.ending().history)] for member, how in joined]
    run.finish([_record(chosen, val)], data)
    run.write_for_people()


def _record(chosen: list[Record], val: Predictions) -> Record:
    """Means over the members, and the figures of the joined prediction on the validation split."""
    names = [name for name in chosen[0] if all(isinstance(each.get(name), int | float) for each in chosen)]
    means = {name: sum(each[name] for each in chosen) / len(chosen) for name in names if name not in SOLVED}
    meter, tempered = TopLabel(), TemperedNll()
    for each in (meter, tempered):
        each.add(val.log_probs, val.labels)
    figures = meter.compute() | {"nll_ts": tempered.compute()}
    return means | {f"val_{name}": value for name, value in figures.items()} | {"epoch": 0}
