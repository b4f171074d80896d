"""From weights to predictions, from predictions to figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.data.batches import Batches, LoaderBatches, MemoryBatches, Pixels
from balcal.data.images import Splits, check_split, split_off
from balcal.devices import pick_device
from balcal.metrics.verdict import verdict
from balcal.model import Model, as_method, build
from balcal.randomness import own_randomness
from balcal.recipe import AFTER_TRAINING, Method, Task, describe
from balcal.runs import Run


def predict(model: Model, loader: Iterable[Any]) -> Predictions:
    """What the model says of a loader of (x, y): log-probabilities and labels, in the loader's order."""
    return predict_batches(model, LoaderBatches(loader, model.head.weights.device, seed=0))


@torch.no_grad()
def predict_batches(model: Model, batches: Batches, posthoc: bool = True) -> Predictions:
    was_training = model.training
    model.eval()
    try:
        told, labels = [], []
        with own_randomness():
            for x, y in batches.epoch(0):
                told.append((model(x) if posthoc else model(x, branches=True).log_probs()).float().cpu())
                labels.append(y.cpu())
    finally:
        model.train(was_training)
    if not told:
        raise BalcalError("there is nothing to predict: the loader is empty")
    log_probs = torch.cat(told)
    if bool(log_probs.isnan().any()):
        first = int(log_probs.isnan().any(1).nonzero()[0])
        raise BalcalError(
            f"the prediction for sample {first} is NaN: its input has NaN or infinite values, or the weights do"
        )
    return Predictions(log_probs, torch.cat(labels))


def load(path: str | Path, posthoc: str | None = None, device: str | None = None) -> Model:
    """The trained model of a run folder, ready for use; `posthoc="ts"` fits that on the run's validation split."""
    run, place = Run.at(Path(path)), pick_device(device)
    model = load_chosen(run, run.recipe.method, place)
    if posthoc is not None:
        held_out, _ = predictions_of(run, run.recipe.method, place)
        model.posthoc = registry.method(posthoc).posthoc.fit(held_out.log_probs, held_out.labels).to(place)
    return model.eval()


def load_chosen(run: Run, method: Method, device: torch.device) -> Model:
    model = build(run.recipe).to(device)
    weights = run.load_weights(as_method(method).select(run.history()))
    try:
        model.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError):
        raise BalcalError(
            f"the weights in {run.checkpoints} do not fit the network of its recipe: train it again"
        ) from None
    return model


def load_splits(task: Task) -> Splits:
    """The task's images in their three roles."""
    dataset = registry.dataset(task.dataset)
    whole, test = dataset.load()
    for name, part in (("training", whole), ("test", test)):
        check_split(part, dataset.num_classes, f"the {name} part of {dataset.name}")
    train, val = split_off(whole, task.val_size, dataset.num_classes, task.split_seed)
    return Splits(train, val, test)


def evaluate(run: Run, method: Method, device: torch.device) -> dict[str, Any]:
    """Figures of a trained run on its test split, after the method's post-hoc map, fitted on the validation split."""
    method = as_method(method)
    history = run.history()
    epoch = method.select(history)
    val, test = predictions_of(run, method, device)
    fitted = method.posthoc.fit(val.log_probs, val.labels)
    judged = verdict(Predictions(fitted(test.log_probs), test.labels))
    after = "".join(f"+{name}" for role, name in method.changes.items() if role in AFTER_TRAINING)
    figures = {
        "task": run.recipe.task.name,
        "method": run.recipe.method.name + after,
        "seed": run.recipe.seed,
        "epoch": epoch,
        "posthoc": {"spec": describe(method.posthoc), **{k: v.tolist() for k, v in fitted.state_dict().items()}},
        "dials": {k: history[epoch][k] for k in ("gamma", "beta") if k in history[epoch]},
        "fusion": getattr(run.recipe.method.head, "fusion", "probs"),
        "ece": {"bins": 15, "edges": "uniform, (lo, hi]", "norm": "L1", "of": "top label"},
        "test": judged.as_dict(),
    }
    run.write_json(f"metrics{after}.json", figures)
    return figures | {"run": str(run.path)}


def predictions_of(run: Run, method: Method, device: torch.device) -> tuple[Predictions, Predictions]:
    """(validation, test) predictions before any post-hoc map: read from the run, or computed once and kept."""
    history = run.history()
    epoch, usual = (as_method(m).select(history) for m in (method, run.recipe.method))
    stems = [split if epoch == usual else f"{split}-e{epoch:04d}" for split in ("val", "test")]
    kept = [run.load_predictions(stem) for stem in stems]
    if kept[0] is not None and kept[1] is not None:
        return kept[0], kept[1]
    model = load_chosen(run, method, device)
    splits = load_splits(run.recipe.task)
    pixels = Pixels.of(registry.dataset(run.recipe.task.dataset), device)
    size = 2 * run.recipe.task.plan.batch_size
    val, test = (
        predict_batches(model, MemoryBatches(part.to(device), pixels, size)) for part in (splits.val, splits.test)
    )
    for stem, predictions in zip(stems, (val, test), strict=True):
        run.save_predictions(stem, predictions)
    return val, test
