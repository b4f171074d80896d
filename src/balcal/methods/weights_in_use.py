"""Which weights of a training become the model, if not those of the epoch with the lowest validation NLL.

    late       the epoch with the lowest validation NLL after an optimal temperature. Ours.
    averaged   an average over the steps of training. Shamir, Zhang: Stochastic Gradient Descent for Non-smooth
               Optimization. ICML 2013.
    last             the last epoch
    by-accuracy      the epoch with the highest validation accuracy
    by-head-losses   the epoch with the lowest validation loss, summed over both classifiers with equal weight, as the
                     released code of BalCAL chooses (Ni, Zhao, Gao, Guo, Zha: CVPR 2025); gamma has no part in it

The NLL of an over-confident network rises while its accuracy still does, so the lowest raw NLL chooses an early epoch.
What a temperature corrects later should not count against an epoch now. Use `late` with a post-hoc method: `late+ts`
(plain training), `balcal+late+ts`, ... It comes after training, so any run can be evaluated with it: the epoch's
weights are kept.

Choosing the epoch by validation NLL is itself a calibrator: it stops a network before it is over-confident. The papers
of this field evaluate the last epoch or the most accurate one. With `last`, `by-accuracy` and `by-head-losses` any run
with `plan.keep=last` can be evaluated so.

In the average, later steps count more: see `RunningMean` in training/optimise.py. It is a part of the plan and not of
the model, so it goes with any method (`averaged+ts`, `balcal+averaged`, ...) that balcal trains. In a loop of your own,
average the weights yourself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from balcal.core import BalcalError, Record
from balcal.metrics.epoch_meter import lowest_head_losses, lowest_tempered, most_accurate
from balcal.recipe import Method

AVERAGE = {"plan.average": 3.0}
OR_LAST = AVERAGE | {"plan.average_or_last": True}
"""or the last step's weights, if they do better on the validation split"""


@dataclass(frozen=True)
class AfterTemperature:
    """The epoch with the lowest validation NLL after its own best temperature."""

    def __call__(self, history: Sequence[Record]) -> int:
        if any("val_nll_ts" not in record for record in history):
            raise BalcalError(
                "`late` cannot choose an epoch of this run: an earlier version trained it, and its history has no NLL "
                "after a temperature; train it again"
            )
        return lowest_tempered(history)


@dataclass(frozen=True)
class LastEpoch:
    """The last epoch, whatever its figures.

    >>> LastEpoch()([{"val_nll": 0.1}, {"val_nll": 0.3}])
    1
    """

    def __call__(self, history: Sequence[Record]) -> int:
        return len(history) - 1


@dataclass(frozen=True)
class MostAccurate:
    """The epoch with the highest validation accuracy; the first one, if several are equal.

    >>> MostAccurate()([{"val_acc": 0.8}, {"val_acc": 0.9}, {"val_acc": 0.9}])
    1
    """

    def __call__(self, history: Sequence[Record]) -> int:
        return most_accurate(history)


@dataclass(frozen=True)
class LowestHeadLosses:
    """The epoch with the lowest validation loss, summed over the branches; the first one, if several are equal.

    >>> LowestHeadLosses()([{"val_head_losses": 3.0}, {"val_head_losses": 2.0}])
    1
    """

    def __call__(self, history: Sequence[Record]) -> int:
        if any("val_head_losses" not in record for record in history):
            raise BalcalError(
                "`by-head-losses` cannot choose an epoch of this run: its history has no losses of two classifiers "
                "(it has only one, or an earlier version trained it)"
            )
        return lowest_head_losses(history)


METHODS = {
    m.name: m
    for m in (
        Method(
            "late",
            select=AfterTemperature(),
            about="the epoch with the lowest validation NLL after a temperature",
            when="With any post-hoc method: `late+ts`. An over-confident epoch may be the best after a temperature.",
            paper="Ours",
            venue="balcal",
        ),
        Method(
            "last",
            select=LastEpoch(),
            about="the last epoch",
            when="To judge the end of training, as in the paper's regime.",
            paper="Ours",
            venue="balcal",
        ),
        Method(
            "by-accuracy",
            select=MostAccurate(),
            about="the epoch with the highest validation accuracy",
            when="To choose the epoch as many papers do.",
            paper="Ours",
            venue="balcal",
        ),
        Method(
            "by-head-losses",
            select=LowestHeadLosses(),
            about="the epoch with the lowest validation loss, summed over both classifiers",
            when="To choose the epoch as BalCAL's released code does.",
            paper="Ni, Zhao, Gao, Guo, Zha",
            venue="CVPR 2025",
        ),
        Method(
            "averaged",
            settings=AVERAGE,
            about="the weights in use are an average over the steps of training",
            when="Worth a try with every method that balcal trains; gains accuracy where labels are noisy.",
            paper="Shamir, Zhang",
            venue="ICML 2013",
            cost="an addition of the weights per step",
        ),
    )
}
