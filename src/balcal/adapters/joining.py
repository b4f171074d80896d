"""Join one's own models: `join` several into their mean, `tta` one over views of its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from balcal.build import average
from balcal.core import BalcalError
from balcal.methods.joining import Seeds
from balcal.methods.parts.average import Members, Viewed
from balcal.methods.tta import FlipsAndShifts
from balcal.methods.vanilla import VANILLA
from balcal.model import Model
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_value


def join(models: Sequence[nn.Module], num_classes: int | None = None, name: str | None = None) -> Model:
    """Join classifiers into one model: the mean of their probabilities.

    The result is a model like any other: `balcal.predict`, `calibrate`, `report`, `export` and `save` take it. To fit a
    temperature, do it after joining: `balcal.calibrate(balcal.join(models), loader, "ts")`.

    Parameters
    ----------
    models
        Models of `balcal.wrap` or `balcal.load`, or any modules that return logits or log-probabilities (N, K). They
        are not copied.
    num_classes
        K; needed if no model is of `balcal.wrap`.
    name
        What reports call it.

    >>> import torch
    >>> one, two = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> joined, x = join([one, two], num_classes=3), torch.randn(5, 4)
    >>> mean = (one(x).softmax(1) + two(x).softmax(1)) / 2
    >>> torch.allclose(joined(x).exp(), mean)
    True
    """
    found = list(models) if isinstance(models, Sequence | nn.ModuleList) else None
    if not found or not all(isinstance(model, nn.Module) for model in found):
        raise BalcalError("join takes a list of models, balcal.join([model, ...]), and at least one")
    known = {model.num_classes for model in found if isinstance(model, Model)}
    known |= {check_value("num_classes", num_classes, int, at_least(2))} if num_classes is not None else set()
    if not known:
        raise BalcalError("join cannot know how many classes these modules have: pass num_classes=")
    if len(known) > 1:
        raise BalcalError(f"models of {' and '.join(map(str, sorted(known)))} classes cannot be joined")
    (classes,) = known
    named = [model.method.name for model in found if isinstance(model, Model)]
    alike = len(named) == len(found) and len(set(named)) == 1
    usual = f"{len(found)}*{named[0]}" if alike else f"{len(found)} models"
    return average(Members(found, classes), classes, _method(name or usual, join=Seeds(max(2, len(found)))))


def tta(model: nn.Module, flip: bool = True, shift: int = 1, num_classes: int | None = None) -> Model:
    """Make a model that looks at several views of each image: the mean of its probabilities over them.

    Parameters
    ----------
    model
        A model of `balcal.wrap`, `balcal.load` or `balcal.join`, or any module from images (N, C, H, W) to logits.
    flip
        Also look at the image flipped from left to right. Not for digits, letters or road signs.
    shift
        Also look at the image shifted by so many pixels in each direction; 0: no shifts.
    num_classes
        K; needed if the model is not of `balcal.wrap`.

    >>> import torch
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> model, x = tta(network, shift=0, num_classes=3), torch.randn(5, 1, 4, 4)
    >>> mean = (network(x).softmax(1) + network(x.flip(-1)).softmax(1)) / 2
    >>> torch.allclose(model(x).exp(), mean)
    True
    """
    classes = model.num_classes if isinstance(model, Model) else num_classes
    if classes is None:
        raise BalcalError("tta cannot know how many classes this module has: pass num_classes=")
    views = FlipsAndShifts(flip, shift)
    name = f"{model.method.name}+tta" if isinstance(model, Model) else "tta"
    return average(Viewed(model, views, flip, int(classes)), int(classes), _method(name, views=views))


def _method(name: str, **roles: Any) -> Method:
    return Method(name, **roles).filled(VANILLA)
