"""Evaluate a run on its test split: its model, its predictions, its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch
from torch import nn

from balcal import registry
from balcal.build import as_method, assemble, build
from balcal.core import BalcalError, Outputs, Predictions
from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import ImageSet, Splits, check_split, keep, split_off
from balcal.data.splits import manifest
from balcal.evaluation.kept_maps import kept_map
from balcal.evaluation.members import mean_of, members_of, run_of
from balcal.evaluation.predict import fit_posthoc, predict_batches
from balcal.methods.joining import maps_networks
from balcal.methods.parts.fitted_map import explained
from balcal.metrics.comparison import compare
from balcal.metrics.summary import summary
from balcal.metrics.verdict import verdict
from balcal.model import Model
from balcal.recipe import Method, Recipe, Task
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.runtime.provenance import FigureFile, describe, fingerprint
from balcal.runtime.provenance import PredictionFile as File
from balcal.runtime.randomness import own_randomness


class RunFigures(TypedDict):
    """Figures of a run on its test split: metrics.json, and what `train`, `evaluate` and `retrofit` print."""

    task: str
    method: str
    seed: int
    epoch: int
    posthoc: dict[str, Any]
    dials: dict[str, float]
    """gamma and beta of the chosen epoch, where the method has them"""
    members: NotRequired[list[str]]
    """the runs that are joined, with the epoch of each"""
    fusion: str
    test: dict[str, Any]
    """a `Verdict`"""
    metrics: dict[str, Any]
    specification: dict[str, dict[str, Any]]
    data: dict[str, Any] | None
    run: str
    """the folder; not in metrics.json"""
    against_uncalibrated: NotRequired[dict[str, Any]]
    """a `Comparison`, as are the next two"""
    against_parent: NotRequired[dict[str, Any]]
    against_parent_held_out: NotRequired[dict[str, Any]]
    remarks: NotRequired[list[str]]


def load(path: str | Path, posthoc: str | None = None, device: str | None = None) -> Model:
    """The trained model of a run folder; `posthoc="ts"` adds temperature scaling, fitted on the calibration split."""
    run, place = Run.at(Path(path)), pick_device(device)
    if posthoc is None:
        return load_chosen(run, run.recipe.method, place).eval()
    model, _ = calibrated_model(run, run.recipe.method + registry.method(posthoc), place)
    return model.eval()


def load_chosen(run: Run, method: Method, device: torch.device) -> Model:
    """The model with the weights of the epoch that the method chooses; its post-hoc map is not fitted.

    Of a joined run, the mean of its members.
    """
    members_of(run, method)  # an error, if they are not what was joined
    return assemble(run.recipe, method, lambda recipe, each: _network(run_of(run, recipe), each, device)).to(device)


def _network(run: Run, method: Method, device: torch.device) -> Model:
    model = build(run.recipe, weights=False).to(device)
    weights = run.load_weights(as_method(method).select(run.ending().history))
    try:
        model.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError):
        raise BalcalError(
            f"the weights in {run.checkpoints} do not fit the network of its recipe: train it again"
        ) from None
    return model


def load_splits(task: Task) -> Splits:
    """The task's images, divided into training, validation, calibration and test split."""
    dataset = registry.dataset(task.dataset)
    whole, test = dataset.load()
    for name, part in (("training", whole), ("test", test)):
        check_split(part, dataset.num_classes, f"the {name} part of {dataset.name}")
    train, val = split_off(whole, task.val_size, dataset.num_classes, task.split_seed)
    calibrate = val
    if task.calibrate_size:
        train, calibrate = split_off(train, task.calibrate_size, dataset.num_classes, task.split_seed + 1)
    if task.train_size is not None:  # last, so that it changes no other split
        train = keep(train, task.train_size, dataset.num_classes, task.split_seed + 2)
    return Splits(train, val, calibrate, test)


def evaluate(run: Run, method: Method, device: torch.device) -> RunFigures:
    """Figures of a trained run on its test split, after the method's post-hoc map, fitted on the calibration split."""
    with run.in_use():
        return _evaluate(run, as_method(method), device)


def _evaluate(run: Run, method: Method, device: torch.device) -> RunFigures:
    run.write_for_people()
    history = run.ending().history
    epoch = method.select(history)
    fitted, test, before = calibrated_predictions(run, method, device)
    after = added_by(run, method)
    posthoc = {"name": method.changes.get("posthoc"), "spec": describe(method.posthoc), "fitted_on": "calibrate"}
    figures: RunFigures = {
        "task": run.recipe.task.name,
        "method": run.recipe.method.name + after,
        "seed": run.recipe.seed,
        "epoch": epoch,
        "posthoc": posthoc | explained(fitted) | _state(fitted),
        "dials": {k: history[epoch][k] for k in ("gamma", "beta") if k in history[epoch]},
        "fusion": run.recipe.method.head.fusion,
        "test": verdict(test).as_dict(),
        "metrics": summary(log_probs=test.log_probs, labels=test.labels),
        "specification": _specification(method.changes.get("posthoc")),
        "data": run.data(),
        "run": str(run.path),
    }
    if found := members_of(run, method):
        figures["members"] = [f"{each.recipe.address()} epoch {_epoch(each, how) + 1}" for each, how in found]
    if "posthoc" in method.changes:
        names = (run.recipe.method.name, run.recipe.method.name + after)
        figures["against_uncalibrated"] = compare(before, test, names).as_dict()
    if sentence := run.recipe.method.advice(history):
        figures["remarks"] = [sentence]
    stored = {name: value for name, value in figures.items() if name != "run"}
    run.write_figures(f"{FigureFile.METRICS}{after}", stored, method, epoch)
    return figures


def _epoch(run: Run, method: Method) -> int:
    return as_method(method).select(run.ending().history)


def added_by(run: Run, method: Method) -> str:
    """The suffix for what the method has beyond what the run was trained with: `+ts`, or nothing."""
    later = [name for role, name in method.changes.items() if role not in run.recipe.method.changes]
    return "".join(f"+{name}" for name in later)


def _specification(posthoc: str | None) -> dict[str, Any]:
    """How each figure is computed, on which split, after which post-hoc map."""
    where = {"split": "test", "posthoc": posthoc}
    return {name: metric.described() | where for name, metric in registry.table("metrics").items()}


def _state(fitted: nn.Module) -> dict[str, Any]:
    """The fitted numbers, if they are few enough to read; else how many there are."""
    return {
        name: value.tolist() if value.numel() <= 64 else f"{value.numel()} numbers of shape {tuple(value.shape)}"
        for name, value in fitted.state_dict().items()
    }


def calibrated_model(run: Run, method: Method, device: torch.device) -> tuple[Model, Splits]:
    """The chosen model with its post-hoc map fitted on the calibration split: to the mean, or to each network."""
    method, splits = as_method(method), load_splits(run.recipe.task)
    run.check_data(manifest(splits))
    held_out, train = (batches_of(run, part, device) for part in (splits.calibrate, splits.train))

    def mapped(model: Model) -> Model:
        model.posthoc = fit_posthoc(model, method.posthoc, held_out, train).to(device)
        return model

    def network(recipe: Recipe, each: Method) -> Model:
        member = run_of(run, recipe)
        model = _network(member, each, device)
        if not method.posthoc.reads_features:
            return mapped(model)
        empty = method.posthoc.identity(model.num_classes)
        model.posthoc = kept_map(member, each, empty, lambda: mapped(model).posthoc).to(device)
        return model

    if maps_networks(method):
        members_of(run, method)
        return assemble(run.recipe, method, network), splits
    return mapped(load_chosen(run, method, device)), splits


def calibrated_predictions(
    run: Run, method: Method, device: torch.device
) -> tuple[nn.Module, Predictions, Predictions]:
    """(the fitted map, test predictions after it, and before it)."""
    method = as_method(method)
    held_out, test = predictions_of(run, method, device)
    if maps_networks(method):
        if parts := members_of(run, method):
            found = [calibrated_predictions(*part, device) for part in parts]
            return nn.ModuleList([fitted for fitted, _, _ in found]), mean_of([after for _, after, _ in found]), test
        model, splits = calibrated_model(run, method, device)
        return model.posthoc, predict_batches(model, batches_of(run, splits.test, device), role="test"), test
    held_out = held_out.for_fitting()
    fitted = method.posthoc.fit(Outputs.of(held_out.log_probs), held_out.labels)
    return fitted, Predictions(fitted(Outputs.of(test.log_probs)), test.labels, "test"), test


def predictions_of(run: Run, method: Method, device: torch.device) -> tuple[Predictions, Predictions]:
    """(calibration, test) predictions before any post-hoc map: read from the run, or computed once and kept."""
    history = run.ending().history
    epoch, usual = (as_method(m).select(history) for m in (method, run.recipe.method))
    names = (File.CALIBRATE if run.recipe.task.calibrate_size else File.VAL, File.TEST)
    suffix = ("" if epoch == usual else File.at(epoch)) + File.seen(method.changes.get("views"))
    stems = [f"{name}{suffix}" for name in names]
    seen = "" if method.views is None else fingerprint(method.views)
    made = [
        run.made_from(stem, epoch, data=run.ending().digest(role), posthoc=seen)
        for stem, role in zip(stems, ("calibrate", "test"), strict=True)
    ]
    kept = [run.load_predictions(stem, expected) for stem, expected in zip(stems, made, strict=True)]
    parts = members_of(run, method)
    if kept[0] is not None and kept[1] is not None:
        return kept[0], kept[1]
    if parts:
        held_out, test = map(mean_of, zip(*(predictions_of(*part, device) for part in parts), strict=True))
    else:
        model, splits = load_chosen(run, method, device), load_splits(run.recipe.task)
        run.check_data(manifest(splits))
        held_out, test = (
            predict_batches(model, batches_of(run, part, device), role=role)
            for part, role in ((splits.calibrate, "calibrate"), (splits.test, "test"))
        )
    for stem, predictions, expected in zip(stems, (held_out, test), made, strict=True):
        run.save_predictions(stem, predictions, expected)
    return held_out, test


@torch.no_grad()
def branch_predictions(run: Run, device: torch.device) -> list[Predictions]:
    """Test predictions of each branch of the chosen model by itself; an empty list if there is only one branch.

    Read from the run, or computed once and kept. Of a joined run these are its members.
    """
    if parts := members_of(run, as_method(run.recipe.method)):
        return [predictions_of(*part, device)[1] for part in parts]
    model = load_chosen(run, run.recipe.method, device).eval()
    count = len(model.head.weights)
    if count == 1:
        return []
    stems = [File.branch(number) for number in range(count)]
    made = [run.made_from(stem, part=f"{number} of {count}") for number, stem in enumerate(stems, 1)]
    kept = [run.load_predictions(stem, expected) for stem, expected in zip(stems, made, strict=True)]
    if None not in kept:
        return cast(list[Predictions], kept)
    splits = load_splits(run.recipe.task)
    run.check_data(manifest(splits))
    log_probs, labels = [], []
    with own_randomness():
        for x, y in batches_of(run, splits.test, device).epoch(0):
            log_probs.append(model(x, branches=True).logits.log_softmax(-1).cpu())
            labels.append(y.cpu())
    branches = [Predictions(table, torch.cat(labels), "test") for table in torch.cat(log_probs, dim=1)]
    for stem, predictions, expected in zip(stems, branches, made, strict=True):
        run.save_predictions(stem, predictions, expected)
    return branches


def batches_of(run: Run, part: ImageSet, device: torch.device) -> MemoryBatches:
    """Batches of images as the run's task normalises them, in order and not augmented."""
    pixels = Pixels.of(
        registry.dataset(run.recipe.task.dataset), device, side=run.recipe.task.side, by=run.recipe.task.pixels
    )
    return MemoryBatches(part.to(device), pixels, 2 * run.recipe.task.plan.batch_size)
