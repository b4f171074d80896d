"""The card of a model that `balcal.wrap` made of a user's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from balcal.build import posthoc_of
from balcal.core import BalcalError, Predictions
from balcal.metrics.verdict import verdict
from balcal.model import Model
from balcal.runtime.names import in_markdown
from balcal.runtime.provenance import describe


class Card(dict[str, Any]):
    """A card as plain data; `str(card)` is Markdown."""

    def __str__(self) -> str:
        figures, dials = self["calibration"], self["dials"]
        lines = [f"# {self['what']}", "", f"Made by balcal {self['balcal']}.", ""]
        lines += [f"- **Classes** {', '.join(map(in_markdown, self['classes']))}"]
        lines += [f"- **Fusion** {self['fusion']}; **gamma or beta** {dials or 'none'}"]
        solved = self["solved_on"]
        if solved:
            known = "" if math.isnan(solved["samples"]) else f"{solved['samples']:,g} "
            lines += [f"- **Solved on** {known}{solved['split']} samples"]
        after = self["posthoc"]
        lines += [f"- **After training** {after['name'] if after else 'nothing'}"]
        if figures is None:
            return "\n".join([*lines, "", "Calibration was not measured: pass predictions= for test data."]) + "\n"
        lines += ["", "| on test data | | 95 % interval |", "|---|---|---|", f"| samples | {figures['samples']:,} | |"]
        for name, title in (("accuracy", "accuracy"), ("ece", f"ECE, {figures['bins']} bins")):
            low, high = figures[f"{name}_interval"]
            lines += [f"| {title} | {figures[name]:.2%} | [{low:.2%}, {high:.2%}] |"]
        lines += [f"| mean confidence | {figures['mean_confidence']:.2%} | |"]
        lines += [f"| ECE of a perfect model | {figures['floor_mean']:.2%} | up to {figures['floor_high']:.2%} |"]
        return "\n".join(lines) + "\n"


def card(model: Model, predictions: Predictions | None = None, classes: Sequence[str] | None = None) -> Card:
    """What a user of the model should know: method, gamma and what it was solved on, calibration on test data.

    Parameters
    ----------
    model
        A model of `balcal.wrap`.
    predictions
        Of test data; without them the card says that calibration was not measured.
    classes
        The names of the classes.

    >>> from torch import nn
    >>> from balcal.build import wrap
    >>> found = card(wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 3, "balcal"))
    >>> found["dials"], found["classes"]
    ({'gamma': 0.5, 'beta': 1.0, 'delta': 0.95}, ['0', '1', '2'])
    """
    from balcal import __version__

    if not isinstance(model, Model):
        raise BalcalError(f"a card is of a model of balcal.wrap, not of a {type(model).__name__}")
    names = [str(each) for each in classes] if classes is not None else [str(k) for k in range(model.num_classes)]
    if len(names) != model.num_classes:
        raise BalcalError(f"there are {len(names)} names for {model.num_classes} classes")
    head = model.head
    refitted = getattr(model.posthoc, "gamma", None)
    dials = {name: round(float(getattr(head, name)), 6) for name in ("gamma", "beta", "delta") if hasattr(head, name)}
    if refitted is not None and not math.isnan(refitted):  # after training, in place of the head's own
        dials["gamma"] = round(float(refitted), 6)
    return Card(
        what=f"{type(getattr(model.backbone, 'network', model.backbone)).__name__} trained by {model.method.name}",
        balcal=__version__,
        classes=names,
        method=describe(model.method),
        dials=dials,
        fusion=head.fusion,
        solved_on=model.solved_on,
        posthoc=posthoc_of(model.method.posthoc),
        calibration=None if predictions is None else verdict(predictions).as_dict(),
    )
