"""Train many runs: in waves, so that no run begins before its parent is finished, and with one progress bar for all.

The arena and `balcal paper` both train through `train_all`. A failed run stops no other.

The estimate counts epochs, not runs. The pace of a method is that of its runs in this session; of a method not seen
yet, that of all. Runs that were found finished do not count for the pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from balcal.arena.entries import lineage, needed
from balcal.arena.jobs import JobSettings, Outcome, train
from balcal.arena.workers import Workers, open_workers
from balcal.core import BalcalError
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.devices import Stopped
from balcal.runtime.names import plain
from balcal.runtime.progress import Bar, time_left


@dataclass(frozen=True)
class Training:
    """A run to train. `keep`: keep the weights of every n-th epoch."""

    recipe: Recipe
    keep: int | None = None

    def missing(self, runs: Path) -> bool:
        run, plan = Run(runs, self.recipe), self.recipe.task.plan
        return not run.finished or (self.keep is not None and run.lacks(replace(plan, keep=self.keep)))


@dataclass(frozen=True)
class Resources:
    """Where runs are kept, and what trains them."""

    runs: Path = Path("runs")
    device: str | None = None
    jobs: int = 1
    scheduler: str | None = None
    quiet: bool = False


def waves(trainings: Iterable[Training]) -> list[list[Training]]:
    """Parents first: a wave needs only runs of the waves before it."""
    by_depth: dict[int, list[Training]] = {}
    for training in trainings:
        by_depth.setdefault(len(list(lineage(training.recipe))), []).append(training)
    return [by_depth[depth] for depth in sorted(by_depth)]


def train_missing(trainings: Iterable[Training], resources: Resources, title: str = "training") -> None:
    """Train those runs that are not there. Failures are raised as one error after all runs had their turn."""
    missing = [training for training in trainings if training.missing(resources.runs)]
    if not missing:
        return
    settings = JobSettings(resources.runs, resources.device)
    with open_workers(resources.jobs, resources.scheduler) as workers:
        outcomes = train_all(missing, settings, workers, title, resources.quiet)
    failed = [
        f"{t.recipe.task.name} {name_of(t.recipe)}: {error}"
        for t in missing
        if (error := outcomes[t.recipe.address()].error)
    ]
    if failed:
        raise BalcalError(f"{len(failed)} of {len(missing)} runs failed; the first: {failed[0]}")


def train_all(
    trainings: Sequence[Training], settings: JobSettings, workers: Workers, title: str, quiet: bool = False
) -> dict[str, Outcome]:
    """Train or find every run; how each ended, by address. Raises `Stopped` if asked to stop before the end."""
    outcomes: dict[str, Outcome] = {}
    runs = [Run(settings.runs, training.recipe) for training in trainings]
    with RunsProgress(title, runs, workers.size, quiet) as progress:

        def ended(recipe: Recipe, outcome: Outcome) -> None:
            run = Run(settings.runs, recipe)
            if outcome.error is None and not run.finished:
                outcome = Outcome(error=f"it was trained, but {run.path} is not visible from here: share that folder")
            outcomes[recipe.address()] = outcome
            progress.done(run, outcome)

        for wave in waves(trainings):
            ready = []
            for training in wave:
                before = [each.address() for each in needed(training.recipe)]
                failed = [each for each in before if each in outcomes and outcomes[each].error]
                if failed:
                    what = "starts from" if training.recipe.parent else "joins"
                    ended(training.recipe, Outcome(error=f"the run that it {what}, {failed[0]}, has failed"))
                else:
                    ready.append(training)
            jobs = [(training.recipe, settings, training.keep) for training in ready]
            for number, outcome in workers.outcomes(train, jobs):
                if not outcome.signum:
                    ended(ready[number].recipe, outcome)
            if workers.stop:
                raise Stopped(f"after {len(outcomes)} of {len(trainings)} runs", workers.stop.signum)
    return outcomes


class RunsProgress:
    """A bar on a terminal, a line per run elsewhere. Between ends of runs it reads their histories by itself."""

    def __init__(self, title: str, runs: Sequence[Run], workers: int, quiet: bool = False) -> None:
        self.runs, self.workers, self.quiet = list(runs), workers, quiet
        self.unfinished = {run.path: run for run in runs}
        self.before = {run.path: _epochs(run) for run in runs}
        self.total = sum(map(_length, runs))
        self.ended = 0
        self.pace: dict[str, list[float]] = {}
        """seconds per epoch of each method, one number per run"""
        self.started = time.monotonic()
        self._bar = Bar(title, quiet)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._bar.start(self.total)
        if not self.quiet:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._show()
        self._bar.close()

    def done(self, run: Run, outcome: Outcome) -> None:
        """A run has ended, well or not."""
        self.unfinished.pop(run.path, None)
        self.ended += 1
        new = _epochs(run) - self.before[run.path]
        if outcome.error is None and new > 0:
            self.pace.setdefault(run.recipe.method.name, []).append(outcome.seconds / new)
        name = name_of(run.recipe)
        if outcome.error is not None:
            message = f"{name} failed: {outcome.error}"
        elif new > 0:
            message = f"{name}: {new} epochs in {outcome.seconds:.1f} s"
        else:
            message = f"{name}: found"
        left = f", {self.left()}" if self.unfinished and not self._bar.drawn else ""
        self._say(f"{self.ended}/{len(self.runs)} {message}{left}")
        self._show()

    def left(self) -> str:
        """Work still to do at the paces seen so far, shared among those who can work at once."""
        gone = time.monotonic() - self.started
        todo = {path: _length(run) - _epochs(run) for path, run in self.unfinished.items()}
        if not todo:
            return "done"
        new = sum(_epochs(run) - self.before[run.path] for run in self.runs)
        if new < 2:
            return "estimating"
        known = {name: sum(paces) / len(paces) for name, paces in self.pace.items()}
        usual = sum(known.values()) / len(known) if known else gone * min(self.workers, len(self.runs)) / new
        seconds = sum(n * known.get(self.unfinished[path].recipe.method.name, usual) for path, n in todo.items())
        return time_left(seconds / min(self.workers, len(todo)))

    def _look(self) -> None:
        """Every second on a terminal, every minute elsewhere."""
        while not self._over.wait(1.0 if self._bar.drawn else 60.0):
            if self._bar.drawn:
                self._show()
            else:
                epochs = f"{self._epochs_now()}/{self.total} epochs"
                self._say(f"{self.ended}/{len(self.runs)} runs, {epochs}, {self.left()}")

    def _epochs_now(self) -> int:
        ended = sum(_length(run) for run in self.runs if run.path not in self.unfinished)
        return ended + sum(_epochs(run) for run in list(self.unfinished.values()))

    def _show(self) -> None:
        if self._bar.drawn:
            self._bar.update(self._epochs_now(), f"{self.ended}/{len(self.runs)} runs  {self.left()}")

    def _say(self, text: str) -> None:
        text = plain(text)
        self._bar.line(text if self._bar.drawn else f"{self._bar.title}: {text}")


def name_of(recipe: Recipe) -> str:
    """A run in a few words, with the settings that were changed."""
    changed = f" ({', '.join(recipe.overrides)})" if recipe.overrides else ""
    return f"{recipe.for_training().method} seed {recipe.seed}{changed}"


def _length(run: Run) -> int:
    """Epochs to train; what is joined has one line in its history."""
    return run.recipe.task.plan.epochs if run.recipe.method.join is None else 1


def _epochs(run: Run) -> int:
    """Epochs finished so far. The file is replaced as a whole, so it is never half there."""
    try:
        return (run.path / "history.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
