"""An arena from beginning to end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from balcal.arena.contest import REFERENCE, Contest, contest
from balcal.arena.course import Course
from balcal.arena.crew import Cluster, crew
from balcal.arena.result import ArenaResult
from balcal.arena.searching import Search
from balcal.arena.work import PATIENCE, Bench
from balcal.core import BalcalError
from balcal.devices import pick_device
from balcal.naming import unknown
from balcal.recipe import fingerprint
from balcal.registry import task as find_task
from balcal.runs import environment


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
