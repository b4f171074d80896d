"""The charts of a page, from the tables of `balcal.plots`; each tells its numbers to whoever points at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from balcal.core import Predictions, Record
from balcal.metrics.verdict import Verdict
from balcal.plots.epochs import solver_target
from balcal.plots.style import FEW
from balcal.plots.tables import (
    Classes,
    Confidences,
    Coverage,
    Reliability,
    column,
    finite,
    rows_of,
    share_of,
)
from balcal.report.svg import Frame, group, pct, ticks, whole

QUARTERS = (0, 0.2, 0.4, 0.6, 0.8, 1)
MOST_CLASSES = 24


def ece_ruler(judged: Verdict) -> Markup:
    """ECE with its interval, on a ruler that begins with what a perfect model may score."""
    top = max(judged.ece_interval[1], judged.floor_high, judged.ece) * 1.12 or 0.01
    frame = Frame(350, 84, x=(0, top), left=8, right=14, top=10, bottom=38)
    floor = (
        f"a perfect model with these confidences scores {pct(judged.floor_mean, 2)} on average,\n"
        f"up to {pct(judged.floor_high, 2)} one time in forty"
    )
    told = (
        f"ECE {pct(judged.ece, 2)}, 95 % interval {pct(judged.ece_interval[0], 2)} to {pct(judged.ece_interval[1], 2)}"
    )
    colour = {"perfect": "calm", "under": "under"}.get(judged.kind, "over")
    return frame.picture(
        f"{told}; {floor}",
        frame.box((0, judged.floor_high), (0, 1), "floor", floor),
        frame.rule((judged.floor_mean, judged.floor_mean), (0, 1), "floor-mean"),
        frame.across(ticks(0, top, 6), whole),
        frame.box(judged.ece_interval, (0.4, 0.6), f"interval {colour}", told),
        frame.dot(judged.ece, 0.5, f"mark {colour}", 7, told),
        frame.word(frame.px(judged.floor_high / 2), 82, "perfect models", "name", text_anchor="middle"),
    )


def reliability(table: Reliability, small: bool = False, about: str = "") -> Markup:
    """Bars of accuracy, coloured gaps, a whisker for perfect models; the counts hang below."""
    bins = table.bins
    frame = Frame(300, 244, left=42, bottom=26) if small else Frame(460, 440, bottom=26)
    drawn = []
    for k in np.flatnonzero(table.count):
        low, high, n = k / bins, (k + 1) / bins, int(table.count[k])
        conf, acc = float(table.confidence[k]), float(table.accuracy[k])
        gap = conf - acc
        tip = (
            f"says {pct(low, 0)} to {pct(high, 0)}: {n:,} sample{'s' * (n != 1)}\n"
            f"mean confidence {pct(conf)}, right {pct(acc)}\n"
            f"{'too confident' if gap > 0 else 'too timid'} by {abs(gap) * 100:.1f} points\n"
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
    some = QUARTERS if not small else (0, 0.5, 1)
    body = [
        frame.up(some, whole),
        frame.across(some, whole),
        frame.rule((0, 1), (0, 1), "diagonal"),
        *drawn,
    ]
    told = about or "Reliability diagram: how often it is right, by confidence"
    if small:
        return frame.picture(told, *body)
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
    most = int(table.count.argmax())
    name = counts.word(
        counts.left,
        80,
        f"how many samples; most of them say {pct(most / bins, 0)} to {pct((most + 1) / bins, 0)}",
        "name",
    )
    return frame.picture(told, *body) + counts.picture("How many samples say so", *bars, name)


def confidence_histogram(table: Confidences) -> Markup:
    """Two rows: how sure it is when right, how sure when wrong."""
    drawn = []
    for title, class_, values in (("when right", "right", table.right), ("when wrong", "wrong", table.wrong)):
        total = int(values.sum())
        share = values / max(total, 1)
        frame = Frame(460, 132, y=(0, max(float(share.max()), 1e-9) * 1.08), bottom=24, top=20)
        bars = [
            frame.box(
                (low + 0.003, high - 0.003),
                (0, float(y)),
                class_,
                f"{n:,} {title.split()[1]} answers ({pct(y)} of them)\nsay {pct(low, 0)} to {pct(high, 0)}",
            )
            for low, high, y, n in zip(table.edges, table.edges[1:], share, values, strict=False)
            if n
        ]
        words = frame.word(frame.left, 13, f"{title}: {total:,}", "heading")
        about = f"Confidence {title}, {total} samples"
        drawn.append(frame.picture(about, frame.across(QUARTERS, whole), *bars, words))
    return Markup("").join(drawn)


def coverage(table: Coverage) -> Markup:
    """Error among the surest answers, and the error that the model itself expects."""
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
        frame.up(ticks(0, top), whole),
        frame.across(QUARTERS, whole, "share of samples answered, the surest first"),
        frame.line(table.coverage.tolist(), table.claimed.tolist(), "claimed"),
        frame.line(table.coverage.tolist(), table.risk.tolist(), "risk"),
        frame.strips(table.coverage[points].tolist(), tips),
    )


def classes(table: Classes, names: Sequence[str]) -> Markup:
    """Mean confidence and share right of what is predicted as each class, the largest gaps above."""
    shown = table.worst(MOST_CLASSES)
    low = min(finite([*table.low[shown], *table.confidence[shown]]), default=0.0)
    start = max(0.0, float(np.floor(low * 20 - 0.5)) / 20)
    height, room = 26.0, 118.0
    frame = Frame(460, height * len(shown) + 34, x=(start, 1), left=room, top=4, bottom=30, y=(len(shown), 0))
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
    scale = ticks(start, 1, 6)
    lines = [frame.rule((t, t), frame.y, "grid") for t in scale]
    axis = [frame.word(frame.px(t), frame.height - 10, whole(t), "tick", text_anchor="middle") for t in scale]
    return frame.picture("Confidence and accuracy by predicted class", *lines, *rows, *axis)


def _cut(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


Series = tuple[str, Sequence[float], str]
"""name, one value per epoch, class of the style sheet"""


def by_epoch(title: str, series: Sequence[Series], chosen: int, as_share: bool = True) -> Markup:
    """Lines over epochs; the chosen one is marked."""
    seen = [value for _, values, _ in series for value in finite(values)]
    low, high = min(seen), max(seen)
    if not as_share or title == "gamma":
        low = 0.0
    room = (high - low) * 0.08 or 0.02
    count = len(series[0][1])
    frame = Frame(460, 236, x=(1, max(count, 2)), y=(low if low == 0 else low - room, high + room))
    epochs = [float(e) for e in range(1, count + 1)]
    told = pct if as_share else "{:.3f}".format
    tips = [
        f"epoch {e + 1}{', chosen' if e == chosen else ''}\n"
        + "\n".join(f"{name}: {told(values[e])}" for name, values, _ in series)
        for e in range(count)
    ]
    scale = ticks(*frame.y)
    return frame.picture(
        f"{title} over epochs",
        frame.up(scale, whole if as_share else "{:g}".format),
        frame.across([t for t in ticks(1, max(count, 2), 8) if t == int(t)] or [1.0], "{:g}".format, "epoch"),
        frame.rule((chosen + 1, chosen + 1), frame.y, "chosen"),
        *(frame.line(epochs, [float(v) for v in values], class_) for _, values, class_ in series),
        *(frame.dot(chosen + 1, float(values[chosen]), f"end {class_}", 3.5) for _, values, class_ in series),
        frame.strips(epochs, tips),
    )


def epoch_charts(history: Sequence[Record], chosen: int) -> list[dict[str, Any]]:
    """What can be told of a history: each chart with its title, sentence and legend."""

    def values(name: str) -> list[float]:
        return [float(value) for value in column(history, name)]

    def chart(title: str, about: str, series: Sequence[Series], as_share: bool = True) -> dict[str, Any]:
        key = [(name, class_) for name, _, class_ in series] if len(series) > 1 else []
        return {"title": title, "about": about, "key": key, "svg": by_epoch(title, series, chosen, as_share)}

    told = []
    if "gamma" in history[-1]:
        about = "Share of the learnable classifier in the prediction, solved anew after every epoch."
        if max(finite(values("gamma"))) > 1:
            about += " Above 1 it stands alone, and its logits are multiplied."
        told.append(chart("gamma", about, [("gamma", values("gamma"), "s1")], as_share=False))
    elif "beta" in history[-1]:
        about = "Sharpness of the ETF classifier, solved anew after every epoch."
        told.append(chart("beta", about, [("beta", values("beta"), "s1")], as_share=False))
    if "gap" in history[-1]:
        series: list[Series] = [
            ("accuracy", values("acc"), "s3"),
            ("mean confidence", values("conf"), "s2"),
            ("target", solver_target(history).tolist(), "s1 dashed"),
        ]
        about = "Where the solver looks: mean confidence is to meet its target, delta × accuracy."
        told.append(chart("confidence and its target", about, series))
    told.append(
        chart(
            "validation",
            "Accuracy and mean confidence on the validation split: the distance between them is the problem.",
            [("accuracy", values("val_acc"), "s3"), ("mean confidence", values("val_conf"), "s2")],
        )
    )
    losses = [("training loss", values("loss"), "s1"), ("validation NLL", values("val_nll"), "s2")]
    about = "In nats. The epoch of least validation NLL is chosen, unless the method says otherwise."
    if "val_nll_ts" in history[-1]:
        losses.append(("after a temperature", values("val_nll_ts"), "s2 dashed"))
        about += " Dashed: what one temperature would leave of it; the rest is miscalibration."
    told.append(chart("losses", about, losses, as_share=False))
    return told


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
        frame.across(QUARTERS, whole, "confidence"),
        *lines,
        frame.strips(middles, tips),
    )
