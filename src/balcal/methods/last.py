"""Ours: which epoch is judged, by name, where it is not the one with the lowest validation NLL.

    last          the last epoch
    by-accuracy   the epoch with the highest validation accuracy

The NLL of an over-confident network rises before its accuracy does, so choosing the epoch by validation NLL is itself a
calibrator: it stops a network before it is over-confident. The papers of this field judge the last epoch, or the most
accurate one. Both only read what training left behind, so `balcal+last` finds the run of `balcal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from balcal.core import Record
from balcal.metrics.meter import most_accurate
from balcal.recipe import Method


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


METHODS = {
    m.name: m
    for m in (
        Method("last", select=LastEpoch(), about="the last epoch", paper="Ours", venue="balcal"),
        Method(
            "by-accuracy",
            select=MostAccurate(),
            about="the epoch with the highest validation accuracy",
            paper="Ours",
            venue="balcal",
        ),
    )
}
