"""Sections beyond the test split: corrupted images, and out-of-distribution (OOD) images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from balcal.plots.shift import OodConfidences, Severities, ood_table, severity_table
from balcal.report.content import Content, View
from balcal.report.page import Section, fill
from balcal.report.svg import FIFTHS, Frame, pct, ticks, whole

Metric = Literal["accuracy", "ece"]


def shift_lines(table: Severities, metric: Metric) -> Markup:
    """Accuracy or ECE by severity, with the clean test split at 0."""
    low, top = 0.0, float(table.high.max()) * 1.08
    if metric == "accuracy":
        low, top = max(0.0, float(np.floor(table.low.min() * 10 - 0.5)) / 10), 1.0
    xs, values = table.severity.tolist(), table.value.tolist()
    frame = Frame(460, 260, x=(0, max(xs)), y=(low, top), right=18)
    tips = [
        (f"severity {x:g}, mean over {table.sets[i]:g} corruptions" if x else "clean")
        + f"\n{'ECE' if metric == 'ece' else metric} {pct(values[i], 2)} "
        + f"[{table.low[i] * 100:.2f}, {table.high[i] * 100:.2f}]"
        + (f"\na perfect model: {pct(table.floor[i], 2)}" if metric == "ece" else "")
        for i, x in enumerate(xs)
    ]
    return frame.picture(
        f"{metric} by severity",
        frame.up(ticks(*frame.y), whole, "ECE" if metric == "ece" else metric),
        frame.across(xs, lambda s: f"{s:g}" if s else "clean", "severity"),
        frame.area(xs, table.low.tolist(), table.high.tolist(), "band s1"),
        frame.line(xs, table.floor.tolist(), "claimed") if metric == "ece" else "",
        frame.line(xs, values, "s1"),
        *(frame.dot(x, y, "end s1", 3.5) for x, y in zip(xs, values, strict=True)),
        frame.strips(xs, tips),
    )


@dataclass(frozen=True)
class SeverityCell:
    """ECE of one corruption at one severity; its shade goes from 0 to 1."""

    ece: float
    shade: float
    sign: Literal["over", "under"]
    tip: str


@dataclass(frozen=True)
class CorruptionRow:
    """Of one corruption: mean ECE over severities, and each severity."""

    name: str
    mean: float
    cells: list[SeverityCell] = field(default_factory=list)


def corruption_rows(figures: Mapping[str, Any]) -> list[CorruptionRow]:
    """A row per corruption, the highest mean ECE first."""
    most = max((each["ece"] for each in figures["sets"]), default=0.0) or 1.0
    rows = {
        r["corruption"]: CorruptionRow(r["corruption"].replace("_", " "), r["ece"]) for r in figures["by_corruption"]
    }
    for each in figures["sets"]:
        row = rows[each["corruption"]]
        tip = (
            f"{row.name}, severity {each['severity']}\nECE {pct(each['ece'], 2)}\n"
            f"accuracy {pct(each['accuracy'])}, mean confidence {pct(each['mean_confidence'])}"
        )
        sign: Literal["over", "under"] = "over" if each["mean_confidence"] > each["accuracy"] else "under"
        row.cells.append(SeverityCell(each["ece"], each["ece"] / most, sign, tip))
    return sorted(rows.values(), key=lambda row: -row.mean)


def ood_histogram(table: OodConfidences) -> Markup:
    """Confidence on the test split (filled) and on OOD sets (lines)."""
    edges = table.edges.tolist()
    top = max(float(share.max()) for share in table.shares.values()) * 1.06
    frame = Frame(y=(0, top))
    tips = [
        f"confidence {pct(low, 0)} to {pct(high, 0)}\n"
        + "\n".join(f"{name}: {pct(share[k])}" for name, share in table.shares.items())
        for k, (low, high) in enumerate(pairwise(edges))
    ]
    lines = [
        frame.steps(edges, share.tolist(), "step filled" if not number else f"step s{(number - 1) % 4 + 2}")
        for number, share in enumerate(table.shares.values())
    ]
    return frame.picture(
        "Confidence on the test split and on OOD sets",
        frame.up(ticks(0, top), whole, "share of images"),
        frame.across(FIFTHS, whole, "confidence"),
        *lines,
        frame.strips([(a + b) / 2 for a, b in pairwise(edges)], tips),
    )


def shift_section(content: Content) -> Markup | None:
    if not any(view.shift for view in content.views):
        return None

    def curve(view: View, metric: Metric) -> Markup:
        return shift_lines(severity_table(view.shift or {}, metric, view.verdict), metric)

    return fill("shift.html", content=content, curve=curve, corruptions=corruption_rows)


def ood_section(content: Content) -> Markup | None:
    if not any(view.ood for view in content.views):
        return None
    return fill("ood.html", content=content, histogram=lambda view: ood_histogram(ood_table(view.ood_sets)))


SECTIONS = (
    Section("As images get worse", 50, shift_section),
    Section("Out-of-distribution images", 60, ood_section),
)
