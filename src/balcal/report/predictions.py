"""Sections and charts of predictions. Charts draw the numbers of `plots/numbers.py`, and show them on hover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from balcal.core import Predictions
from balcal.metrics.details import p_value
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.numbers import (
    Classes,
    Confidences,
    Coverage,
    Reliability,
    class_table,
    confidence_table,
    confusions,
    coverage_table,
    finite,
    reliability_table,
)
from balcal.plots.style import FEW
from balcal.report.content import Content, View
from balcal.report.page import Section, fill
from balcal.report.svg import FIFTHS, Frame, group, pct, ticks, whole

MOST_CLASSES = 24
MOST_BRANCHES = 5
CONFUSIONS = 11
POINTS = 240
"""of a risk-coverage curve: more cannot be seen on a screen"""
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""confidences that are marked on it"""
MISTAKES = """
<p class="lead">Wrong, and sure of it.{% if content.wrong_labels %} {{ content.wrong_labels }}{% endif %}</p>
{% call(view) each_view(content.views) %}
<div class="mistakes">
{% for m in view.mistakes %}
{% set says, label = content.classes[m.says], content.classes[m.label] %}
  <figure><img src="{{ m.image }}" alt="{{ label }}, taken for {{ says }}">
  <figcaption>says <b>{{ says }}</b><br>{{ m.confidence|pct }}, is {{ label }}</figcaption></figure>
{% endfor %}
</div>
{% endcall %}
"""


def ece_ruler(found: Verdict) -> Markup:
    """ECE with its interval, beside what a perfect model scores."""
    top = max(found.ece_interval[1], found.floor_high, found.ece) * 1.12 or 0.01
    frame = Frame(350, 84, x=(0, top), left=8, right=14, top=10, bottom=38)
    floor = (
        f"a perfect model with these confidences scores {pct(found.floor_mean, 2)} on average,\n"
        f"up to {pct(found.floor_high, 2)} one time in forty"
    )
    tip = f"ECE {pct(found.ece, 2)}, 95 % interval {pct(found.ece_interval[0], 2)} to {pct(found.ece_interval[1], 2)}"
    colour = {"perfect": "calm", "few": "calm", "under": "under"}.get(found.kind, "over")
    return frame.picture(
        f"{tip}; {floor}",
        frame.box((0, found.floor_high), (0, 1), "floor", floor),
        frame.rule((found.floor_mean, found.floor_mean), (0, 1), "floor-mean"),
        frame.across(ticks(0, top, 6), whole),
        frame.box(found.ece_interval, (0.4, 0.6), f"interval {colour}", tip),
        frame.dot(found.ece, 0.5, f"mark {colour}", 7, tip),
        frame.word(frame.left, 82, "grey: perfect models", "name"),
        frame.word(frame.width - frame.right, 82, "ECE", "name", text_anchor="end"),
    )


def reliability(table: Reliability, small: bool = False, about: str = "") -> Markup:
    """Bars of accuracy, coloured gaps, a whisker for perfect models; below it, how many samples each bin has."""
    bins = table.bins
    frame = Frame(300, 274, left=42) if small else Frame(460, 470)
    drawn = []
    for k in np.flatnonzero(table.count):
        low, high, n = k / bins, (k + 1) / bins, int(table.count[k])
        conf, acc = float(table.confidence[k]), float(table.accuracy[k])
        gap = float(table.gap[k])
        tip = (
            f"says {pct(low, 0)} to {pct(high, 0)}: {n:,} sample{'s' * (n != 1)}\n"
            f"mean confidence {pct(conf)}, right {pct(acc)}\n"
            f"{'over-confident' if gap > 0 else 'under-confident'} by {abs(gap) * 100:.1f} points\n"
            f"a perfect model: {pct(table.low[k], 0)} to {pct(table.high[k], 0)} right"
        )
        inset, middle = 0.06 / bins, (low + high) / 2
        across = (low + inset, high - inset)
        shapes = [
            frame.box(across, (0, acc), "bar"),
            frame.box(across, (acc, conf), "over" if gap > 0 else "under"),
            frame.rule((middle, middle), (float(table.low[k]), float(table.high[k])), "whisker"),
            frame.rule(across, (acc, acc), "cap"),
            frame.box((low, high), (0, 1), "hit"),
        ]
        drawn.append(group(*shapes, class_="column" + (" few" if n < FEW else ""), data_tip=tip))
    some = FIFTHS if not small else (0, 0.5, 1)
    diagram = [
        frame.up(some, whole, "how often it is right"),
        frame.across(some, whole, "confidence"),
        frame.rule((0, 1), (0, 1), "diagonal"),
        *drawn,
    ]
    about = about or "Reliability diagram: how often it is right, by confidence"
    if small:
        return frame.picture(about, *diagram)
    counts = Frame(460, 86, y=(float(table.count.max()), 0), top=4, bottom=22)
    bars = [
        counts.box(
            ((k + 0.06) / bins, (k + 0.94) / bins),
            (0, float(table.count[k])),
            "count",
            f"{int(table.count[k]):,} samples say {pct(k / bins, 0)} to {pct((k + 1) / bins, 0)}",
        )
        for k in np.flatnonzero(table.count)
    ]
    name = counts.word(counts.left, 80, f"samples in each bin, at most {int(table.count.max()):,}", "name")
    return frame.picture(about, *diagram) + counts.picture("How many samples say so", *bars, name)


def confidence_histogram(table: Confidences) -> Markup:
    """Two rows: confidence when right, and when wrong."""
    drawn = []
    for class_, values, share in (
        ("right", table.right, table.right_share),
        ("wrong", table.wrong, table.wrong_share),
    ):
        total, top, last = int(values.sum()), max(float(share.max()), 1e-9) * 1.08, class_ == "wrong"
        frame = Frame(460, 160 if last else 140, y=(0, top), bottom=40 if last else 20)
        bars = [
            frame.box(
                (low + 0.003, high - 0.003),
                (0, float(y)),
                class_,
                f"{n:,} {class_} answers ({pct(y)} of them)\nsay {pct(low, 0)} to {pct(high, 0)}",
            )
            for low, high, y, n in zip(table.edges, table.edges[1:], share, values, strict=False)
            if n
        ]
        axes = frame.up(ticks(0, top, 2), whole, f"share of the {total:,} {class_} answers")
        axes += frame.across(FIFTHS, whole, "confidence" if last else "")
        drawn.append(frame.picture(f"Confidence when {class_}, {total} samples", axes, *bars))
    return Markup("").join(drawn)


def coverage(table: Coverage) -> Markup:
    """Error among the most confident answers, and the error that their confidence claims."""
    top = max(float(table.risk.max()), float(table.claimed.max())) * 1.06 or 0.01
    frame = Frame(y=(0, top))
    points = np.unique(np.linspace(0, len(table.coverage) - 1, 60).astype(int))
    tips = [
        f"the surest {pct(table.coverage[i], 0)} (confidence from {pct(table.threshold[i])} on)\n"
        f"wrong: {pct(table.risk[i], 2)}\nit expects: {pct(table.claimed[i], 2)}"
        for i in points
    ]
    return frame.picture(
        "Risk by coverage",
        frame.up(ticks(0, top), whole, "errors among what is answered"),
        frame.across(FIFTHS, whole, "share of samples answered, the surest first"),
        frame.line(table.coverage.tolist(), table.claimed.tolist(), "claimed"),
        frame.line(table.coverage.tolist(), table.risk.tolist(), "risk"),
        *_thresholds(frame, table),
        frame.strips(table.coverage[points].tolist(), tips),
    )


def _thresholds(frame: Frame, table: Coverage) -> list[Markup]:
    """Confidence thresholds on the risk curve: what is answered from each on. None stands close to another."""
    drawn, last = list[Markup](), 1.0
    for limit in THRESHOLDS:
        accepted = np.flatnonzero(table.threshold >= limit)
        if not len(accepted):
            break
        x, y = float(table.coverage[accepted[-1]]), float(table.risk[accepted[-1]])
        if last - x < 0.1 or x < 0.12:
            continue
        shown = f"\N{GREATER-THAN OR EQUAL TO}\N{NO-BREAK SPACE}{pct(limit, 0)}"
        word = frame.word(frame.px(x) - 5, frame.py(y) - 7, shown, "label limit", text_anchor="end")
        drawn.append(group(frame.dot(x, y, "dot at", 3.5), word))
        last = x
    return drawn


def classes(table: Classes, names: Sequence[str]) -> Markup:
    """Mean confidence and accuracy of what is predicted as each class, from over-confident to under-confident."""
    shown = table.worst(MOST_CLASSES)
    low = min(finite([*table.low[shown], *table.confidence[shown]]), default=0.0)
    start = max(0.0, float(np.floor(low * 20 - 0.5)) / 20)
    height, room = 26.0, 118.0
    frame = Frame(460, height * len(shown) + 44, x=(start, 1), left=room, top=4, y=(len(shown), 0))
    rows = []
    for y, k in enumerate(shown):
        conf, acc, n = float(table.confidence[k]), float(table.accuracy[k]), int(table.count[k])
        tip = (
            f"{names[k]}: predicted {n:,} times\nmean confidence {pct(conf)}\n"
            f"right {pct(acc)} [{table.low[k] * 100:.1f}, {table.high[k] * 100:.1f}]"
        )
        middle = y + 0.5
        shapes = [
            frame.box((start, 1), (y, y + 1), "hit"),
            frame.box((float(table.low[k]), float(table.high[k])), (y + 0.32, y + 0.68), "doubt"),
            frame.rule((acc, conf), (middle, middle), "link " + ("over" if conf > acc else "under")),
            frame.dot(acc, middle, "dot", 4.5),
            frame.dot(conf, middle, "ring", 4.5),
            frame.word(room - 10, frame.py(middle) + 4, _cut(names[k]), "label", text_anchor="end"),
        ]
        rows.append(group(*shapes, class_="row", data_tip=tip))
    scale = ticks(start, 1, 5)
    lines = [frame.rule((t, t), frame.y, "grid") for t in scale]
    axis = frame.across(scale, whole, "confidence, and how often it is right")
    return frame.picture("Confidence and accuracy by predicted class", *lines, *rows, axis)


def _cut(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def verdict_header(content: Content) -> Markup:
    return fill(
        "verdict.html", content=content, ruler=ece_ruler, headline=_headline, explained=_explained, p_value=p_value
    )


def _headline(found: Verdict) -> str:
    sentence = found.sentence().replace(" %", "\N{NO-BREAK SPACE}%")
    return sentence[:1].upper() + sentence[1:]


def _explained(found: Verdict) -> str:
    """The verdict in a sentence for people who have not met ECE."""
    says, is_right = pct(found.mean_confidence), pct(found.accuracy)
    return f"On {found.samples:,} test samples it says {says} on average, and is right in {is_right}."


@dataclass(frozen=True)
class Branch:
    """One classifier of the head alone."""

    name: str
    verdict: Verdict
    chart: Markup

    @staticmethod
    def of(name: str, predictions: Predictions) -> Branch:
        chart = reliability(reliability_table(predictions), small=True, about=f"Reliability of {name}")
        return Branch(name, verdict(predictions), chart)


def _histogram(view: View) -> Markup:
    return confidence_histogram(confidence_table(view.predictions))


def reliability_section(content: Content) -> Markup:
    joined = content.run is not None and content.run.recipe.method.join is not None
    return fill(
        "reliability.html",
        content=content,
        table=lambda view: reliability_table(view.predictions),
        chart=reliability,
        branches=[Branch.of(*each) for each in list(content.branches.items())[:MOST_BRANCHES]],
        fused="The mean of its members" if joined else "The prediction, both classifiers fused",
        histogram=_histogram,
    )


def believe_section(content: Content) -> Markup:
    return fill(
        "believe.html",
        content=content,
        histogram=_histogram,
        coverage=lambda view: coverage(coverage_table(view.predictions, POINTS)),
        table=lambda view: class_table(view.predictions),
        chart=lambda table: classes(table, content.classes),
        shown=lambda table: min(MOST_CLASSES, int((table.count > 0).sum())),
        confusions=lambda view: confusions(view.predictions, CONFUSIONS),
    )


def mistakes_section(content: Content) -> Markup | None:
    return fill(MISTAKES, content=content) if content.views[0].mistakes else None


SECTIONS = (
    Section("", 0, verdict_header),
    Section("Is it right as often as it says?", 10, reliability_section),
    Section("When should one believe it?", 20, believe_section),
    Section("Its most confident mistakes", 30, mistakes_section),
)
