"""Metrics: pure functions of `probs=` or `log_probs=` and `labels=`. Fractions, never percent.

Batch by batch: `BinSums`, `ClassBinSums`, `ScoreSums`, `SmoothSums`, `Ranked`, `DetectionScores`.
All at once: `summary`, `top_label`. With intervals: `verdict` on one set of predictions, `compare` for two.
"""

from balcal.metrics.bins import BinSums
from balcal.metrics.calibration import (
    ClassBinSums,
    adaptive_ece,
    binary_ece,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    mean_confidence,
    over_confidence,
    rmsce,
    under_confidence,
)
from balcal.metrics.comparison import Comparison, compare
from balcal.metrics.decomposition import Decomposition, decomposition
from balcal.metrics.detection import DetectionScores, aupr_in, aupr_out, auroc, failure_auroc, fpr95
from balcal.metrics.scoring import ScoreSums, accuracy, brier, brier_per_class, entropy, nll, soft_kl, soft_nll
from balcal.metrics.selective import Ranked, aurc, risk_coverage
from balcal.metrics.significance import (
    CalibrationTest,
    calibration_tests,
    ks_p,
    kuiper_p,
    spiegelhalter,
    spiegelhalter_p,
)
from balcal.metrics.summary import summary, top_label
from balcal.metrics.unbinned import SmoothSums, ks, kuiper, smooth_ece
from balcal.metrics.verdict import Verdict, verdict

__all__ = [
    "BinSums",
    "CalibrationTest",
    "ClassBinSums",
    "Comparison",
    "Decomposition",
    "DetectionScores",
    "Ranked",
    "ScoreSums",
    "SmoothSums",
    "Verdict",
    "accuracy",
    "adaptive_ece",
    "aupr_in",
    "aupr_out",
    "auroc",
    "aurc",
    "binary_ece",
    "brier",
    "brier_per_class",
    "calibration_tests",
    "classwise_ece",
    "compare",
    "debiased_ece",
    "decomposition",
    "ece",
    "entropy",
    "failure_auroc",
    "fpr95",
    "ks",
    "ks_p",
    "kuiper",
    "kuiper_p",
    "mce",
    "mean_confidence",
    "nll",
    "over_confidence",
    "risk_coverage",
    "rmsce",
    "smooth_ece",
    "soft_kl",
    "soft_nll",
    "spiegelhalter",
    "spiegelhalter_p",
    "summary",
    "top_label",
    "under_confidence",
    "verdict",
]
