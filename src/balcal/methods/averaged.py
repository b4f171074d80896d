"""Shamir, Zhang: Stochastic Gradient Descent for Non-smooth Optimization. ICML 2013.

The weights in use are an average over the steps of training; later steps count more: see `RunningMean`. It is a part
of the plan and not of the model, so it goes with any method (`averaged+ts`, `balcal+averaged`, ...) that balcal trains.
In a loop of your own, average the weights yourself.
"""

from __future__ import annotations

from balcal.recipe import Method

AVERAGE = {"plan.average": 3.0}
OR_LAST = AVERAGE | {"plan.average_or_last": True}
"""or the last step's weights, if they do better on the validation split"""

METHODS = {
    "averaged": Method(
        "averaged",
        settings=AVERAGE,
        about="the weights in use are an average over the steps of training",
        paper="Shamir, Zhang",
        venue="ICML 2013",
        cost="an addition of the weights per step",
    )
}
