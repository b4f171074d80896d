"""Calibrate a trained network: freeze its backbone and train only a new head, in seconds.

    result = retrofit(network, loader)         # a trained network, and a loader of (x, y): new samples, or the old ones
    print(result); result.model(x)             # accuracy and calibration before and after; calibrated log-probabilities

For a run folder: `balcal retrofit RUN --with balcal-auto`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from balcal import registry
from balcal.backbones.classifiers import find_classifier, outputs_of
from balcal.build import as_method, wrap
from balcal.core import Backbone, BalcalError, Record
from balcal.data.loaders import LoaderBatches, Reading
from balcal.data.targets import class_weights
from balcal.evaluation.judge import RunFigures, calibrated_predictions, predictions_of
from balcal.evaluation.predict import predict_batches
from balcal.metrics.comparison import Comparison, compare
from balcal.metrics.verdict import Verdict, verdict
from balcal.model import Model
from balcal.recipe import Method, Recipe
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.runtime.labels import check_labels
from balcal.runtime.progress import Progress
from balcal.runtime.randomness import generator, own_randomness, seed_torch
from balcal.runtime.values import SEED, at_least, check_value, within
from balcal.training.fit import fit_batches, train_recipe
from balcal.training.own_data import plan_of, with_weights
from balcal.training.parents import FeatureBatches, extract_features, fed_with_features

NAME = "retrofit"


@dataclass(frozen=True, eq=False)
class Retrofitted:
    """The new model, and accuracy and calibration on the held-out samples, before and after.

    The same samples chose the epoch (and gamma, for `balcal-auto`): for a figure to publish, evaluate on others.
    """

    model: Model
    history: list[Record]
    after: Verdict
    before: Verdict | None
    """None, if the network had no classifier for these classes"""
    difference: Comparison | None
    seconds: float

    def __str__(self) -> str:
        lines = [f"retrofitted with {self.model.method.name.removesuffix(f'+{NAME}')} in {self.seconds:.1f} seconds"]
        if self.before is not None and self.difference is not None:
            lines += ["before", str(self.before), "after", str(self.after), str(self.difference)]
        else:
            lines += [str(self.after)]
        return "\n".join(lines)


def retrofit(
    network: nn.Module,
    loader: Iterable[Any],
    val_loader: Iterable[Any] | None = None,
    method: Method | str = "balcal-auto",
    num_classes: int | None = None,
    epochs: int = 5,
    lr: float = 1e-3,
    batch_size: int = 128,
    held_out: float = 0.2,
    tolerance: float = 0.01,
    seed: int = 0,
    quiet: bool = True,
    sample_weight: Any = None,
    class_weight: Any = None,
    target: Any = None,
    ignore_index: int | None = None,
    **settings: Any,
) -> Retrofitted:
    """Train a calibrated head on the frozen backbone of a trained network. The network itself is copied, not changed.

    `loader` gives (x, y) as the network will see them: not augmented. Features are computed once; classifier and
    adapter are trained on them. `val_loader` decides which epoch stays; without one, a share `held_out` of the samples.
    If accuracy on these falls by more than `tolerance`, that is an error; if it falls by less, but by more than chance
    explains, a warning. With another `num_classes` than the network's last layer has, the classifier is new. `method`
    says which head; `epochs`, `lr` and `batch_size` how it is trained, `settings` are further ones of a `Plan`, as are
    `seed` and `quiet` for `balcal.fit`. `sample_weight` (one number for each sample of the loader), `class_weight`,
    `target` and `ignore_index` are as for `balcal.fit`: weights count in the loss, in gamma and in the verdicts.

    >>> x = torch.randn(400, 3)
    >>> network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    >>> found = retrofit(network, [(x, x.argmax(1))], tolerance=1.0)
    >>> found.model.method.name, found.after.samples
    ('balcal-auto+retrofit', 80)
    """
    begun = time.perf_counter()
    chosen = as_method(method)
    given = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "compile": False}
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    plan = plan_of(chosen, device, given, settings, {"schedule": "cosine"}, others=signature(retrofit).parameters)
    seed = check_value("seed", seed, int, SEED)
    check_value("held_out", held_out, float, within("[0, 1]"))
    check_value("tolerance", tolerance, float, within("[0, 1]"))
    start, trained = _as_model(network, check_value("num_classes", num_classes, int | None, at_least(2)))
    with own_randomness():
        seed_torch(seed, "weights")
        model = _new_head(start, chosen)
    device = model.head.weights.device
    checking = Reading(model.num_classes, target, check_value("ignore_index", ignore_index, int | None))
    reading = checking if sample_weight is None else replace(checking, target=None)
    if sample_weight is not None:
        loader = with_weights(loader, sample_weight, target)
    readings = (reading, checking)
    learn, check = _features(model, loader, val_loader, plan.batch_size, held_out, seed, readings)
    if class_weight is not None:
        of = class_weights(class_weight, model.num_classes, lambda: [_hard(learn)])
        learn, check = (_times(each, of) for each in (learn, check))
    progress = Progress(model.method.name, quiet)
    with fed_with_features(start), fed_with_features(model):
        before = predict_batches(start, check) if trained else None
        history = fit_batches(model, learn, check, plan, seed, progress)
        after = predict_batches(model, check)
    weights = check.weights
    difference = compare(before, after, ("as it was", "retrofitted"), sample_weight=weights) if before else None
    if difference:
        _check_accuracy(difference, tolerance)
    was, now = (None if each is None else verdict(each, sample_weight=weights) for each in (before, after))
    assert now is not None
    return Retrofitted(model.eval(), history, now, was, difference, time.perf_counter() - begun)


def _as_model(network: nn.Module, num_classes: int | None) -> tuple[Model, bool]:
    """The network wrapped as a model, and whether its classifier was trained for these classes."""
    copied = deepcopy(network)
    if isinstance(copied, Model):
        return copied.eval(), True
    classes = _classes_of(copied)
    num_classes = num_classes or classes
    if num_classes is None:
        raise BalcalError("retrofit cannot know how many classes there are: pass num_classes=")
    return wrap(copied, num_classes, "vanilla", quiet=True).eval(), classes == num_classes


def _classes_of(network: nn.Module) -> int | None:
    """How many classes the network's own classifier has; None without one."""
    if isinstance(network, Backbone):
        own = getattr(network, "get_classifier", lambda: None)()
    else:
        own = network.get_submodule(find_classifier(network))
    outputs = outputs_of(own) if isinstance(own, nn.Module) else 0
    return max(outputs, 2) if outputs else None  # one logit is for two classes


def _new_head(start: Model, method: Method) -> Model:
    """A new head on the same backbone; it starts from the old classifier, where that fits."""
    own = getattr(start.head, "classifier", None)
    width: int = start.backbone.num_features  # type: ignore[assignment]
    fits = isinstance(own, nn.Linear) and own.in_features == width
    frozen = method if method.changes.get("before_epoch") == NAME else method + registry.method(NAME)
    if "mix" in frozen.changes:
        raise BalcalError(f"`{method.name}` mixes images, and retrofit keeps their features: choose another method")
    model = Model(start.backbone, start.num_classes, as_method(frozen), deepcopy(own) if fits else None)
    like = start.head.weights
    model.head.to(like.device, like.dtype)
    model.posthoc.to(like.device)
    return model


def _features(
    model: Model,
    loader: Iterable[Any],
    val_loader: Iterable[Any] | None,
    batch_size: int,
    held_out: float,
    seed: int,
    readings: tuple[Reading, Reading],
) -> tuple[FeatureBatches, FeatureBatches]:
    """Batches of features to train on, and to validate on."""

    def of(given: Iterable[Any], shuffle: int | None, reading: Reading) -> FeatureBatches:
        batches = LoaderBatches(given, model.head.weights.device, seed, reading)
        features, labels, weights = extract_features(model, batches)
        return FeatureBatches(features, labels, batch_size, shuffle, weights=weights)

    whole = of(loader, seed, readings[0])
    if val_loader is not None:
        return whole, of(val_loader, None, readings[1])
    n = len(whole.labels)
    kept = round(n * held_out)
    if not 0 < kept < n:
        raise BalcalError(f"cannot hold out {held_out:.0%} of {n} samples: pass val_loader=, or another held_out=")
    order = torch.randperm(n, generator=generator(seed, "split")).to(whole.labels.device)
    return whole.take(order[kept:], seed), whole.take(order[:kept], None)


def _hard(batches: FeatureBatches) -> torch.Tensor:
    return batches.labels if batches.labels.ndim == 1 else batches.labels.argmax(1)


def _times(batches: FeatureBatches, of: torch.Tensor | None) -> FeatureBatches:
    """Samples count by the weight of their class, too."""
    assert of is not None
    of = of.to(batches.labels.device)
    check_labels(_hard(batches), len(of), "the data")
    factor = of[batches.labels] if batches.labels.ndim == 1 else batches.labels @ of
    return replace(batches, weights=factor if batches.weights is None else batches.weights * factor)


def _check_accuracy(difference: Comparison, tolerance: float) -> None:
    fall = -difference.accuracy.value
    if fall > tolerance:
        raise BalcalError(
            f"accuracy on the {difference.samples:,} held-out samples falls by {fall:.2%}, more than tolerance="
            f"{tolerance}: give it more data, a lower lr=, or another method"
        )
    for remark in accuracy_remarks(difference):
        warnings.warn(remark, stacklevel=3)


def accuracy_remarks(held_out: Comparison) -> list[str]:
    """A sentence, if accuracy fell by more than chance explains."""
    if held_out.accuracy.high >= 0:
        return []
    return [
        f"accuracy on the {held_out.samples:,} held-out samples fell by {-held_out.accuracy.value:.2%}, "
        "more than chance explains: try another method, or a lower learning rate"
    ]


def recipe_on(run: Run, method: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe that retrofits a run: the run's task, seed and split; `settings` are for the new head alone."""
    old, name = run.recipe, f"{method}+{NAME}"
    shared = [text for text in old.overrides if text.startswith("task.")]
    theirs = [f"parent.{text}" for text in old.overrides if not text.startswith("task.")]
    plain = registry.recipe(old.task.name, old.method.name, old.seed, old.overrides)
    pinned = []
    for text in settings:
        path = text.partition("=")[0].strip()
        root, _, field = path.partition(".")
        if root == "task":
            raise BalcalError(f"`{text}` cannot be set: a retrofit has the task of its run")
        holder = plain.task.plan if root == "plan" else getattr(plain.method, root, None)
        if hasattr(holder, field) and (root == "plan" or plain.method.changes.get(root)):
            pinned.append(f"parent.{path}={getattr(holder, field)}")
    overrides = [*shared, *settings, f"{registry.PARENT_METHOD}={old.method.name}", *theirs, *pinned]
    return registry.recipe(old.task.name, name, old.seed, overrides)


def retrofit_run(
    path: Path,
    method: str = "balcal-auto",
    settings: Sequence[str] = (),
    device: str | None = None,
    quiet: bool = False,
) -> RunFigures | None:
    """Retrofit a finished run as a new run beside it; figures with what changed on held-out and on test images."""
    parent = Run.at(path)
    parent.ending()
    if parent.recipe.method.join is not None:
        raise BalcalError(f"{path} joins several networks: retrofit each of its members, and join those")
    recipe = recipe_on(parent, method, settings)
    root = path.resolve().parent.parent
    expected = root / recipe.parent.address() if recipe.parent else root
    if expected != path.resolve():
        raise BalcalError(f"{path} is not where its recipe says, {expected}: move it there")
    figures = train_recipe(recipe, root, device, quiet)
    if figures is None:
        return None
    child, place = Run.at(Path(figures["run"])), pick_device(device)
    names = (parent.recipe.method.name, figures["method"])
    with parent.in_use(), child.in_use():
        before = predictions_of(parent, parent.recipe.method, place)
        after = predictions_of(child, child.recipe.method, place)
        _, calibrated, _ = calibrated_predictions(child, as_method(recipe.method), place)
    held_out = compare(before[0], after[0], names)
    return {
        **figures,
        "against_parent": compare(before[1], calibrated, names).as_dict(),
        "against_parent_held_out": held_out.as_dict(),
        "remarks": [*figures.get("remarks", []), *accuracy_remarks(held_out)],
    }
