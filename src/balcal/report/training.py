"""Section and charts of the training: gamma or beta, confidence and its target, validation, losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from balcal.core import Record
from balcal.metrics.bins import Floats
from balcal.plots.numbers import finite
from balcal.plots.training import TrainingCurves, training_curves
from balcal.report.content import Content
from balcal.report.page import Section, fill
from balcal.report.svg import Frame, pct, ticks, whole

TEMPLATE = """
<div class="pair">
{% for chart in charts %}
  <figure class="card">
    <figcaption><b>{{ chart.title|capital }}</b><br><span>{{ chart.about }}</span>
    {%- if chart.lines|length > 1 %}<span class="keys">
    {%- for line in chart.lines %}<i class="key {{ line.style }}"></i>{{ line.name }}{% endfor %}</span>{% endif %}
    </figcaption>
    {{ chart.svg }}
  </figure>
{% endfor %}
</div>
"""


@dataclass(frozen=True, eq=False)
class Line:
    """One value per epoch."""

    name: str
    values: Floats
    style: str
    """class in the style sheet"""


@dataclass(frozen=True, eq=False)
class EpochChart:
    """Lines over epochs. The chosen epoch, counted from 0, is marked."""

    title: str
    about: str
    lines: Sequence[Line]
    chosen: int
    axis: str
    """title of the y axis"""
    as_share: bool = True

    @property
    def svg(self) -> Markup:
        seen = [value for line in self.lines for value in finite(line.values)]
        low, high = min(seen), max(seen)
        if not self.as_share:
            low = 0.0
        room = (high - low) * 0.08 or 0.02
        count, chosen = len(self.lines[0].values), self.chosen
        frame = Frame(460, 236, x=(1, max(count, 2)), y=(low if low == 0 else low - room, high + room))
        epochs = [float(e) for e in range(1, count + 1)]
        text = pct if self.as_share else "{:.3f}".format
        tips = [
            f"epoch {e + 1}{', chosen' if e == chosen else ''}\n"
            + "\n".join(f"{line.name}: {text(line.values[e])}" for line in self.lines)
            for e in range(count)
        ]
        return frame.picture(
            f"{self.title} over epochs",
            frame.up(ticks(*frame.y), whole if self.as_share else "{:g}".format, self.axis),
            frame.across([t for t in ticks(1, max(count, 2), 8) if t == int(t)] or [1.0], "{:g}".format, "epoch"),
            frame.rule((chosen + 1, chosen + 1), frame.y, "chosen"),
            *(frame.line(epochs, line.values.tolist(), line.style) for line in self.lines),
            *(frame.dot(chosen + 1, float(line.values[chosen]), f"end {line.style}", 3.5) for line in self.lines),
            frame.strips(epochs, tips),
        )


def epoch_charts(history: Sequence[Record], chosen: int) -> list[EpochChart]:
    """Those that a history has the numbers for."""
    curves = training_curves(history)
    charts = _balance_charts(curves, chosen)
    about = "Accuracy and mean confidence on the validation split: the distance between them is the problem."
    lines = [Line("accuracy", curves.val_accuracy, "s3"), Line("mean confidence", curves.val_confidence, "s2")]
    charts.append(EpochChart("validation", about, lines, chosen, "share of samples"))
    losses = [Line("training loss", curves.loss, "s1"), Line("validation NLL", curves.val_nll, "s2")]
    about = "In nats. The epoch of least validation NLL is chosen, unless the method says otherwise."
    if curves.val_nll_ts is not None:
        losses.append(Line("after a temperature", curves.val_nll_ts, "s2 dashed"))
        about += " Dashed: what one temperature would leave of it; the rest is miscalibration."
    charts.append(EpochChart("losses", about, losses, chosen, "nats", as_share=False))
    return charts


def _balance_charts(curves: TrainingCurves, chosen: int) -> list[EpochChart]:
    """Of methods that solve for gamma or beta after every epoch."""
    charts = []
    if curves.balance is not None and curves.balance_values is not None:
        about = "Sharpness of the ETF classifier, solved anew after every epoch."
        if curves.balance == "gamma":
            about = "Share of the learnable classifier in the prediction, solved anew after every epoch."
            if max(finite(curves.balance_values)) > 1:
                about += " Above 1 it stands alone, and its logits are multiplied."
        line = Line(curves.balance, curves.balance_values, "s1")
        charts.append(EpochChart(curves.balance, about, [line], chosen, curves.balance, as_share=False))
    if curves.target is not None:
        about = "Where the solver looks: mean confidence is to meet its target, delta × accuracy."
        lines = [
            Line("accuracy", curves.accuracy, "s3"),
            Line("mean confidence", curves.confidence, "s2"),
            Line("target", curves.target, "s1 dashed"),
        ]
        charts.append(EpochChart("confidence and its target", about, lines, chosen, "share of samples"))
    return charts


def training_section(content: Content) -> Markup | None:
    return fill(TEMPLATE, charts=epoch_charts(content.history, content.chosen)) if content.history else None


SECTIONS = (Section("How it was trained", 40, training_section),)
