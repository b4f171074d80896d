"""An arena while it happens: what was trained, what was chosen, what came out; and in the end its result.

An arena from beginning to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from balcal.arena.columns import Cell, TrainingRun
from balcal.arena.entries import REFERENCE, Contender, Contest, Search, Settings, choose, contest, waves
from balcal.arena.jobs import PATIENCE, Bench, Judged, Outcome, judged, trained
from balcal.arena.progress import Watch
from balcal.arena.result import ArenaResult
from balcal.arena.workers import Cluster, Crew, crew
from balcal.core import BalcalError
from balcal.metrics.bootstrap import Floats
from balcal.metrics.over_seeds import Chance, chance_of_eces, chance_of_means
from balcal.recipe import Recipe, describe, fingerprint
from balcal.registry import task as find_task
from balcal.runs import Run, environment
from balcal.runtime.devices import Stopped, pick_device
from balcal.runtime.names import unknown


@dataclass
class Course:
    """Its steps, in this order: train, choose, judge, result."""

    asked: Contest
    bench: Bench
    crew: Crew
    quiet: bool = False
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """of training, by address"""
    chosen: dict[str, Settings | None] = field(default_factory=dict)
    """settings by contender; None if no candidate has all its seeds"""
    searches: list[dict[str, Any]] = field(default_factory=list)
    cells: dict[tuple[str, int], Judged | str] = field(default_factory=dict)
    """what came out, or a sentence that says why nothing did"""

    def __post_init__(self) -> None:
        self.recipes = self.asked.trainings()

    def train(self) -> None:
        """Every run once; first those that others start from."""
        runs = {recipe.address(): Run(self.bench.runs, recipe) for recipe in self.recipes}
        with Watch(f"{self.asked.task} arena", list(runs.values()), self.crew.size, self.quiet) as watch:
            for wave in waves(self.recipes):
                able = []
                for recipe in wave:
                    if (reason := self._orphaned(recipe)) is None:
                        able.append(recipe)
                    else:
                        self._ended(recipe, Outcome(error=reason), watch)
                for number, outcome in self.crew.outcomes(trained, [(recipe, self.bench) for recipe in able]):
                    if not outcome.signum:
                        self._ended(able[number], outcome, watch)
                if self.crew.stop:
                    raise Stopped(f"after {len(self.outcomes)} of {len(self.recipes)} runs", self.crew.stop.signum)

    def _orphaned(self, recipe: Recipe) -> str | None:
        first = recipe.parent and self.outcomes[recipe.parent.address()]
        return (
            f"the run that it starts from, {recipe.parent.address()}, has failed"
            if first and first.error and recipe.parent
            else None
        )

    def _ended(self, recipe: Recipe, outcome: Outcome, watch: Watch) -> None:
        run = Run(self.bench.runs, recipe)
        if outcome.error is None and not run.finished:
            outcome = Outcome(error=f"it was trained, but {run.path} is not to be seen from here: share that folder")
        self.outcomes[recipe.address()] = outcome
        watch.done(run, outcome)

    def choose(self) -> None:
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
        return [None if end.error else end.told["val_nll"] for end in ends]

    def _address(self, contender: Contender, seed: int, settings: Settings) -> str:
        return self.asked.recipe(contender.method, seed, settings).address()

    def judge(self) -> None:
        pieces: list[tuple[dict[str, Recipe], Bench]] = []
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
                    pieces.append((recipes, self.bench))
        for number, outcome in self.crew.outcomes(judged, pieces):
            for entry, recipe in pieces[number][0].items():
                self.cells[entry, recipe.seed] = outcome.error or outcome.told[entry]
        if self.crew.stop:
            raise Stopped("after training, while judging", self.crew.stop.signum)

    def result(self, reference: str, made: dict[str, Any]) -> ArenaResult:
        asked = self.asked
        there = [c for c in self.cells.values() if isinstance(c, Judged)]
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
            **(outcome.told or {}),
        )

    def _cell(self, contender: Contender, entry: str, seed: int) -> Cell:
        found = self.cells[entry, seed]
        settings = self.chosen[contender.method] or ()
        recipe = self.asked.recipe(entry, seed, settings)
        posthoc = recipe.method.changes.get("posthoc")
        told = {"error": found} if isinstance(found, str) else {"figures": found.figures}
        return Cell(entry, contender.method, posthoc, seed, recipe.address(), **told)

    def _chance(self) -> dict[str, Chance]:
        rows = [
            [c for seed in self.asked.seeds if isinstance(c := self.cells[entry, seed], Judged)]
            for entry in self.asked.entries
        ]
        rows = [row for row in rows if row]
        if not rows:
            return {}
        tops = [[cell.top for cell in row] for row in rows]
        highs, by_mass = (
            [[cell.figures[name] for cell in row] for row in rows] for name in ("floor_high", "adaptive_floor_high")
        )
        return {
            "accuracy": chance_of_means(_stacked(rows, lambda cell: cell.top.right.double().numpy()), counts=True),
            "ece": chance_of_eces(tops, highs),
            "adaptive_ece": chance_of_eces(tops, by_mass, equal_mass=True),
            "nll": chance_of_means(_stacked(rows, lambda cell: cell.nll)),
            "brier": chance_of_means(_stacked(rows, lambda cell: cell.brier)),
        }


def _stacked(rows: list[list[Judged]], read: Callable[[Judged], Floats]) -> Floats:
    """(entries, seeds, samples); where a run is missing, means over the seeds that are there."""
    values = [np.stack([read(cell) for cell in row]) for row in rows]
    if len({len(each) for each in values}) > 1:
        values = [each.mean(0, keepdims=True) for each in values]
    return np.stack(values)


def run(
    task: str,
    methods: Sequence[str],
    seeds: int | Iterable[int] = 3,
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
    """Train (or find) every method in every seed, judge each with and without `ts`, and compare.

    `seeds`: how many, from 0 on, or which. `settings`, as for `--set`, hold for every method that has them. `search`:
    settings to choose on the validation split, `head.delta=0.91,0.93`. `against`: the entry to compare with; if left
    out, `vanilla+ts`, or the first one where that is missing. `runs`: folder of all runs. `scheduler`: address of a
    Dask cluster to use instead of `jobs` processes here. `threads` of each run decide the last bits of its numbers;
    `jobs` do not. `patience`: seconds without a sign of life after which a worker, or whoever else holds a run, counts
    as dead. The result is written to `out`, by default to `RUNS/arena/TASK-<fingerprint>.json`.

    A run that fails is in `result.failures`, and its cells are empty; it stops nothing else. Stopped by SIGTERM or
    Ctrl-C, it raises `Stopped`; the same call goes on from there.
    """
    began_at = time.time()
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    searches = [Search.of(each) if isinstance(each, str) else each for each in search]
    asked = contest(task, methods, seeds, settings, searches)
    reference = _reference(asked, against)
    if threads < 1:
        raise BalcalError(f"a run needs at least one thread, not {threads}")
    bench = Bench(Path(runs).resolve(), device, threads, patience)
    pick_device(device)
    workers = crew(jobs, scheduler, patience)
    course = Course(asked, bench, workers, quiet)
    with closing(workers) if isinstance(workers, Cluster) else nullcontext(), workers.stop:
        course.train()
        course.choose()
        course.judge()
        size = workers.size
    made = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began_at)),
        "seconds": round(time.time() - began_at, 1),
        "backend": "dask" if scheduler else "processes",
        "workers": size,
        "threads": threads,
        "runs": str(bench.runs),
        "environment": environment(pick_device(device)),
    }
    result = course.result(reference, made)
    result.save(out or bench.runs / "arena" / f"{find_task(task).folder}-{question(asked, searches)}.json")
    return result


def question(asked: Contest, searches: Sequence[Search]) -> str:
    """Ten letters that change when another arena is asked for."""
    return fingerprint([asked.task, asked.entries, asked.seeds, asked.settings, [str(s) for s in searches]])


def _reference(asked: Contest, against: str | None) -> str:
    if against is None:
        return REFERENCE if REFERENCE in asked.entries else asked.entries[0]
    if against not in asked.entries:
        raise BalcalError(unknown("entry", against, asked.entries))
    return against
