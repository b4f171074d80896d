"""Every figure of one set of predictions, by name."""

from __future__ import annotations

from typing import Any

from balcal.metrics.bins import bin_table
from balcal.metrics.calibration import ClassBinSums
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.metric import by_name
from balcal.metrics.scoring import entropies, losses, squares
from balcal.metrics.selective import ranked_figures
from balcal.metrics.unbinned import residual_grid, smooth_error


@by_name
def top_label(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> dict[str, float]:
    """Every metric of the top label, by name, reading the table once. A weight of 2 counts as two samples.

    >>> round(top_label(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])["ece"], 6)
    0.35
    """
    return top_label_figures(read(probs, log_probs, labels, sample_weight).top(), bins)


@by_name
def summary(
    *, probs: Any = None, log_probs: Any = None, labels: Any, bins: int = 15, sample_weight: Any = None
) -> dict[str, float]:
    """Every metric of predictions and labels, by name. A weight of 2 counts as two samples.

    >>> sorted(summary(probs=[[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]], labels=[0, 1]))[:5]
    ['accuracy', 'adaptive_ece', 'aurc', 'brier', 'brier_per_class']
    """
    rows = read(probs, log_probs, labels, sample_weight)
    classwise = ClassBinSums(rows.num_classes, bins)
    classwise.add_rows(rows)
    brier = rows.mean(squares(rows))
    return {
        **top_label_figures(rows.top(), bins),
        **classwise.compute(),
        "nll": rows.mean(losses(rows)),
        "brier": brier,
        "brier_per_class": brier / rows.num_classes,
        "entropy": rows.mean(entropies(rows)),
    }


def top_label_figures(top: TopLabels, bins: int) -> dict[str, float]:
    return {
        **bin_table(top, bins).figures(),
        **ranked_figures(top, bins),
        "smooth_ece": smooth_error(residual_grid(top)),
    }
