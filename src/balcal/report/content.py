"""Everything that a page tells of one model, gathered from its run, or from predictions alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError, Outputs, Predictions, Record
from balcal.data.dataset import ImageSet
from balcal.evaluation.judge import branch_predictions, calibrated_predictions, load_splits
from balcal.methods.vanilla import Identity
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.numbers import confident_mistakes
from balcal.plots.shift import outside_sets
from balcal.plots.sources import stored
from balcal.recipe import describe, flattened
from balcal.runs import Run
from balcal.runtime.devices import pick_device

MISTAKES = 18
SIDE = 96
"""pixels: larger images are shown smaller"""
BRANCHES = ("the learnable classifier", "the fixed ETF classifier")


@dataclass(frozen=True)
class Mistake:
    """A wrong answer, given with confidence; its image as a data address."""

    says: int
    confidence: float
    label: int
    image: str


@dataclass(frozen=True, eq=False)
class View:
    """The model as it was trained, or after a post-hoc map."""

    key: str
    title: str
    predictions: Predictions
    verdict: Verdict
    note: str = ""
    shift: dict[str, Any] | None = None
    ood: dict[str, Any] | None = None
    outside: dict[str, Predictions] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Story:
    """`facts` are (title, value) pairs for the small print; `notes` say what could not be shown, and why."""

    name: str
    kicker: str
    classes: Sequence[str]
    views: list[View]
    branches: dict[str, Predictions] = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)
    chosen: int = 0
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    roles: dict[str, Any] | None = None
    command: str = ""
    notes: list[str] = field(default_factory=list)


def story_of_predictions(predictions: Predictions, name: str, classes: Sequence[str] | None = None) -> Story:
    """Of arrays that somebody brought."""
    names = classes or [f"class {k}" for k in range(predictions.log_probs.shape[1])]
    return Story(name, "predictions", names, [View("trained", "as they are", predictions, verdict(predictions))])


def story_of_run(run: Run, posthoc: str = "ts", device: str | None = None) -> Story:
    """Of a finished run, as trained and after a post-hoc method."""
    with run.in_use():
        return _story_of_run(run, posthoc, pick_device(device))


def _story_of_run(run: Run, posthoc: str, place: torch.device) -> Story:
    recipe, history, notes = run.recipe, run.ending().history, list[str]()
    dataset = registry.dataset(recipe.task.dataset)
    _, test, _ = calibrated_predictions(run, as_method(recipe.method), place)
    views = [_view(run, "trained", "as trained", test, Identity(), None)]
    try:
        fitted, after, _ = calibrated_predictions(run, as_method(recipe.method + registry.method(posthoc)), place)
        title = "after temperature scaling" if posthoc == "ts" else f"after {posthoc}"
        views.append(_view(run, "after", title, after, fitted, posthoc))
    except BalcalError as error:
        notes.append(f"There is no view after {posthoc}: {error}.")
    branches: dict[str, Predictions] = {}
    try:
        told = branch_predictions(run, place)
        names = BRANCHES if len(told) == 2 else tuple(f"branch {n}" for n in range(1, len(told) + 1))
        branches = dict(zip(names, told, strict=True))
    except BalcalError as error:
        notes.append(f"The classifiers are not shown one by one: {error}.")
    try:
        test_images = load_splits(recipe.task).test
        views = [replace(view, mistakes=_mistakes(view.predictions, test_images)) for view in views]
    except BalcalError as error:
        notes.append(f"No images are shown: {error}.")
    epoch = as_method(recipe.method).select(history)
    return Story(
        name=recipe.method.name,
        kicker=f"{recipe.task.name} · seed {recipe.seed} · epoch {epoch + 1} of {len(history)}",
        classes=dataset.classes,
        views=views,
        branches=branches,
        history=history,
        chosen=epoch,
        facts=_facts(run),
        roles=run.data(),
        command=f"balcal train {recipe.task.name} {recipe.method.name} --seed {recipe.seed}"
        + "".join(f" --set {each}" for each in recipe.overrides),
        notes=notes,
    )


def _view(run: Run, key: str, title: str, told: Predictions, fitted: nn.Module, posthoc: str | None) -> View:
    sets: dict[str, Predictions] = {}
    if posthoc is None or not registry.method(posthoc).posthoc.reads_branches:
        with torch.no_grad():
            sets = {
                name: replace(each, log_probs=fitted(Outputs.of(each.log_probs)))
                for name, each in outside_sets(run).items()
            }
    numbers = {name: value.item() for name, value in fitted.state_dict().items() if value.numel() == 1}
    note = ", ".join(f"{name} {value:.3f}" for name, value in numbers.items())
    return View(
        key,
        title,
        told,
        verdict(told),
        note,
        shift=stored(run, "shift", posthoc),
        ood=stored(run, "ood", posthoc),
        outside=sets,
    )


def _mistakes(predictions: Predictions, test: ImageSet) -> list[Mistake]:
    if not torch.equal(test.labels.cpu().long(), predictions.labels.long()):
        raise BalcalError("the test images are not those that the predictions are of")
    found = confident_mistakes(predictions, MISTAKES)
    images = test.pick(torch.tensor([i for i, _, _ in found], dtype=torch.long)).cpu().numpy() if found else ()
    return [
        Mistake(says, confidence, int(predictions.labels[i]), _address(pixels))
        for (i, says, confidence), pixels in zip(found, images, strict=True)
    ]


def _address(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """The image itself, as an address that needs no network."""
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _facts(run: Run) -> dict[str, dict[str, str]]:
    """Recipe and environment, in pairs."""
    return {
        "Recipe": flattened(describe(run.recipe)) | {"fingerprint": run.fingerprint},
        "Environment": flattened(run.environment()) | {"run": str(run.path)},
    }
