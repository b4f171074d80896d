"""Draw charts as SVG. Every text is escaped; colours come from the style sheet, so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from balcal.runtime.names import plain_lines

Points = Iterable[tuple[float, float]]
FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is written class, `_` in names as `-`; what is None is left out.

    >>> tag("text", "a < b", class_="big", text_anchor="end", x=1 / 3, y=None)
    Markup('<text class="big" text-anchor="end" x="0.33">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(map(shown, children))
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")


def shown(value: object) -> Markup:
    r"""Text, escaped; Markup stays as it is.

    >>> shown("a < b\x1b[0m")
    Markup('a &lt; b\\u001b[0m')
    """
    return value if isinstance(value, Markup) else escape(plain_lines(value))


def _short(value: object) -> object:
    """Two decimals are a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def group(*children: object, **attributes: object) -> Markup:
    return tag("g", *children, **attributes)


@dataclass(frozen=True)
class Frame:
    """A drawing with axes: its size, its margins, and the ranges of x and y."""

    width: float = 460
    height: float = 316
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)
    left: float = 44
    right: float = 12
    top: float = 28
    """with room for the title of the y axis"""
    bottom: float = 40

    def px(self, x: float) -> float:
        low, high = self.x
        return self.left + (x - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        low, high = self.y
        return self.height - self.bottom - (y - low) / ((high - low) or 1) * (self.height - self.top - self.bottom)

    def picture(self, about: str, *children: object) -> Markup:
        """The whole drawing; `about` describes it to people who cannot see it."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *children, viewBox=box, role="img", aria_label=about, class_="chart")

    def box(self, x: tuple[float, float], y: tuple[float, float], class_: str, tip: str | None = None) -> Markup:
        left, right = sorted((self.px(x[0]), self.px(x[1])))
        top, bottom = sorted((self.py(y[0]), self.py(y[1])))
        size = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        return tag("rect", **size, class_=class_, data_tip=tip)

    def line(self, xs: Sequence[float], ys: Sequence[float], class_: str) -> Markup:
        """A line, interrupted where a value is not finite."""
        path, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                path.append(f"{pen}{self.px(x):.1f} {self.py(y):.1f}")
                pen = "L"
            else:
                pen = "M"
        return tag("path", d="".join(path), class_=f"line {class_}")

    def steps(self, edges: Sequence[float], ys: Sequence[float], class_: str) -> Markup:
        """The outline of a histogram."""
        path = [f"M{self.px(edges[0]):.1f} {self.py(0):.1f}"]
        for low, high, y in zip(edges, edges[1:], ys, strict=False):
            path.append(f"L{self.px(low):.1f} {self.py(y):.1f}L{self.px(high):.1f} {self.py(y):.1f}")
        return tag("path", d="".join(path) + f"L{self.px(edges[-1]):.1f} {self.py(0):.1f}", class_=class_)

    def area(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], class_: str) -> Markup:
        there = [*zip(xs, highs, strict=True), *reversed([*zip(xs, lows, strict=True)])]
        points = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in there if math.isfinite(y))
        return tag("polygon", points=points, class_=class_)

    def rule(self, x: tuple[float, float], y: tuple[float, float], class_: str) -> Markup:
        ends = {"x1": self.px(x[0]), "y1": self.py(y[0]), "x2": self.px(x[1]), "y2": self.py(y[1])}
        return tag("line", **ends, class_=class_)

    def dot(self, x: float, y: float, class_: str, r: float = 4, tip: str | None = None) -> Markup:
        return tag("circle", cx=self.px(x), cy=self.py(y), r=r, class_=class_, data_tip=tip)

    def word(self, x: float, y: float, text: str, class_: str = "", **more: object) -> Markup:
        """Text at a place in pixels."""
        return tag("text", text, x=x, y=y, class_=class_ or None, **more)

    def strips(self, xs: Sequence[float], tips: Sequence[str]) -> Markup:
        """Invisible columns, one around each x, that show a hair line and a tip on hover."""
        middles = [(a + b) / 2 for a, b in pairwise(xs)]
        edges = [self.x[0], *middles, self.x[1]]
        columns = []
        for x, low, high, tip in zip(xs, edges, edges[1:], tips, strict=False):
            hair = self.rule((x, x), self.y, "hair")
            columns.append(group(self.box((low, high), self.y, "hit"), hair, class_="strip", data_tip=tip))
        return group(*columns)

    def across(self, ticks: Sequence[float], text: Callable[[float], str], label: str = "") -> Markup:
        """The x axis."""
        base = self.height - self.bottom
        words = [self.word(self.px(t), base + 17, text(t), "tick", text_anchor=_anchor(self, t)) for t in ticks]
        name = self.word(
            (self.left + self.width - self.right) / 2, self.height - 4, label, "name", text_anchor="middle"
        )
        return group(self.rule(self.x, (self.y[0], self.y[0]), "base"), *words, name if label else "")

    def up(self, ticks: Sequence[float], text: Callable[[float], str], label: str = "") -> Markup:
        """The y axis: grid lines, numbers, and its title above it."""
        lines = [self.rule(self.x, (t, t), "grid") for t in ticks]
        words = [self.word(self.left - 7, self.py(t) + 4, text(t), "tick", text_anchor="end") for t in ticks]
        return group(*lines, *words, self.word(2, self.top - 12, label, "name") if label else "")


def _anchor(frame: Frame, tick: float) -> str:
    return "end" if frame.width - frame.px(tick) < 22 else "middle"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two others.

    >>> ticks(0, 0.23), ticks(0.4, 2.3, 4)
    ([0.0, 0.05, 0.1, 0.15, 0.2], [0.5, 1.0, 1.5, 2.0])
    """
    span = max(high - low, 1e-12)
    step = next(
        m * 10.0**e
        for e in range(math.floor(math.log10(span)) - 2, 40)
        for m in (1, 2, 5)
        if span / (m * 10.0**e) <= most
    )
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def pct(share: float, digits: int = 1) -> str:
    """A share in percent.

    >>> pct(0.0312), pct(float("nan"))
    ('3.1\xa0%', '–')
    """
    return f"{share * 100:.{digits}f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else "–"


def whole(share: float) -> str:
    """A share in percent, with as few digits as it needs: for ticks."""
    return f"{share * 100:g}\N{NO-BREAK SPACE}%"
