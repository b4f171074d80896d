"""The result of an arena: every run, every figure, and what is needed to compare any two entries. One JSON file.

An *entry* is a method as it is evaluated: `balcal` and `balcal+ts` are two entries of one training run. A *cell* is an
entry in one seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from balcal.arena.columns import COLUMNS, Column, Judgement
from balcal.arena.records import Cell, Difference, TrainingRun, check
from balcal.core import BalcalError
from balcal.metrics.bootstrap import Floats
from balcal.metrics.over_seeds import LEVEL, Chance, Pairs, holm, pairs
from balcal.runtime.files import write_atomic
from balcal.runtime.names import unknown

FORM = "balcal arena 1"
Format = Literal["markdown", "latex", "csv", "runs", "json"]


@dataclass(frozen=True)
class ArenaResult:
    """Everything that an arena found. Fractions throughout; seeds in the order of `seeds`, entries of `entries`.

    >>> names = ("vanilla", "vanilla+ts")
    >>> found = ArenaResult("digits", ("vanilla",), (0,), (), names, "vanilla+ts", 500, (), (), {})
    >>> found.entries, found.failures  # nothing was trained, so nothing failed
    (('vanilla', 'vanilla+ts'), [])
    """

    task: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    entries: tuple[str, ...]
    reference: str
    """entry that all others are compared with"""
    samples: int
    """test images"""
    runs: tuple[TrainingRun, ...]
    """all training runs, those that others start from and those that a search tried included"""
    cells: tuple[Cell, ...]
    chance: Mapping[str, Chance]
    """by column, over those of `entries` that have at least one run, in this order"""
    searches: tuple[Mapping[str, Any], ...] = ()
    """per searched method: what was tried, its validation NLL per seed, what was chosen"""
    made: Mapping[str, Any] = field(default_factory=dict)
    """when, with what, for how long; nothing that decides a figure"""

    @property
    def columns(self) -> list[Column]:
        """All of `COLUMNS`, apart from those that an older file has no figures of."""
        figures = [cell.figures for cell in self.cells if cell.figures is not None]
        return [c for c in COLUMNS.values() if not figures or any(c.name in each for each in figures)]

    @property
    def compared(self) -> list[Column]:
        """Columns that entries are compared in; all that could be, where nothing was evaluated."""
        return [c for c in COLUMNS.values() if (c.name in self.chance if self.chance else c.compared is not None)]

    @property
    def trainings(self) -> dict[str, int]:
        """How many trainings a prediction of each entry takes; empty if all take one."""
        found = {cell.entry: cell.trainings for cell in self.cells}
        return found if max(found.values(), default=1) > 1 else {}

    @property
    def failures(self) -> list[TrainingRun]:
        return [run for run in self.runs if run.status == "failed"]

    @property
    def complaints(self) -> list[str]:
        """One sentence for each run that failed, and for each that could not be evaluated."""
        failed = {run.run: f"{run.run}: {run.error}" for run in self.failures}
        return [*failed.values()] + [
            f"{c.entry} seed {c.seed}: {c.error}" for c in self.cells if c.error and c.run not in failed
        ]

    def cell(self, entry: str, seed: int) -> Cell:
        self._check(entry)
        return next(cell for cell in self.cells if (cell.entry, cell.seed) == (entry, seed))

    def values(self, entry: str, figure: str) -> list[float | None]:
        """One value per seed; None where the run failed."""
        return [(self.cell(entry, seed).figures or {}).get(figure) for seed in self.seeds]

    def compare(self, first: str, second: str) -> dict[str, Difference]:
        """Second minus first, by column: one pair alone, without a correction for looking at many."""
        self._check(first, second)
        return {column.name: self._difference(column, first, second, None) for column in self.compared}

    def against(self, first: str) -> dict[str, dict[str, Difference]]:
        """All other entries minus `first`, by entry and column; in each column corrected by Holm for being several."""
        self._check(first)
        found: dict[str, dict[str, Difference]] = {entry: {} for entry in self.entries if entry != first}
        for column in self.compared:
            adjusted = self._adjusted_row(column, first)
            for entry, differences in found.items():
                differences[column.name] = self._difference(column, first, entry, adjusted)
        return found

    def best(self, figure: str) -> str | None:
        """The entry with the best mean over its seeds, of those that have all seeds; chance may have chosen it."""
        column = self._column(figure)
        means = {}
        for entry in self.entries:
            values = [v for v in self.values(entry, figure) if v is not None]
            if len(values) == len(self.seeds) and all(map(math.isfinite, values)):
                means[entry] = float(np.mean(values))
        if not means:
            return None
        return (max if column.higher else min)(means, key=lambda entry: means[entry])

    def against_best(self, figure: str) -> dict[str, Difference]:
        """All others minus the best one in this column. It was picked after the fact, so Holm counts all pairs."""
        best, column = self.best(figure), self._column(figure)
        if best is None or figure not in self._pairs:
            return {}
        at, found = self._index[best], self._pairs[figure]
        upper = np.triu_indices(len(found.p), 1)
        table = np.full_like(found.p, np.nan)
        table[upper] = holm(found.p[upper])
        adjusted = np.fmax(table, table.T)[at]
        return {entry: self._difference(column, best, entry, adjusted) for entry in self.entries if entry != best}

    def rows(self) -> list[dict[str, Any]]:
        """One row per entry: of each column mean, std, values per seed, and how it compares with reference and best."""
        from balcal.arena.tables import rows

        return [row.as_dict() for row in rows(self)]

    def table(self, format: Format = "markdown") -> str:
        """markdown, latex (booktabs), csv (a line per entry), runs (csv, a line per entry and seed), json."""
        from balcal.arena.tables import table

        return table(self, format)

    def as_dict(self) -> dict[str, Any]:
        data = {"form": FORM} | {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["runs"] = [asdict(run) for run in self.runs]
        data["cells"] = [asdict(cell) for cell in self.cells]
        data["chance"] = {
            name: {
                "covariance": _listed(chance.covariance),
                "shared": _listed(chance.shared),
                "added": chance.added.tolist(),
                "perfect": list(chance.perfect),
                "granule": chance.granule,
            }
            for name, chance in self.chance.items()
        }
        return data

    def save(self, path: str | Path) -> Path:
        write_atomic(Path(path), (json.dumps(self.as_dict(), indent=1) + "\n").encode())
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> ArenaResult:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.get("form") != FORM:
                raise ValueError(f"it does not say that it is a `{FORM}`")
            check(data, ArenaResult)
        except OSError as error:
            raise BalcalError(f"cannot read {path} ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            why = "it is no JSON" if isinstance(error, (json.JSONDecodeError, UnicodeError, RecursionError)) else error
            raise BalcalError(f"{path} is not the result of an arena ({why}): make one with `balcal arena`") from None
        return ArenaResult.of(data)

    @staticmethod
    def of(data: Mapping[str, Any]) -> ArenaResult:
        """From what `as_dict` gave, also after it was written as JSON and read again."""
        parts: dict[str, Any] = {
            name: value for name, value in data.items() if name in ArenaResult.__dataclass_fields__
        }
        parts |= {name: tuple(value) for name, value in parts.items() if isinstance(value, list)}
        parts["runs"] = tuple(TrainingRun(**run | {"settings": tuple(run["settings"])}) for run in parts["runs"])
        parts["cells"] = tuple(Cell(**cell) for cell in parts["cells"])
        parts["chance"] = {name: _chance(value) for name, value in parts["chance"].items()}
        return ArenaResult(**parts)

    def _check(self, *entries: str) -> None:
        for entry in entries:
            if entry not in self.entries:
                raise BalcalError(unknown("entry", entry, self.entries))

    @staticmethod
    def _column(name: str) -> Column:
        if name not in COLUMNS:
            raise BalcalError(unknown("column", name, COLUMNS))
        return COLUMNS[name]

    @cached_property
    def _index(self) -> dict[str, int]:
        """Where in `chance` an entry is."""
        there = [e for e in self.entries if any(c.entry == e and c.figures is not None for c in self.cells)]
        return {entry: number for number, entry in enumerate(there)}

    @cached_property
    def _pairs(self) -> dict[str, Pairs]:
        found = {}
        for name, chance in self.chance.items():
            table = [[math.nan if v is None else v for v in self.values(entry, name)] for entry in self._index]
            found[name] = pairs(np.array(table, dtype=np.float64), chance)
        return found

    def _adjusted_row(self, column: Column, first: str) -> Floats | None:
        """p values of all entries against this one, corrected."""
        if first not in self._index or column.name not in self._pairs:
            return None
        row = self._pairs[column.name].p[self._index[first]].copy()
        row[self._index[first]] = np.nan
        return holm(row)

    def _difference(self, column: Column, first: str, second: str, adjusted: Floats | None) -> Difference:
        """`adjusted` p values are those of a row of second entries."""
        a, b = self._index.get(first), self._index.get(second)
        if a is None or b is None or column.name not in self._pairs:
            return Difference(column.name, *(math.nan,) * 5, seeds=0, judgement=Judgement.NONE)
        found = self._pairs[column.name]
        value, low, high, p = (float(x[a, b]) for x in (found.value, found.low, found.high, found.p))
        level = p if adjusted is None else float(adjusted[b])
        judgement, seeds = Judgement.TIE, int(found.seeds[a, b])
        if math.isnan(value):
            judgement = Judgement.NONE
        elif low == high == 0:
            judgement = Judgement.SAME
        elif level <= LEVEL:
            judgement = Judgement.of((value > 0) == column.higher, seeds)
        return Difference(column.name, value, low, high, p, level, seeds, judgement)


def _chance(data: Mapping[str, Any]) -> Chance:
    covariance, shared, added = (np.array(data[part], dtype=np.float64) for part in ("covariance", "shared", "added"))
    return Chance(covariance, shared, added, tuple(data["perfect"]), data.get("granule", 0.0))


def _listed(table: Floats) -> list[list[float | None]]:
    return [[x if math.isfinite(x) else None for x in row] for row in table.tolist()]
