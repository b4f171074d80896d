"""From confidence to decisions: act, abstain or hedge, with a guarantee.

Pure functions of `probs=` or `log_probs=` and `labels=` of held-out samples. What they promise is true of samples that
are drawn as these were. `docs/decide.md` begins with the questions that each of them answers.
"""

from balcal.decisions.costs import Decisions, decide
from balcal.decisions.multicalibrate import GroupCalibrator, multicalibrate
from balcal.decisions.planning import SamplePlan, plan_samples
from balcal.decisions.priors import AdjustedPriors, adjust_priors
from balcal.decisions.promise import Threshold
from balcal.decisions.set_report import SetReport
from balcal.decisions.sets import PredictionSets, prediction_sets
from balcal.decisions.threshold import threshold

__all__ = [
    "AdjustedPriors",
    "Decisions",
    "GroupCalibrator",
    "PredictionSets",
    "SamplePlan",
    "SetReport",
    "Threshold",
    "adjust_priors",
    "decide",
    "multicalibrate",
    "plan_samples",
    "prediction_sets",
    "threshold",
]
