"""What a page shows of one model, gathered from its run, or from predictions alone."""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from balcal import registry
from balcal.build import as_method, spec_of
from balcal.core import BalcalError, Outputs, Predictions, Record
from balcal.data.dataset import Dataset, ImageSet
from balcal.evaluation.judge import branch_predictions, calibrated_predictions, load_splits
from balcal.evaluation.members import members_of
from balcal.evaluation.promises import held_out_and_test
from balcal.methods.joining import maps_networks
from balcal.methods.parts.fitted_map import explained
from balcal.methods.vanilla import Identity
from balcal.metrics.decomposition import Map, Recalibrate
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.numbers import confident_mistakes
from balcal.plots.shift import ood_sets, stored_figures
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.runtime.provenance import FigureFile, describe, flattened

MISTAKES = 18
SIDE = 96
"""pixels: larger images are shown smaller"""
BRANCHES = ("the learnable classifier", "the fixed ETF classifier")


@dataclass(frozen=True)
class Mistake:
    """A confident wrong prediction."""

    says: int
    """the predicted class"""
    confidence: float
    label: int
    image: str
    """as a data URL"""


@dataclass(frozen=True, eq=False)
class View:
    """The model as it was trained, or after a post-hoc map."""

    key: str
    title: str
    predictions: Predictions
    verdict: Verdict
    note: str = ""
    """fitted parameters of the post-hoc map"""
    shift: dict[str, Any] | None = None
    """figures of `balcal evaluate --shift`"""
    ood: dict[str, Any] | None = None
    """figures of `balcal evaluate --ood`"""
    ood_sets: dict[str, Predictions] = field(default_factory=dict)
    """of the test split (the first) and of each OOD set"""
    mistakes: list[Mistake] = field(default_factory=list)
    held_out: Predictions | None = None
    """of the calibration split, to choose thresholds on"""


@dataclass(frozen=True, eq=False)
class Content:
    """All that the sections of a page are made from. A section that needs more reads it from `run`."""

    name: str
    kicker: str
    """the line above the headline"""
    classes: Sequence[str]
    views: list[View]
    run: Run | None = None
    """None: there are only predictions"""
    branches: dict[str, Predictions] = field(default_factory=dict)
    """of each classifier of the head alone, where there are several"""
    history: list[Record] = field(default_factory=list)
    chosen: int = 0
    """the epoch, counted from 0"""
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    """tables of names and values, by title"""
    data: dict[str, Any] | None = None
    """the manifest of the run's data"""
    command: str = ""
    """that trains the same run"""
    notes: list[str] = field(default_factory=list)
    """what could not be shown, and why"""
    source: str = ""
    """the file that the predictions are from, as one types it"""
    wrong_labels: str = ""
    """what is known about wrong test labels"""


def content_of_predictions(
    predictions: Predictions, name: str, classes: Sequence[str] | None = None, source: str = ""
) -> Content:
    """Content from predictions alone; `source`: the file that they are from."""
    k = predictions.log_probs.shape[1]
    if classes is not None and len(classes) != k:
        raise BalcalError(f"there are {len(classes)} names for {k} classes")
    view, names = View("trained", "as they are", predictions, detailed(predictions)), classes or _numbered(k)
    return Content(name, "predictions", names, [view], source=shlex.quote(source) if source else "")


def _numbered(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def detailed(predictions: Predictions) -> Verdict:
    """The verdict with its details."""
    return verdict(predictions, details=True, recalibrate=recalibrations(*predictions.log_probs.shape))


def recalibrations(samples: int, classes: int) -> dict[str, Recalibrate | None]:
    """What recalibration gains is measured by the better of `ts` and `svs`; `svs` only where that takes seconds."""
    return {"ts": None} | ({"svs": scaling("svs")} if samples >= 100 and classes <= 256 else {})


def scaling(name: str) -> Recalibrate:
    """A post-hoc method as `decomposition` takes it."""

    def fit(log_probs: Tensor, labels: Tensor, weights: Tensor | None) -> Map:
        fitted = spec_of(name).fit(Outputs.of(log_probs), labels, weights)
        return lambda asked: cast(Tensor, fitted(Outputs.of(asked)))

    return fit


def content_of_run(run: Run, posthoc: str = "ts", device: str | None = None) -> Content:
    """Content from a finished run, as trained and after a post-hoc method."""
    with run.in_use():
        return _content_of_run(run, posthoc, pick_device(device))


def _content_of_run(run: Run, posthoc: str, device: torch.device) -> Content:
    recipe, history, notes = run.recipe, run.ending().history, list[str]()
    dataset = registry.dataset(recipe.task.dataset)
    _, test, _ = calibrated_predictions(run, as_method(recipe.method), device)
    held_out, _ = held_out_and_test(run, as_method(recipe.method), device)
    views = [replace(_view(run, "trained", "as trained", test, Identity(), None), held_out=held_out)]
    try:
        more = as_method(recipe.method + registry.method(posthoc))
        fitted, after, _ = calibrated_predictions(run, more, device)
        title = "after temperature scaling" if posthoc == "ts" else f"after {posthoc}"
        title += f" ({explained(fitted)['chosen']})" if explained(fitted) else ""
        held_out, _ = held_out_and_test(run, more, device)
        views.append(replace(_view(run, "after", title, after, fitted, posthoc), held_out=held_out))
    except BalcalError as error:
        notes.append(f"There is no view after {posthoc}: {error}.")
    branches: dict[str, Predictions] = {}
    try:
        found = branch_predictions(run, device)
        names = BRANCHES if len(found) == 2 else tuple(f"branch {n}" for n in range(1, len(found) + 1))
        if parts := members_of(run, recipe.method):
            names = tuple(
                f"seed {member.recipe.seed}, epoch {how.select(member.history()) + 1}" for member, how in parts
            )
        branches = dict(zip(names, found, strict=True))
    except BalcalError as error:
        notes.append(f"The classifiers are not shown one by one: {error}.")
    try:
        test_images = load_splits(recipe.task).test
        views = [replace(view, mistakes=_mistakes(view.predictions, test_images)) for view in views]
    except BalcalError as error:
        notes.append(f"No images are shown: {error}.")
    epoch, joined = as_method(recipe.method).select(history), recipe.method.join is not None
    return Content(
        name=recipe.method.name,
        kicker=f"{recipe.task.name} · seed {recipe.seed} · "
        + (f"{len(branches)} runs joined" if joined else f"epoch {epoch + 1} of {len(history)}"),
        classes=_class_names(dataset),
        views=views,
        run=run,
        branches=branches,
        history=[] if joined else history,
        chosen=epoch,
        facts=_facts(run),
        data=run.data(),
        command=f"balcal train {recipe.task.name} {recipe.method.name} --seed {recipe.seed}"
        + "".join(f" --set {each}" for each in recipe.overrides),
        notes=notes,
        wrong_labels=_wrong_labels(dataset),
    )


def _class_names(dataset: Dataset) -> Sequence[str]:
    """As its files say, if they are there."""
    try:
        return dataset.names() if dataset.names else dataset.classes
    except BalcalError:
        return dataset.classes


def _wrong_labels(dataset: Dataset) -> str:
    """Only where somebody has counted them."""
    if dataset.wrong_labels is None:
        return ""
    share, who = dataset.wrong_labels
    return (
        f"About {share * 100:g}\N{NO-BREAK SPACE}% of these test labels are wrong ({who}), so it may be right in some."
    )


def _view(run: Run, key: str, title: str, test: Predictions, fitted: nn.Module, posthoc: str | None) -> View:
    sets: dict[str, Predictions] = {}
    if posthoc is None or not maps_networks(as_method(run.recipe.method + registry.method(posthoc))):
        with torch.no_grad():
            sets = {
                name: replace(each, log_probs=fitted(Outputs.of(each.log_probs)))
                for name, each in ood_sets(run).items()
            }
    state = {name: value for name, value in fitted.state_dict().items() if name != "uniform" and value.numel() == 1}
    note = explained(fitted).get("why", ", ".join(f"{name} {value.item():.3f}" for name, value in state.items()))
    return View(
        key,
        title,
        test,
        detailed(test),
        note,
        shift=stored_figures(run, FigureFile.SHIFT, posthoc),
        ood=stored_figures(run, FigureFile.OOD, posthoc),
        ood_sets=sets,
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
    """The image as a data URL, which needs no network."""
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _facts(run: Run) -> dict[str, dict[str, str]]:
    """Recipe and environment, as names and values."""
    return {
        "Recipe": flattened(describe(run.recipe)) | {"fingerprint": run.fingerprint},
        "Environment": flattened(run.environment()) | {"run": str(run.path)},
    }
