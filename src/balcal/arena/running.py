"""An arena from beginning to end: train every run, choose settings, evaluate every entry, compare."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balcal.arena.columns import COLUMNS, Evaluation
from balcal.arena.entries import REFERENCE, Contender, Contest, Search, Settings, choose, contest, trainings
from balcal.arena.jobs import PATIENCE, JobSettings, Outcome, evaluate_entries
from balcal.arena.records import Cell, TrainingRun
from balcal.arena.result import ArenaResult
from balcal.arena.schedule import Training, train_all
from balcal.arena.workers import Workers, open_workers
from balcal.core import BalcalError
from balcal.methods.joining import members
from balcal.metrics.over_seeds import Chance
from balcal.recipe import Recipe
from balcal.registry import task as find_task
from balcal.runs import environment
from balcal.runtime.devices import Stopped, pick_device
from balcal.runtime.names import unknown
from balcal.runtime.provenance import describe, fingerprint


def run(
    task: str,
    methods: Sequence[str],
    seeds: int | Iterable[int] = 5,
    *,
    settings: Iterable[str] = (),
    search: Iterable[str | Search] = (),
    against: str | None = None,
    runs: str | Path = "runs",
    out: str | Path | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    threads: int = 1,
    device: str | None = None,
    patience: float = PATIENCE,
    quiet: bool = False,
) -> ArenaResult:
    """Train (or find) every method in every seed, evaluate each with and without `ts`, and compare.

    `seeds`: how many, from 0 on, or which. `settings`, as for `--set`, hold for every method that has them. `search`:
    settings to choose on the validation split, `head.delta=0.91,0.93`. `against`: the entry to compare with; if left
    out, `vanilla+ts`, or the first one where that is missing. `runs`: folder of all runs. `scheduler`: address of a
    Dask cluster to use instead of `jobs` processes here. `threads` of each run decide the last bits of its numbers;
    `jobs` do not. `patience`: seconds without a sign of life after which a worker, or another process that holds a run,
    counts as dead. The result is written to `out`, by default to `RUNS/arena/TASK-<fingerprint>.json`.

    A run that fails is in `result.failures`, and its cells are empty; it stops nothing else. Stopped by SIGTERM or
    Ctrl-C, it raises `Stopped`; the same call goes on from there. `task` and `methods` are names (`balcal list`),
    `device` is "cpu", "cuda", ...; `quiet` hides the progress.

    >>> import tempfile
    >>> found = run("digits", ["vanilla"], 1, settings=["plan.epochs=1"], runs=tempfile.mkdtemp(), quiet=True)
    >>> found.entries
    ('vanilla', 'vanilla+ts')
    """
    began_at = time.time()
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    searches = [Search.of(each) if isinstance(each, str) else each for each in search]
    asked = contest(task, methods, seeds, settings, searches)
    reference = _reference(asked, against)
    if threads < 1:
        raise BalcalError(f"a run needs at least one thread, not {threads}")
    where = JobSettings(Path(runs).resolve(), device, threads, patience)
    pick_device(device)
    with open_workers(jobs, scheduler, patience) as workers:
        arena = Arena(asked, where, workers)
        arena.train(quiet)
        arena.choose()
        arena.evaluate()
        size = workers.size
    made = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began_at)),
        "seconds": round(time.time() - began_at, 1),
        "backend": "dask" if scheduler else "processes",
        "workers": size,
        "threads": threads,
        "runs": str(where.runs),
        "environment": environment(pick_device(device)),
    }
    result = arena.result(reference, made)
    result.save(out or where.runs / "arena" / f"{find_task(task).folder}-{question(asked, searches)}.json")
    return result


def question(asked: Contest, searches: Sequence[Search]) -> str:
    """Ten letters that identify what an arena was asked for."""
    return fingerprint([asked.task, asked.entries, asked.seeds, asked.settings, [str(s) for s in searches]])


def _reference(asked: Contest, against: str | None) -> str:
    if against is None:
        return REFERENCE if REFERENCE in asked.entries else asked.entries[0]
    if against not in asked.entries:
        raise BalcalError(unknown("entry", against, asked.entries))
    return against


@dataclass
class Arena:
    """An arena while it happens. Its steps, in this order: train, choose, evaluate, result."""

    asked: Contest
    where: JobSettings
    workers: Workers
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """of training, by address"""
    chosen: dict[str, Settings | None] = field(default_factory=dict)
    """settings by contender; None if no candidate has all its seeds"""
    searches: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[tuple[str, int], Evaluation | str] = field(default_factory=dict)
    """by entry and seed; an error in one sentence where there is no evaluation"""

    def __post_init__(self) -> None:
        self.recipes = self.asked.trainings()

    def train(self, quiet: bool = False) -> None:
        keep = {
            each.address(): recipe.method.join.keep
            for recipe in self.recipes
            if recipe.method.join
            for each in members(recipe)
        }
        trainings = [Training(recipe, keep.get(recipe.address())) for recipe in self.recipes]
        self.outcomes |= train_all(trainings, self.where, self.workers, f"{self.asked.task} arena", quiet)

    def choose(self) -> None:
        """Settle the settings of each contender: of a search, those with the lowest validation NLL."""
        for contender in self.asked.contenders:
            if not contender.searched:
                self.chosen[contender.method] = ()
                continue
            tried = {settings: self._val_nll(contender, settings) for settings in contender.tried}
            found = choose(contender.method, tried)
            self.searches.append(found)
            self.chosen[contender.method] = None if found["chosen"] is None else tuple(found["chosen"])

    def _val_nll(self, contender: Contender, settings: Settings) -> list[float | None]:
        ends = [self.outcomes[self._address(contender, seed, settings)] for seed in self.asked.seeds]
        return [None if end.error else end.result["val_nll"] for end in ends]

    def _address(self, contender: Contender, seed: int, settings: Settings) -> str:
        return self.asked.recipe(contender.method, seed, settings).address()

    def evaluate(self) -> None:
        jobs: list[tuple[dict[str, Recipe], JobSettings]] = []
        for contender in self.asked.contenders:
            settings = self.chosen[contender.method]
            for seed in self.asked.seeds:
                error = "no candidate of the search has all its seeds"
                if settings is not None:
                    error = self.outcomes[self._address(contender, seed, settings)].error or ""
                if error or settings is None:
                    self.cells |= {(entry, seed): error for entry in contender.entries}
                else:
                    recipes = {entry: self.asked.recipe(entry, seed, settings) for entry in contender.entries}
                    jobs.append((recipes, self.where))
        for number, outcome in self.workers.outcomes(evaluate_entries, jobs):
            for entry, recipe in jobs[number][0].items():
                self.cells[entry, recipe.seed] = outcome.error or outcome.result[entry]
        if self.workers.stop:
            raise Stopped("after training, while evaluating", self.workers.stop.signum)

    def result(self, reference: str, made: dict[str, Any]) -> ArenaResult:
        asked = self.asked
        there = [c for c in self.cells.values() if isinstance(c, Evaluation)]
        return ArenaResult(
            task=asked.task,
            methods=tuple(contender.method for contender in asked.contenders),
            seeds=asked.seeds,
            settings=asked.settings,
            entries=tuple(asked.entries),
            reference=reference,
            samples=len(there[0].top) if there else 0,
            runs=tuple(self._facts(recipe) for recipe in self.recipes),
            cells=tuple(
                self._cell(contender, entry, seed)
                for contender in asked.contenders
                for entry in contender.entries
                for seed in asked.seeds
            ),
            chance=self._chance(),
            searches=tuple(self.searches),
            made=made,
        )

    def _facts(self, recipe: Recipe) -> TrainingRun:
        outcome = self.outcomes[recipe.address()]
        return TrainingRun(
            run=recipe.address(),
            method=recipe.method.name,
            seed=recipe.seed,
            settings=recipe.overrides,
            recipe=describe(recipe),
            status="failed" if outcome.error else "done",
            error=outcome.error,
            **(outcome.result or {}),
        )

    def _cell(self, contender: Contender, entry: str, seed: int) -> Cell:
        found = self.cells[entry, seed]
        settings = self.chosen[contender.method] or ()
        recipe = self.asked.recipe(entry, seed, settings)
        posthoc = recipe.method.changes.get("posthoc")
        ended = {"error": found} if isinstance(found, str) else {"figures": found.figures}
        return Cell(entry, contender.method, posthoc, seed, recipe.address(), **ended, trainings=trainings(recipe))

    def _chance(self) -> dict[str, Chance]:
        """What comparisons need, by column, over the entries that have at least one evaluation."""
        entries = [
            [c for seed in self.asked.seeds if isinstance(c := self.cells[entry, seed], Evaluation)]
            for entry in self.asked.entries
        ]
        entries = [seeds for seeds in entries if seeds]
        compared = {column.name: column.compared for column in COLUMNS.values() if column.compared} if entries else {}
        return {name: how.chance(name, entries) for name, how in compared.items()}
