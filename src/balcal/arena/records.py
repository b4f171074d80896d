"""The records that an arena's result is made of, and a check that a file holds them.

An *entry* is a method as it is evaluated: `balcal` and `balcal+ts` are two entries of one training run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from balcal.arena.columns import CHART, COLUMNS, Column, Judgement


@dataclass(frozen=True)
class TrainingRun:
    """One training run: its recipe, and how it went.

    >>> TrainingRun("digits/vanilla-seed0-1a2b", "vanilla", 0, ("plan.epochs=1",), {}).status
    'done'
    """

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
    """An entry in one seed. `figures` is None if there is no run to evaluate; `error` then says why.

    >>> Cell("vanilla+ts", "vanilla", "ts", 0, "digits/vanilla-seed0-1a2b", {"nll": 0.31}).figures["nll"]
    0.31
    """

    entry: str
    method: str
    """of the training run"""
    posthoc: str | None
    seed: int
    run: str
    figures: Mapping[str, Any] | None = None
    """by name, of columns and more; fractions"""
    error: str | None = None
    trainings: int = 1
    """that it takes: of all runs that are joined, and of those that they start from"""


@dataclass(frozen=True)
class Difference:
    """Second entry minus first in one column.

    >>> from balcal.arena.columns import Judgement
    >>> Difference("nll", -0.02, -0.03, -0.01, 0.001, 0.004, 5, Judgement.BETTER).high < 0
    True
    """

    figure: str
    """the column's name"""
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
    """of the second entry, at the 5 % level of `adjusted`"""


@dataclass(frozen=True)
class Summary:
    """An entry in one column, over its seeds. None where there is nothing."""

    column: Column
    mean: float | None
    std: float | None
    values: list[float | None]
    """one per seed"""
    against: Difference | None
    """minus the reference"""
    against_best: Difference | None
    best: bool
    ties_best: bool
    """it is the best, or ties with it; never in a column without comparison"""
    interval: list[float] | None
    """95 % interval of a run, mean over seeds"""
    floor: list[float] | None
    """mean and upper end of the noise floor, mean over seeds"""

    def as_dict(self) -> dict[str, Any]:
        names = ("mean", "std", "values", "against", "against_best", "best", "ties_best")
        found = {name: getattr(self, name) for name in names}
        return found | {n: asdict(found[n]) for n in ("against", "against_best") if found[n] is not None}


@dataclass(frozen=True)
class Row:
    """A row of the table: one entry."""

    entry: str
    method: str
    posthoc: str | None
    seeds: int
    """that were evaluated"""
    asked: int
    """seeds that there should be"""
    trainings: int
    """that one prediction takes"""
    columns: Mapping[str, Summary]

    def as_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in ("entry", "method", "posthoc", "seeds", "asked", "trainings")}
        for each in self.columns.values():
            data |= dict(zip(each.column.floor or (), each.floor or (None, None), strict=False))
            data |= {each.column.interval: each.interval} if each.column.interval else {}
        return data | {name: each.as_dict() for name, each in self.columns.items()}


SEARCH = {"method": str, "by": str, "chosen": tuple[str, ...] | None}


def check(data: Any, kind: type) -> None:
    """Raise ValueError, with a few words about what is wrong, unless `data` has the fields of the record `kind`."""
    if not isinstance(data, dict):
        raise ValueError("it is no table of names")
    data = {"searches": [], "made": {}} | data
    for name, wanted in get_type_hints(kind).items():
        if not fits(data.get(name), wanted):
            raise ValueError(f"`{name}` is missing or of another kind")
    entries, seeds = data["entries"], data["seeds"]
    places = [(cell["entry"], cell["seed"]) for cell in data["cells"]]
    if sorted(places) != sorted((entry, seed) for entry in set(entries) for seed in set(seeds)):
        raise ValueError("`cells` are not one for each entry and seed")
    if not seeds or data["reference"] not in entries:
        raise ValueError("`seeds` are none, or `reference` is no entry")
    if not fits(data["made"].get("runs", ""), str):
        raise ValueError("`made` does not say where the runs are")
    evaluated = [cell for cell in data["cells"] if cell.get("figures") is not None]
    if evaluated and not set(CHART) <= set(data["chance"]):
        raise ValueError("`chance` does not have every figure")
    for cell in evaluated:
        _check_figures(cell["figures"], data["chance"])
    for chance in data["chance"].values():
        _check_chance(chance, len({cell["entry"] for cell in evaluated}))
    for search in data["searches"]:
        tried = search.get("tried")
        whole = fits(tried, tuple[Mapping[str, Any], ...]) and all(
            fits(each.get("settings"), tuple[str, ...]) for each in tried
        )
        if not whole or not all(n in search and fits(search[n], wanted) for n, wanted in SEARCH.items()):
            raise ValueError("`searches` are incomplete")


def _check_figures(figures: Mapping[str, Any], compared: Mapping[str, Any]) -> None:
    """Columns that entries are compared in must be there. Others may be younger than the file."""
    for column in COLUMNS.values():
        if column.name not in compared and column.name not in figures:
            continue
        numbers = all(fits(figures.get(name), float) for name in (column.name, *(column.floor or ())))
        if not numbers or (column.interval and not _numbers(figures.get(column.interval), 2)):
            raise ValueError("`cells` lack figures")


def _check_chance(chance: Mapping[str, Any], models: int) -> None:
    square = all(
        fits(table, tuple[tuple[float | None, ...], ...])
        and len(table) == models
        and all(len(row) == models for row in table)
        for table in (chance["covariance"], chance["shared"])
    )
    lists = _numbers(chance["added"], models) and len(chance["perfect"]) == models
    if not (square and lists and chance.get("granule", 0.0) >= 0):
        raise ValueError("`chance` has another shape")


def _numbers(value: Any, count: int) -> bool:
    return fits(value, tuple[float, ...]) and len(value) == count


def fits(value: Any, kind: Any) -> bool:
    """Whether a value, as JSON has it, is of a kind: lists stand for tuples and arrays, tables of names for records.

    >>> fits([1, 2.5], tuple[float, ...]), fits(True, int), fits(None, str | None)
    (True, False, True)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(fits(each, parts[0]) for each in value)
    if origin is np.ndarray:
        return isinstance(value, list)
    if origin is not None:
        return isinstance(value, dict) and all(fits(each, parts[1]) for each in value.values())
    return _fits_record(value, kind) if is_dataclass(kind) else _fits_plain(value, kind)


def _fits_record(value: Any, kind: Any) -> bool:
    kinds = get_type_hints(kind)
    needed = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}
    return (
        isinstance(value, dict)
        and needed <= value.keys() <= kinds.keys()
        and all(fits(each, kinds[name]) for name, each in value.items())
    )


def _fits_plain(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)
