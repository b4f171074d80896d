"""Two doors to the loop: `fit` for somebody's own model and loaders, `train` for a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch

from balcal import registry
from balcal.core import BalcalError, Record
from balcal.data.batches import Batches, LoaderBatches, MemoryBatches, Pixels
from balcal.data.roles import manifest, overlap_sentences
from balcal.devices import World, current_world, joined_world, keep_freed_memory, pick_device
from balcal.evaluate import evaluate, fit_posthoc, load_splits
from balcal.model import Model, build
from balcal.naming import unknown
from balcal.progress import Progress
from balcal.randomness import own_randomness, seed_torch
from balcal.recipe import Plan, Recipe, fingerprint
from balcal.runs import SAVE_EVERY_SECONDS, Folder, Memory, Run, Store
from balcal.stages import ParentRun, start_from, without_detours
from balcal.train import Session, run_epochs


def fit(
    model: Model,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any],
    epochs: int = 30,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> list[Record]:
    """Train a wrapped model on loaders of (x, y), on the device where the model is; returns one record per epoch.

    The model ends up with the weights of its best epoch by validation NLL, and with its post-hoc map fitted. `settings`
    are those of a `Plan`: optimiser, lr, weight_decay, schedule, clip, accumulate, precision, ... With `out` the
    training survives interruption: the same call resumes.

    A method that starts from another run (`tst`, `vtst`) starts here from the weights that the model has: bring a
    network that is trained already. `pcs` needs all epochs of a run, so it goes with `balcal train` only.
    """
    known = {f.name for f in fields(Plan)} - {"epochs", "batch_size"}
    for name in settings:
        if name not in known:
            raise BalcalError(unknown("setting", name, known))
    plan = Plan(epochs=epochs, **settings)
    device = model.head.weights.device
    train, val = LoaderBatches(train_loader, device, seed), LoaderBatches(val_loader, device, seed)
    for name, batches in (("training", train), ("validation", val)):
        if not len(batches):
            raise BalcalError(f"the {name} loader is empty")
    _tune_machine(device)
    world = current_world()
    progress = Progress(model.method.name, quiet or not world.first)
    if out is None:
        return fit_batches(model, train, val, plan, seed, progress)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    folder = Folder(Path(out), fingerprint([plan, model.method, seed, str(shapes)]), progress.note)
    with folder.claimed() if world.first else nullcontext():
        return fit_batches(model, train, val, plan, seed, progress, folder)


def fit_batches(
    model: Model,
    train: Batches,
    val: Batches,
    plan: Plan,
    seed: int,
    progress: Progress,
    store: Store | None = None,
) -> list[Record]:
    """Train to the end, choose, and fit what comes after training."""
    world = current_world()
    history = run_epochs(Session(model, train, val, plan, seed, store or Memory(), progress, world))
    fitted = fit_posthoc(model, model.method.posthoc, val)
    model.posthoc = world.told(fitted).to(model.head.weights.device)
    # whole: how many numbers it has may depend on what a process saw
    return history


def train_recipe(
    recipe: Recipe,
    out: str | Path = "runs",
    device: str | None = None,
    quiet: bool = False,
    save_every: float = SAVE_EVERY_SECONDS,
) -> dict[str, Any] | None:
    """Train a recipe, or resume it, or find it finished; then give its figures (to the first process, of several)."""
    place = pick_device(device)
    with joined_world(place) as world:
        return train_here(recipe, Path(out), Machine(place, world, quiet, save_every))


@dataclass(frozen=True)
class Machine:
    """Where a recipe is trained, and how."""

    device: torch.device
    world: World
    quiet: bool
    save_every: float


def train_here(recipe: Recipe, out: Path, machine: Machine) -> dict[str, Any] | None:
    world, device = machine.world, machine.device
    title = f"{recipe.task.name} {recipe.for_training().method} seed {recipe.seed}"
    progress = Progress(title, machine.quiet or not world.first)
    run = Run(out, recipe, progress.note)
    run.save_every = machine.save_every
    finished = world.told(run.finished)  # the first process may be the only one that sees the folder
    parent = _trained_parent(run, out, machine) if run.recipe.parent and not finished else None
    if world.first:
        progress.log = run.log
    with run.claimed() if world.first else nullcontext():
        if world.told(run.finished):
            progress.note(f"{run.path} is finished already: nothing to train")
        else:
            _train_run(run, machine, progress, parent)
        figures = None
        if world.first:
            figures = evaluate(run, run.recipe.method, device)
            if recipe.method.changes != run.recipe.method.changes:
                figures = evaluate(run, recipe.method, device)
        world.wait()
    return figures


def _trained_parent(run: Run, out: Path, machine: Machine) -> ParentRun:
    """The run that comes first: found, or resumed, or trained."""
    asked = cast(Recipe, run.recipe.parent)
    parent = Run(out, asked, run.say)
    if not machine.world.told(parent.finished):
        run.say(f"{run.recipe.method} starts from the run of {asked.method}, which comes first")
        train_here(asked, out, machine)
    return ParentRun.of(parent, machine.world)


def _train_run(run: Run, machine: Machine, progress: Progress, parent: ParentRun | None) -> None:
    recipe, device, world = run.recipe, machine.device, machine.world
    _tune_machine(device)
    splits, plan = load_splits(recipe.task), recipe.task.plan
    dataset = registry.dataset(recipe.task.dataset)
    if world.first:
        written = manifest(splits)
        run.check_data(written)
        run.begin(device)
        for sentence in overlap_sentences(written):
            progress.note(sentence)
    with own_randomness():
        seed_torch(recipe.seed, "weights")
        model = build(recipe).to(device)
    if parent:
        start_from(model, parent, recipe)
    seen, plain = (Pixels.of(dataset, device, augment, recipe.task.side) for augment in (recipe.task.augment, "none"))
    train = MemoryBatches(splits.train.to(device), seen, plan.batch_size, recipe.seed, world.rank, world.size)
    val = MemoryBatches(splits.val.to(device), plain, 2 * plan.batch_size, None, world.rank, world.size)
    with without_detours(model, train, val) as (learn, check):
        run_epochs(Session(model, learn, check, plan, recipe.seed, run, progress, world))


def _tune_machine(device: torch.device) -> None:
    if device.type == "cpu":
        keep_freed_memory()
