"""Figures of predictions, histories and runs; each function returns a matplotlib figure.

    balcal.plots.reliability_diagram(predictions).save("reliability.pdf")
    balcal.plots.gamma_curve("runs/fashion/balcal-seed0-...")

The source is `Predictions`, arrays by name (`probs=p, labels=y`), the folder of a run, or several of them under names:
`{"vanilla": first, "balcal": second}`. Figures are saved as PNG, SVG or PDF, by the ending, with fonts embedded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from balcal.plots.arena import differences as differences
    from balcal.plots.ensembles import budget as budget
    from balcal.plots.features import cam as cam
    from balcal.plots.features import tsne as tsne
    from balcal.plots.predictions import class_calibration as class_calibration
    from balcal.plots.predictions import confidence_histogram as confidence_histogram
    from balcal.plots.predictions import reliability_diagram as reliability_diagram
    from balcal.plots.predictions import risk_coverage as risk_coverage
    from balcal.plots.sheet import contact_sheet as contact_sheet
    from balcal.plots.shift import outside_histogram as outside_histogram
    from balcal.plots.shift import shift_curve as shift_curve
    from balcal.plots.training import gamma_curve as gamma_curve
    from balcal.plots.training import loss_curve as loss_curve

_HOMES = {
    "budget": "ensembles",
    "cam": "features",
    "class_calibration": "predictions",
    "confidence_histogram": "predictions",
    "contact_sheet": "sheet",
    "differences": "arena",
    "gamma_curve": "training",
    "loss_curve": "training",
    "outside_histogram": "shift",
    "reliability_diagram": "predictions",
    "risk_coverage": "predictions",
    "shift_curve": "shift",
    "tsne": "features",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import matplotlib only when something is drawn."""
    if name not in _HOMES:
        raise AttributeError(f"module 'balcal.plots' has no attribute '{name}'")
    return getattr(importlib.import_module(f"balcal.plots.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
