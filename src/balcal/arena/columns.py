"""The columns of an arena, in one table.

A row of `COLUMNS` says everything about a column: its value, title and unit, which way is better, and how two entries
are compared in it. Workers, tables, the HTML report and plots all read the rows. To add a column, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
import torch

from balcal.core import BalcalError
from balcal.metrics.bootstrap import Floats
from balcal.metrics.inputs import Rows, TopLabels
from balcal.metrics.over_seeds import Chance, chance_of_eces, chance_of_means, floor_by_mass
from balcal.metrics.scoring import losses, squares


class Judgement(StrEnum):
    """How a second entry compares, with its mark in tables, in LaTeX, and in words.

    `here`: with one seed each, it holds for these two runs, not for their methods.
    """

    mark: str
    latex: str
    words: str

    BETTER = "better", "▲", r"\uparrow", "better"
    WORSE = "worse", "▼", r"\downarrow", "worse"
    BETTER_HERE = "better here", "(▲)", r"(\uparrow)", "this run is better"
    WORSE_HERE = "worse here", "(▼)", r"(\downarrow)", "this run is worse"
    TIE = "tie", "=", "=", "a tie"
    SAME = "same", "≡", r"\equiv", "no image tells them apart"
    NONE = "none", "", "", "unknown"

    def __new__(cls, name: str, mark: str, latex: str, words: str) -> Self:
        made = str.__new__(cls, name)
        made._value_, made.mark, made.latex, made.words = name, mark, latex, words
        return made

    @staticmethod
    def of(better: bool, seeds: int) -> Judgement:
        """Of a difference that is more than chance, by the number of seeds."""
        if seeds > 1:
            return Judgement.BETTER if better else Judgement.WORSE
        return Judgement.BETTER_HERE if better else Judgement.WORSE_HERE


@dataclass(frozen=True)
class SampleMeans:
    """Compares a figure that is a mean over test samples, by the value of each sample."""

    values: Callable[[Rows], torch.Tensor]
    counts: bool = False
    """each value is 1 or 0"""

    def chance(self, column: str, entries: Sequence[Sequence[Evaluation]]) -> Chance:
        values = [np.stack([each.samples[column] for each in seeds]) for seeds in entries]
        if len({len(each) for each in values}) > 1:  # a run is missing: take means over the seeds that are there
            values = [each.mean(0, keepdims=True) for each in values]
        return chance_of_means(np.stack(values), self.counts)


@dataclass(frozen=True)
class ResampledBins:
    """Compares a calibration error of 15 bins, by resampling the test samples."""

    floor_high: str
    """figure that has the upper end of the noise floor"""
    equal_mass: bool = False

    def chance(self, column: str, entries: Sequence[Sequence[Evaluation]]) -> Chance:
        tops = [[each.top for each in seeds] for seeds in entries]
        highs = [[each.figures[self.floor_high] for each in seeds] for seeds in entries]
        return chance_of_eces(tops, highs, self.equal_mass)


@dataclass(frozen=True)
class Column:
    """A row of `COLUMNS`. Name and title are enough for a metric of `balcal.metrics.summary`."""

    name: str
    """key in the figures of a run, and in JSON and CSV"""
    title: str
    higher: bool = False
    """whether higher is better"""
    percent: bool = False
    compared: SampleMeans | ResampledBins | None = None
    """how entries are compared; None: there is no comparison, and no mark"""
    value: Callable[[Rows], float] | None = None
    """of a run's test predictions; None: the metric of `balcal.metrics.summary` with this name, or the samples' mean"""
    more: Callable[[Rows], Mapping[str, Any]] | None = None
    """further figures of a run, by name"""
    interval: str | None = None
    """figure that has the 95 % interval of a run, shown in brackets"""
    floor: tuple[str, str] | None = None
    """figures that have mean and upper end of the noise floor, shown in a column beside"""

    def shown(self, value: float, sign: str = "") -> str:
        return f"{value * 100:{sign}.2f}" if self.percent else f"{value:{sign}.4f}"

    def between(self, ends: Sequence[float], sign: str = "") -> str:
        return f"[{', '.join(self.shown(end, sign) for end in ends)}]"

    def in_csv(self, interval: Sequence[float | None] | None, floor: Sequence[float | None] | None) -> dict[str, Any]:
        """Interval and noise floor by name, one number each, as CSV has them."""
        ends = dict(zip((f"{self.name}_low", f"{self.name}_high"), interval or (None, None), strict=True))
        return (ends if self.interval else {}) | dict(zip(self.floor or (), floor or (None, None), strict=False))


def _adaptive_floor(rows: Rows) -> dict[str, float]:
    floor = floor_by_mass(rows.top())
    return {
        "adaptive_floor_mean": float(floor.mean()),
        "adaptive_floor_high": float(torch.from_numpy(floor).quantile(0.975)),
    }


COLUMNS = {
    column.name: column
    for column in (
        Column("accuracy", "accuracy", higher=True, percent=True, compared=SampleMeans(lambda r: r.top().right, True)),
        Column(
            "ece",
            "ECE",
            percent=True,
            compared=ResampledBins("floor_high"),
            interval="ece_interval",
            floor=("floor_mean", "floor_high"),
        ),
        Column(
            "adaptive_ece",
            "AECE",
            percent=True,
            compared=ResampledBins("adaptive_floor_high", equal_mass=True),
            more=_adaptive_floor,
        ),
        Column("nll", "NLL", compared=SampleMeans(losses)),
        Column("brier", "Brier", compared=SampleMeans(squares)),
    )
}
CHART = ("accuracy", "ece")
"""columns of the report's chart; every result has them"""
FROM_VERDICT = (
    "accuracy_interval",
    "ece_interval",
    "floor_mean",
    "floor_high",
    "nll_interval",
    "brier_interval",
    "gap",
)
"""figures of a run that are no columns"""


@dataclass(frozen=True)
class Evaluation:
    """An entry in one seed, as a worker evaluated it: its figures, and of each test sample what comparisons need."""

    figures: dict[str, Any]
    top: TopLabels
    samples: Mapping[str, Floats]
    """(N,) by column, of those that are means over samples"""

    @staticmethod
    def of(report: Mapping[str, Any], rows: Rows) -> Evaluation:
        """From what `balcal.evaluation.judge.evaluate` reports of a run, and its test predictions."""
        figures = dict(report["metrics"])
        for name in FROM_VERDICT:
            value = report["test"][name]
            figures[name] = list(value) if isinstance(value, tuple) else value
        samples = {}
        for column in COLUMNS.values():
            if column.value is not None:
                figures[column.name] = float(column.value(rows))
            figures |= column.more(rows) if column.more else {}
            if isinstance(column.compared, SampleMeans):
                samples[column.name] = column.compared.values(rows).double().numpy()
                figures.setdefault(column.name, float(samples[column.name].mean()))
            for name in filter(None, (column.name, column.interval, *(column.floor or ()))):
                if name not in figures:
                    raise BalcalError(f"the column `{column.name}` needs a figure `{name}`, which no evaluation has")
        figures |= {"epoch": report["epoch"], **report["dials"], "posthoc": report["posthoc"]}
        return Evaluation(figures, rows.top(), samples)
