"""Train: `fit` for a model and loaders of your own, `train_recipe` for a recipe."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal, cast

import torch

from balcal import registry
from balcal.build import build
from balcal.core import BalcalError, Record
from balcal.data.batches import Batches, MemoryBatches, Pixels
from balcal.data.splits import loader_digest, manifest, overlap_sentences
from balcal.evaluation.judge import RunFigures, evaluate, load_splits
from balcal.evaluation.predict import fit_posthoc
from balcal.model import Model
from balcal.recipe import Plan, Recipe
from balcal.runs import Run
from balcal.runtime.checkpoints import SAVE_EVERY_SECONDS, Folder, Memory, Store
from balcal.runtime.claims import Claimed
from balcal.runtime.devices import World, current_world, joined_world, keep_freed_memory, pick_device
from balcal.runtime.files import seal
from balcal.runtime.progress import Progress
from balcal.runtime.provenance import describe, fingerprint, flattened
from balcal.runtime.randomness import own_randomness, seed_torch
from balcal.runtime.values import SEED, at_least, check_value
from balcal.training.joining import train_joined
from balcal.training.loop import run_epochs
from balcal.training.optimise import OwnOptimiser, own_optimiser
from balcal.training.own_data import OwnData, named_loaders, plan_of
from balcal.training.parents import ParentRun, frozen_features_cached, start_from
from balcal.training.session import Session
from balcal.training.trackers import Tracked, Trackers, check_trackers


def fit(
    model: Model,
    train_loader: Iterable[Any] | None = None,
    val_loader: Iterable[Any] | None = None,
    epochs: int = 30,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
    track: Iterable[str] = (),
    scheduler: Any = None,
    scheduler_every: Literal["epoch", "step"] | None = None,
    target: Any = None,
    ignore_index: int | None = None,
    class_weight: Any = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    **settings: Any,
) -> list[Record]:
    """Train a wrapped model on your loaders, on the model's device; return one record per epoch.

    The model ends with the weights of its best epoch by validation NLL, and with its post-hoc map fitted. Without a
    `val_loader` a tenth of the training samples is held out, of few up to a fifth, and a note says so. With `out`
    the training survives interruption: the same call resumes. `track` names trackers that get each epoch's record:
    `["csv:epochs.csv", "tensorboard:logs"]`. `settings` are those of a `Plan`: lr, weight_decay, schedule, clip,
    accumulate, precision, ...

    `optimizer=` (or `optimiser=`) is `"sgd"`, `"adam"`, `"adamw"`, or an object of torch.optim made of
    `model.parameters()`, and `scheduler=` one of torch.optim.lr_scheduler. The scheduler steps after each epoch;
    OneCycleLR and CyclicLR after each step, as others do with `scheduler_every="step"`.

    Batches are (x, y), (x, y, weight), or dictionaries with `labels`. x may be a tensor, a tuple or a dictionary; y are
    class indices or soft labels (N, K). `target` says where the labels are (a key, or a place such as -1); samples
    labelled `ignore_index` are left out. `class_weight` (`"balanced"`, a mapping, K numbers) and `sample_weight` (one
    number for each sample of the training data set) hold in losses, tallies and validation figures. A loader without a
    length is counted first, unless `steps_per_epoch` says how many batches are an epoch.

    A method that starts from another run (`tst`, `vtst`) starts here from the weights that the model has: pass a
    trained network. `pcs` needs all epochs of a run, so it works with `balcal train` only.

    `train_loader` and `val_loader`, also called `train` and `val`, are any iterables of batches. `seed` decides
    order and dropout; `quiet` hides the progress.

    >>> import balcal
    >>> x = torch.randn(200, 4)
    >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.argmax(1)), batch_size=50)
    >>> model = balcal.wrap(torch.nn.Sequential(torch.nn.Linear(4, 4)), num_classes=4)
    >>> history = fit(model, loader, loader, epochs=2, lr=0.1, quiet=True)
    >>> len(history), 0 <= history[-1]["val_acc"] <= 1
    (2, True)
    """
    if not isinstance(model, Model):
        raise BalcalError(f"fit trains a model that balcal.wrap has made, not a {type(model).__name__}: wrap it first")
    if "batch_size" in settings:
        raise BalcalError("the loader decides the batch size: leave batch_size= out")
    train_loader, val_loader = named_loaders(train_loader, val_loader, settings)
    own = own_optimiser(model, settings, scheduler, scheduler_every)
    device = model.head.weights.device
    plan = plan_of(model.method, device, {"epochs": epochs}, settings, objects=True, others=signature(fit).parameters)
    seed = check_value("seed", seed, int, SEED)
    world = current_world()
    progress = Progress(model.method.name, quiet or not world.first)
    given = OwnData(train_loader, val_loader, target, ignore_index, class_weight, sample_weight, steps_per_epoch)
    data, train, val = given.batches(model, seed, progress.note)
    _tune_machine(device)
    trackers = Trackers(check_trackers(track) if world.first else (), progress.note)
    described = describe(plan) | ({"optimiser": own.facts()} if own else {})
    tracked = Tracked(f"{model.method.name}-seed{seed}", flattened({"plan": described}))
    if out is None:
        trackers.start(tracked)
        history = fit_batches(model, train, val, plan, seed, progress, on_epoch=trackers.epoch, own=own)
    else:
        folder = _folder_of(model, [plan, *(own.facts() if own else ()), *data.facts()], seed, Path(out), progress)
        folder.origin = {
            "network": seal(_without_addresses(repr(model)).encode()),
            "training data": loader_digest(data.train),
            "validation data": loader_digest(data.val or ()),
        }
        with folder.claimed() if world.first else nullcontext():
            trackers.start(replace(tracked, name=folder.path.name, epochs=folder.epochs()))
            history = fit_batches(model, train, val, plan, seed, progress, folder, trackers.epoch, own)
    trackers.finish({})
    return history


def _folder_of(model: Model, plan: list[Any], seed: int, out: Path, progress: Progress) -> Folder:
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return Folder(out, fingerprint([*plan, model.method, seed, str(shapes)]), progress.note)


def _without_addresses(text: str) -> str:
    """Remove memory addresses from what a module prints: they differ from process to process.

    >>> _without_addresses("Act(<function relu at 0x7f00>)")
    'Act(<function relu>)'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def fit_batches(
    model: Model,
    train: Batches,
    val: Batches,
    plan: Plan,
    seed: int,
    progress: Progress,
    store: Store | None = None,
    on_epoch: Callable[[Record], None] = lambda record: None,
    own: OwnOptimiser | None = None,
) -> list[Record]:
    """Train to the last epoch, load the chosen one, and fit the post-hoc map."""
    world = current_world()
    history = run_epochs(Session(model, train, val, plan, seed, store or Memory(), progress, world, on_epoch, own))
    if sentence := model.method.advice(history):
        progress.note(sentence)
    fitted = fit_posthoc(model, model.method.posthoc, val, train)
    # the whole module, as the number of its tensors' entries may depend on what a process saw
    model.posthoc = world.broadcast(fitted).to(model.head.weights.device)
    return history


def train_recipe(
    recipe: Recipe,
    out: str | Path = "runs",
    device: str | None = None,
    quiet: bool = False,
    save_every: float = SAVE_EVERY_SECONDS,
    track: Iterable[str] = (),
    keep_epochs: int | None = None,
) -> RunFigures | None:
    """Train a recipe, or resume it, or find it finished; return its figures (None on ranks other than 0).

    `track` and `keep_epochs` are no part of the recipe: the run keeps its address and its bits. `track` names trackers
    that get each epoch's record and the final figures. `keep_epochs=n` keeps the weights of every n-th epoch; a run
    that was trained without it is trained again, in the same folder.
    """
    check_value("save_every", save_every, float, at_least(0))
    if keep_epochs is not None:
        check_value("keep_epochs", keep_epochs, int, at_least(1))
    place, track = pick_device(device), check_trackers(track)
    with joined_world(place) as world:
        return train_here(recipe, Path(out), Machine(place, world, quiet, save_every, track, keep_epochs))


@dataclass(frozen=True)
class Machine:
    """Where a recipe is trained, and what is kept of it besides."""

    device: torch.device
    world: World
    quiet: bool
    save_every: float
    track: tuple[str, ...] = ()
    keep_epochs: int | None = None

    def plan(self, plan: Plan) -> Plan:
        """A recipe's plan that also keeps every `keep_epochs`-th epoch, unless the recipe itself says what to keep."""
        return replace(plan, keep=self.keep_epochs) if self.keep_epochs and plan.keep in ("best", "last") else plan


def train_here(recipe: Recipe, out: Path, machine: Machine) -> RunFigures | None:
    """Train a recipe among processes that have joined already; its parent run comes first."""
    if recipe.method.join is not None:
        return train_joined(recipe, out, machine, train_here)
    world, device = machine.world, machine.device
    title = f"{recipe.task.name} {recipe.for_training().method} seed {recipe.seed}"
    progress = Progress(title, machine.quiet or not world.first)
    run = Run(out, recipe, progress.note)
    run.save_every = machine.save_every
    plan = machine.plan(run.recipe.task.plan)
    finished = world.broadcast(run.finished and not run.lacks(plan))  # other ranks may not see the folder
    parent = _trained_parent(run, out, machine) if run.recipe.parent and not finished else None
    if world.first:
        progress.log = run.log
    trackers = Trackers(machine.track if world.first else (), progress.note)
    tracked = Tracked(run.recipe.address(), flattened(describe(run.recipe)))
    with run.claimed() if world.first else nullcontext():
        if world.first and run.lacks(plan):
            progress.note(f"{run.path} did not keep its epochs: it is trained again, with the same result")
            run.start_over()
        if world.broadcast(run.finished):
            progress.note(f"{run.path} is finished already: nothing to train")
            if world.first:
                run.write_for_people()
            trackers.start(tracked)
            trackers.replay(run.history() if trackers.open else [])
        else:
            trackers.start(replace(tracked, epochs=run.epochs()))
            _train_run(run, machine, progress, parent, trackers)
        figures: RunFigures | None = None
        if world.first:
            figures = evaluate(run, run.recipe.method, device)
            if recipe.method.changes != run.recipe.method.changes:
                figures = evaluate(run, recipe.method, device)
            trackers.finish(figures["metrics"])
        world.wait()
    return figures


def _trained_parent(run: Run, out: Path, machine: Machine) -> ParentRun:
    """The run that this one starts from: found, or resumed, or trained."""
    recipe = cast(Recipe, run.recipe.parent)
    parent = Run(out, recipe, run.say)
    if not machine.world.broadcast(parent.finished and (parent.path / "metrics.json").exists()):
        run.say(f"{run.recipe.method} starts from the run of {recipe.method}, which comes first")
        train_here(recipe, out, replace(machine, keep_epochs=None))
    elif machine.world.first:
        with suppress(Claimed), parent.in_use():
            pass  # taking the claim removes what a killed process left unfinished
    return ParentRun.of(parent, machine.world)


def _train_run(run: Run, machine: Machine, progress: Progress, parent: ParentRun | None, trackers: Trackers) -> None:
    recipe, device, world = run.recipe, machine.device, machine.world
    _tune_machine(device)
    splits, plan = load_splits(recipe.task), machine.plan(recipe.task.plan)
    dataset = registry.dataset(recipe.task.dataset)
    with own_randomness():
        seed_torch(recipe.seed, "weights")
        model = build(recipe).to(device)
    if parent:
        start_from(model, parent, recipe)
    task = recipe.task
    augmented, plain = (Pixels.of(dataset, device, how, task.side, task.pixels) for how in (task.augment, "none"))
    train = MemoryBatches(splits.train.to(device), augmented, plan.batch_size, recipe.seed, world.rank, world.size)
    val = MemoryBatches(splits.val.to(device), plain, 2 * plan.batch_size, None, world.rank, world.size)
    data = manifest(splits) if world.first else {}
    if world.first and dataset.title:
        data["title"] = dataset.title
    if world.first:  # only now: whatever is wrong with the recipe has raised its error by here
        run.origin = {f"{role} data": each["digest"] for role, each in data["roles"].items()}
        if parent:
            run.origin["run that it starts from"] = parent.seal
        run.begin(device, data)
        for sentence in overlap_sentences(data):
            progress.note(sentence)
    begun = time.monotonic()
    try:
        with frozen_features_cached(model, train, val) as (learn, check):
            history = run_epochs(Session(model, learn, check, plan, recipe.seed, run, progress, world, trackers.epoch))
    finally:
        if world.first:
            run.write_json("seconds.json", [*run.seconds(), round(time.monotonic() - begun, 3)])
    if world.first:
        run.finish(history, data)
        run.write_for_people()


def _tune_machine(device: torch.device) -> None:
    if device.type == "cpu":
        keep_freed_memory()
