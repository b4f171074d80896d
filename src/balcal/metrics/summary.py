"""All figures of a set of predictions at once, from as few readings of the table as possible."""

from __future__ import annotations

from typing import Any

from balcal.metrics.bins import bin_table
from balcal.metrics.calibration import ClassBinSums
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.scoring import entropies, losses, squares
from balcal.metrics.selective import ranked_figures
from balcal.metrics.unbinned import residual_grid, smooth_error


def top_label(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> dict[str, float]:
    """Every metric of the top label, by name, from one reading of the table.

    >>> round(top_label(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])["ece"], 6)
    0.35
    """
    return top_label_figures(read(probs, log_probs, labels).top(), bins)


def summary(*, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15) -> dict[str, float]:
    """Every metric of predictions and labels, by name.

    >>> sorted(summary(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1]))[:5]
    ['accuracy', 'adaptive_ece', 'aurc', 'brier', 'brier_per_class']
    """
    rows = read(probs, log_probs, labels)
    classwise = ClassBinSums(rows.num_classes, bins)
    classwise.add_rows(rows)
    brier = float(squares(rows).mean())
    return {
        **top_label_figures(rows.top(), bins),
        **classwise.compute(),
        "nll": float(losses(rows).mean()),
        "brier": brier,
        "brier_per_class": brier / rows.num_classes,
        "entropy": float(entropies(rows).mean()),
    }


def top_label_figures(top: TopLabels, bins: int) -> dict[str, float]:
    return {
        **bin_table(top, bins).figures(),
        **ranked_figures(top, bins),
        "smooth_ece": smooth_error(residual_grid(top)),
    }
