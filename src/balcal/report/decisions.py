"""The section "When may it act?": a slider over the threshold, and thresholds with a promise."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from balcal.core import BalcalError
from balcal.decisions import Threshold, prediction_sets, threshold
from balcal.decisions.search import steps as accepted_at
from balcal.evaluation.promises import Checked, check_threshold
from balcal.metrics.exact import clopper_pearson
from balcal.metrics.inputs import read_predictions
from balcal.report.content import Content, View
from balcal.report.page import Section, fill
from balcal.report.svg import FIFTHS, Frame, pct, tag, ticks, whole

POINTS = 300
"""positions of the slider"""
TARGETS = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Step:
    """One position of the slider."""

    threshold: float
    coverage: float
    accuracy: float
    low: float
    high: float
    wrong: int


@dataclass(frozen=True)
class Slider:
    """All positions, as JSON for the script, and the chart that they move over."""

    steps: str
    last: int
    first: int
    """where it stands when the page opens"""
    at: Step
    chart: Markup


@dataclass(frozen=True)
class Promised:
    """A row of the table of thresholds."""

    target: float
    found: Threshold
    checked: Checked
    step: int
    """the slider's position nearest to it"""


def positions(view: View) -> list[Step]:
    """From the most confident samples to all of them, at distinct confidences."""
    top = read_predictions(view.predictions).top()
    conf, right = top.conf.numpy(), top.right.numpy()
    order, sizes = accepted_at(conf)
    hits = np.cumsum(right[order])
    picked = np.unique(np.linspace(0, len(sizes) - 1, min(POINTS, len(sizes))).round().astype(int))
    made = []
    for k in sizes[picked]:
        low, high = clopper_pearson(int(hits[k - 1]), int(k))
        share = float(hits[k - 1]) / int(k)
        made.append(Step(float(conf[order[k - 1]]), int(k) / len(conf), share, low, high, int(k) - int(hits[k - 1])))
    return made


def slider(made: list[Step], promised: list[Promised]) -> Slider:
    found = [row for row in promised if row.found.threshold is not None]
    first = found[-1].step if found else len(made) // 2
    xs, shares = [step.coverage for step in made], [step.accuracy for step in made]
    seen = [step for step in made if step.coverage >= 0.02] or made
    bottom = min(step.low for step in seen)
    frame = Frame(640, 210, left=50, y=(max(0.0, bottom - 0.02), 1.0))
    lows, highs = ([max(frame.y[0], getattr(step, end)) for step in made] for end in ("low", "high"))
    x = frame.px(made[first].coverage)
    chart = frame.picture(
        "Accuracy among accepted samples, by their share",
        frame.up(ticks(*frame.y), whole, "how often the accepted are right"),
        frame.across(FIFTHS, whole, "share of samples accepted, the surest first"),
        frame.area(xs, lows, highs, "band"),
        frame.line(xs, [max(frame.y[0], share) for share in shares], "s1"),
        tag("line", x1=x, x2=x, y1=frame.py(frame.y[0]), y2=frame.py(1.0), class_="now"),
    )
    rows = [
        [
            *(round(v, 7) for v in (s.threshold, s.coverage, s.accuracy, s.low, s.high)),
            round(frame.px(s.coverage), 1),
            s.wrong,
        ]
        for s in made
    ]
    return Slider(json.dumps(rows), len(made) - 1, first, made[first], chart)


def promises(view: View, made: list[Step]) -> list[Promised]:
    """Thresholds from held-out predictions, if there are any, checked on the test split."""
    if view.held_out is None:
        return []
    rows = []
    for target in TARGETS:
        found = threshold(view.held_out, accuracy=target)
        limit = found.threshold if isinstance(found.threshold, float) else 1.0
        step = min(range(len(made)), key=lambda i: (made[i].threshold < limit, abs(made[i].threshold - limit)))
        rows.append(Promised(target, found, check_threshold(found, view.predictions), step))
    return rows


def sets(view: View) -> str:
    """A sentence on prediction sets."""
    if view.held_out is None:
        return ""
    try:
        fitted = prediction_sets(view.held_out)
    except BalcalError as error:
        return f"No prediction sets: {error}."
    report = fitted.evaluate(log_probs=view.predictions.log_probs, labels=view.predictions.labels)
    low, high = (pct(end) for end in report.coverage_interval)
    return (
        f"Prediction sets that promise to hold the label in {pct(report.promised, 0)} do so in {pct(report.coverage)} "
        f"[{low}, {high}] of the test samples, with {report.mean_size:.2f} classes on average."
    )


def act_section(content: Content) -> Markup:
    shown = {}
    for view in content.views:
        made = positions(view)
        promised = promises(view, made)
        shown[view.key] = (slider(made, promised), promised, sets(view))
    return fill("act.html", content=content, shown=shown)


SECTIONS = (Section("When may it act?", 22, act_section),)
