"""Ours: choose the epoch after calibrating it, not before.

    the epoch with the lowest validation NLL after an optimal temperature

The NLL of an over-confident network rises while its accuracy still does, so the lowest raw NLL chooses an early epoch.
What a temperature corrects later should not count against an epoch now. Use it with a post-hoc method: `late+ts` (plain
training), `balcal+late+ts`, ... It comes after training, so any run can be evaluated with it: the epoch's weights are
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from balcal.core import BalcalError, Record
from balcal.metrics.epoch_meter import lowest_tempered
from balcal.recipe import Method


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


METHODS = {
    "late": Method(
        "late",
        select=AfterTemperature(),
        about="the epoch with the lowest validation NLL after a temperature",
        paper="Ours",
        venue="balcal",
    )
}
