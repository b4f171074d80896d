"""From a story to one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound
from markupsafe import Markup

from balcal.core import Predictions
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.numbers import class_table, confidence_table, confusions, coverage_table, reliability_table
from balcal.report import predictions as charts
from balcal.report import shift as beyond
from balcal.report import training as epochs
from balcal.report.content import Story, View
from balcal.report.svg import pct, shown
from balcal.runtime.files import write_atomic

CONFUSIONS = 11
POINTS = 240
"""of a risk-coverage curve: more cannot be told apart on a screen"""


def write_page(content: str, path: Path) -> int:
    """How many bytes it has."""
    written = content.encode()
    write_atomic(path, written)
    return len(written)


def run_page(story: Story) -> str:
    return render(
        "run.html",
        title=f"{story.name}: {story.kicker}",
        story=story,
        views=[_view(view, story) for view in story.views],
        branches=[_branch(name, told) for name, told in story.branches.items()],
        epochs=epochs.epoch_charts(story.history, story.chosen) if story.history else [],
        explained=explained,
    )


def _view(view: View, story: Story) -> dict[str, Any]:
    """A view with its charts drawn."""
    told, judged = view.predictions, view.verdict
    table, by_class = reliability_table(told), class_table(told)
    drawn: dict[str, Any] = {
        "view": view,
        "judged": judged,
        "headline": _upper(judged.sentence()).replace(" %", "\N{NO-BREAK SPACE}%"),
        "ruler": charts.ece_ruler(judged),
        "reliability": charts.reliability(table),
        "bins": table,
        "histogram": charts.confidence_histogram(confidence_table(told)),
        "coverage": charts.coverage(coverage_table(told, POINTS)),
        "classes": charts.classes(by_class, story.classes),
        "by_class": by_class,
        "shown_classes": min(charts.MOST_CLASSES, int((by_class.count > 0).sum())),
        "confusions": confusions(told, CONFUSIONS),
        "shift": None,
        "outside": beyond.outside(view.outside) if len(view.outside) > 1 else None,
    }
    if view.shift:
        lines = {what: beyond.shift_lines(view.shift, what, judged) for what in ("accuracy", "ece")}
        drawn["shift"] = lines | {"cells": beyond.shift_cells(view.shift)}
    return drawn


def _branch(name: str, told: Predictions) -> dict[str, Any]:
    judged: Verdict = verdict(told)
    picture = charts.reliability(reliability_table(told), small=True, about=f"Reliability of {name}")
    return {"name": name, "judged": judged, "svg": picture}


def explained(judged: Verdict) -> str:
    """The verdict in a sentence for people who have not met ECE."""
    says, is_right = pct(judged.mean_confidence), pct(judged.accuracy)
    return f"On {judged.samples:,} test samples it says {says} on average, and is right in {is_right}."


def _upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def render(template: str, **values: Any) -> str:
    """Every value is escaped, unless our own charts made it; nothing on the page may call anywhere."""
    script = _part("script.js")
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    page = _environment().get_template(template)
    return page.render(style=Markup(_part("style.css")), script=Markup(script), policy=Markup(policy), **values)


class _Templates(BaseLoader):
    """Those in the package, wherever it was unpacked."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:
        try:
            return _part(template), None, lambda: True
        except OSError:
            raise TemplateNotFound(template) from None


def _part(name: str) -> str:
    return files("balcal.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=_Templates(),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"pct": pct, "upper_first": _upper}
    return made
