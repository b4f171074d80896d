"""The parts of a result: figures, training runs, cells, differences. An *entry* is a method as it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

Format = Literal["markdown", "latex", "csv", "runs", "json"]


class Judgement(StrEnum):
    """What is said of a second entry, with its mark in tables, in LaTeX, and in words.

    `here`: one seed each, so it is said of these runs on such images, not of their methods.
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
        """Of a difference that is more than chance, by how many seeds it rests on."""
        if seeds > 1:
            return Judgement.BETTER if better else Judgement.WORSE
        return Judgement.BETTER_HERE if better else Judgement.WORSE_HERE


@dataclass(frozen=True)
class Figure:
    """A column: how a figure is called, printed and read."""

    name: str
    title: str
    higher: bool = False
    percent: bool = False

    def shown(self, value: float, sign: str = "") -> str:
        return f"{value * 100:{sign}.2f}" if self.percent else f"{value:{sign}.4f}"


FIGURES = (
    Figure("accuracy", "accuracy", higher=True, percent=True),
    Figure("ece", "ECE", percent=True),
    Figure("adaptive_ece", "AECE", percent=True),
    Figure("nll", "NLL"),
    Figure("brier", "Brier"),
)


@dataclass(frozen=True)
class TrainingRun:
    """One training run: its recipe, and how it went."""

    run: str
    """address below the folder of all runs"""
    method: str
    seed: int
    settings: tuple[str, ...]
    """as in `--set`"""
    recipe: Mapping[str, Any]
    """everything that decides the result, as plain data"""
    status: Literal["done", "failed"] = "done"
    error: str | None = None
    epoch: int | None = None
    """chosen, from 0"""
    epochs: int = 0
    val_nll: float | None = None
    """of the chosen epoch"""
    seconds: float | None = None
    """spent in its training loop, over all sessions that ended in good order"""
    found: bool = False
    """it was finished before this arena began"""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """versions, device, threads, commit and start of the last session that trained it"""


@dataclass(frozen=True)
class Cell:
    """An entry in one seed. `figures` is None if there is no run to judge; `error` then says why."""

    entry: str
    method: str
    """of the training run"""
    posthoc: str | None
    seed: int
    run: str
    figures: Mapping[str, Any] | None = None
    """accuracy, ece, adaptive_ece, nll, brier, ..., ece_interval, floor_mean, floor_high: fractions"""
    error: str | None = None


@dataclass(frozen=True)
class Difference:
    """Second entry minus first in one figure."""

    figure: str
    value: float
    low: float
    high: float
    p: float
    """two-sided, of this pair alone"""
    adjusted: float
    """p after Holm's correction for all comparisons of its kind; p itself if there was only one"""
    seeds: int
    """how many both have"""
    judgement: Judgement
    """of the second entry, at the 5 % level of `adjusted`; `same`: no sample told them apart"""
