"""The charts of what lies beyond the test split: corrupted images, and images from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from balcal.core import Predictions
from balcal.metrics.verdict import Verdict
from balcal.plots.numbers import rows_of, share_of
from balcal.report.svg import FIFTHS, Frame, pct, ticks, whole


def shift_lines(table: Mapping[str, Any], what: str, clean: Verdict) -> Markup:
    """By severity, mean over corruptions, with the clean test split at 0."""
    rows: list[dict[str, Any]] = [
        {
            "severity": 0,
            what: getattr(clean, what),
            f"{what}_interval": getattr(clean, f"{what}_interval"),
            "floor_mean": clean.floor_mean,
        },
        *table["by_severity"],
    ]
    xs = [float(row["severity"]) for row in rows]
    lows, highs = ([row[f"{what}_interval"][end] for row in rows] for end in (0, 1))
    low, top = 0.0, max(highs) * 1.08
    if what == "accuracy":
        low, top = max(0.0, float(np.floor(min(lows) * 10 - 0.5)) / 10), 1.0
    frame = Frame(460, 260, x=(0, max(xs)), y=(low, top), right=18)
    values = [row[what] for row in rows]
    tips = [
        ("clean" if not x else f"severity {x:g}, mean over {row.get('sets', 1)} corruptions")
        + f"\n{'ECE' if what == 'ece' else what} {pct(value, 2)} [{low * 100:.2f}, {high * 100:.2f}]"
        + (f"\na perfect model: {pct(row['floor_mean'], 2)}" if what == "ece" else "")
        for x, value, row in zip(xs, values, rows, strict=True)
        for low, high in [row[f"{what}_interval"]]
    ]
    floor = frame.line(xs, [row["floor_mean"] for row in rows], "claimed") if what == "ece" else ""
    return frame.picture(
        f"{what} by severity",
        frame.up(ticks(*frame.y), whole),
        frame.across(xs, lambda s: f"{s:g}" if s else "clean", "severity"),
        frame.area(xs, lows, highs, "band s1"),
        floor,
        frame.line(xs, values, "s1"),
        *(frame.dot(x, y, "end s1", 3.5) for x, y in zip(xs, values, strict=True)),
        frame.strips(xs, tips),
    )


def shift_cells(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ECE of each corruption and severity, and how strong its shade is."""
    most = max((each["ece"] for each in table["sets"]), default=0.0) or 1.0
    rows: dict[str, dict[str, Any]] = {}
    means = {row["corruption"]: row["ece"] for row in table["by_corruption"]}
    for each in table["sets"]:
        row = rows.setdefault(
            each["corruption"],
            {"name": each["corruption"].replace("_", " "), "mean": means[each["corruption"]], "cells": []},
        )
        tip = (
            f"{row['name']}, severity {each['severity']}\nECE {pct(each['ece'], 2)}\n"
            f"accuracy {pct(each['accuracy'])}, mean confidence {pct(each['mean_confidence'])}"
        )
        sign = "over" if each["mean_confidence"] > each["accuracy"] else "under"
        row["cells"].append({"value": each["ece"], "shade": each["ece"] / most, "sign": sign, "tip": tip})
    return sorted(rows.values(), key=lambda row: -row["mean"])


def outside(sets: Mapping[str, Predictions], bins: int = 20) -> Markup:
    """Confidence of the test images (filled) and of images from elsewhere (lines)."""
    shares = {}
    for name, told in sets.items():
        confidence = rows_of(told).top().conf.numpy()
        shares[name] = share_of(confidence, bins) / len(confidence)
    edges = np.linspace(0, 1, bins + 1).tolist()
    top = max(float(share.max()) for share in shares.values()) * 1.06
    frame = Frame(y=(0, top))
    tips = [
        f"confidence {pct(edges[k], 0)} to {pct(edges[k + 1], 0)}\n"
        + "\n".join(f"{name}: {pct(share[k])}" for name, share in shares.items())
        for k in range(bins)
    ]
    lines = [
        frame.steps(edges, share.tolist(), "step filled" if not number else f"step s{(number - 1) % 4 + 2}")
        for number, share in enumerate(shares.values())
    ]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    return frame.picture(
        "Confidence inside and outside",
        frame.up(ticks(0, top), whole),
        frame.across(FIFTHS, whole, "confidence"),
        *lines,
        frame.strips(middles, tips),
    )
