"""The style of all figures: few colours, safe for the colour-blind (Okabe and Ito), no frame, a pale grid."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as MatplotlibFigure

from balcal.runtime.files import write_atomic

INK, SOFT, GRID, BAR, BAND = "#1f2a33", "#5b6975", "#dfe4e8", "#c3ccd4", "#7a8894"
OVER, UNDER = "#d55e00", "#0072b2"
"""over-confident, under-confident"""
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2a33")
FEW = 10
"""samples below which a bar is drawn pale"""
SAVED: Any = {
    "pdf.fonttype": 42,  # TrueType: many journals refuse type 3
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "balcal",
    "font.family": "sans-serif",
    "savefig.facecolor": "white",
}


class Figure(MatplotlibFigure):
    """A matplotlib figure that embeds its fonts, however it is saved, and shows itself in a notebook."""

    def savefig(self, fname: Any, **settings: Any) -> None:
        with rc_context(SAVED):
            super().savefig(fname, **{"dpi": 160} | settings)

    def save(self, path: str | Path) -> None:
        """Save as PNG, SVG or PDF, by the path's ending, atomically."""
        path, buffer = Path(path), io.BytesIO()
        self.savefig(buffer, format=path.suffix.lstrip(".") or "png")
        write_atomic(path, buffer.getvalue())

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def one_axes(width: float = 5.2, height: float = 3.6) -> tuple[Figure, Any]:
    """A figure with one pair of axes."""
    drawn = figure(width, height)
    axes = drawn.subplots()
    tidy(axes)
    return drawn, axes


def heading(axes: Any, text: str) -> None:
    axes.set_title(text, color=INK, fontsize=11, weight="bold")


def tidy(*many: Any) -> None:
    for axes in many:
        axes.grid(color=GRID, linewidth=0.6, zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(SOFT)
        axes.tick_params(colors=SOFT, labelcolor=INK, labelsize=8)
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)


def legend(axes: Any, **settings: Any) -> None:
    axes.legend(**{"fontsize": 8, "frameon": False, "handlelength": 1.4, "labelcolor": INK} | settings)


def percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
