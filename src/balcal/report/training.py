"""The charts of a training: what was solved, measured and lost, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from balcal.core import Record
from balcal.plots.numbers import column, finite
from balcal.plots.training import solver_target
from balcal.report.svg import Frame, pct, ticks, whole

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
