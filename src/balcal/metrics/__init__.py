"""Metrics: pure functions of `probs=` or `log_probs=` and `labels=`. Fractions, never percent."""

from balcal.metrics.calibration import ece, mean_confidence, over_confidence, under_confidence
from balcal.metrics.scoring import accuracy, brier, nll
from balcal.metrics.streaming import TopLabel
from balcal.metrics.verdict import Verdict, verdict

__all__ = [
    "TopLabel",
    "Verdict",
    "accuracy",
    "brier",
    "ece",
    "mean_confidence",
    "nll",
    "over_confidence",
    "under_confidence",
    "verdict",
]
