"""Whether a file is the result of an arena: what JSON allows is much more than what we wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from balcal.arena.columns import FIGURES, Cell, TrainingRun

SEARCH = {"method": str, "by": str, "chosen": tuple[str, ...] | None}
PARTS = {
    "task": str,
    "methods": tuple[str, ...],
    "seeds": tuple[int, ...],
    "settings": tuple[str, ...],
    "entries": tuple[str, ...],
    "reference": str,
    "samples": int,
    "runs": tuple[TrainingRun, ...],
    "cells": tuple[Cell, ...],
    "chance": Mapping[str, Mapping[str, Any]],
    "searches": tuple[Mapping[str, Any], ...],
    "made": Mapping[str, Any],
}
NUMBERS = (*(figure.name for figure in FIGURES), "floor_mean", "floor_high")


def check(told: Any) -> None:
    """Raises ValueError, with a few words about what is wrong first."""
    if not isinstance(told, dict):
        raise ValueError("it is no table of names")
    told = {"searches": [], "made": {}} | told
    for name, kind in PARTS.items():
        if not fits(told.get(name), kind):
            raise ValueError(f"`{name}` is missing or of another kind")
    entries, seeds = told["entries"], told["seeds"]
    places = [(cell["entry"], cell["seed"]) for cell in told["cells"]]
    if sorted(places) != sorted((entry, seed) for entry in set(entries) for seed in set(seeds)):
        raise ValueError("`cells` are not one for each entry and seed")
    if not seeds or told["reference"] not in entries:
        raise ValueError("`seeds` are none, or `reference` is no entry")
    if not fits(told["made"].get("runs", ""), str):
        raise ValueError("`made` does not say where the runs are")
    for cell in told["cells"]:
        if cell.get("figures") is not None:
            _check_figures(cell["figures"])
    there = {cell["entry"] for cell in told["cells"] if cell.get("figures") is not None}
    if there and {figure.name for figure in FIGURES} - set(told["chance"]):
        raise ValueError("`chance` does not have every figure")
    for chance in told["chance"].values():
        _check_chance(chance, len(there))
    for search in told["searches"]:
        tried = search.get("tried")
        whole = fits(tried, tuple[Mapping[str, Any], ...]) and all(
            fits(each.get("settings"), tuple[str, ...]) for each in tried
        )
        if not whole or not all(n in search and fits(search[n], kind) for n, kind in SEARCH.items()):
            raise ValueError("`searches` are incomplete")


def _check_figures(figures: Mapping[str, Any]) -> None:
    interval = figures.get("ece_interval")
    if not all(fits(figures.get(name), float) for name in NUMBERS) or not _numbers(interval, 2):
        raise ValueError("`cells` lack figures")


def _check_chance(chance: Mapping[str, Any], models: int) -> None:
    tables = [chance.get("covariance"), chance.get("shared")]
    square = all(
        fits(table, tuple[tuple[float | None, ...], ...])
        and len(table) == models  # type: ignore[arg-type]
        and all(len(row) == models for row in table)  # type: ignore[union-attr]
        for table in tables
    )
    perfect = chance.get("perfect")
    lists = _numbers(chance.get("added"), models) and fits(perfect, tuple[bool, ...]) and len(perfect or ()) == models
    if not (square and lists and fits(chance.get("granule"), float) and chance["granule"] >= 0):
        raise ValueError("`chance` has another shape")


def _numbers(value: Any, count: int) -> bool:
    return fits(value, tuple[float, ...]) and len(value) == count


def fits(value: Any, kind: Any) -> bool:
    """Whether a value, as JSON has it, is of a kind: lists stand for tuples, tables of names for records.

    >>> fits([1, 2.5], tuple[float, ...]), fits(True, int), fits(None, str | None), fits({}, Cell)
    (True, False, True, False)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(fits(each, parts[0]) for each in value)
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
