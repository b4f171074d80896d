"""What a person sees of an arena: a bar on a terminal, a line per run elsewhere, an honest estimate in both.

Epochs are counted, not runs, by looking at the runs' histories. The pace of a method is that of its runs in this
session; of a method not seen yet, that of all. Runs that were found finished say nothing about the pace.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from balcal.arena.jobs import Outcome
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.names import plain
from balcal.runtime.progress import time_left


class Watch:
    """Speaks on stderr. `done` is told of each run that ends; in between it looks for itself."""

    def __init__(self, title: str, runs: Sequence[Run], workers: int, quiet: bool = False) -> None:
        self.title, self.runs, self.workers, self.quiet = plain(title), list(runs), workers, quiet
        self.left_over = {run.path: run for run in runs}
        self.before = {run.path: _epochs(run) for run in runs}
        self.total = sum(run.recipe.task.plan.epochs for run in runs)
        self.ended = 0
        self.pace: dict[str, list[float]] = {}
        """seconds per epoch of each method, one number per run"""
        self.started = time.monotonic()
        self._bar: Any = None
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[told]}"))
            self._bar = RichProgress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, told="")
        if not self.quiet:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._bar:
            self._show()
            self._bar.stop()

    def done(self, run: Run, outcome: Outcome) -> None:
        """A run has ended, well or not."""
        self.left_over.pop(run.path, None)
        self.ended += 1
        new = _epochs(run) - self.before[run.path]
        if outcome.error is None and new > 0:
            self.pace.setdefault(run.recipe.method.name, []).append(outcome.seconds / new)
        name = name_of(run.recipe)
        if outcome.error is not None:
            told = f"{name} failed: {outcome.error}"
        elif new > 0:
            told = f"{name}: {new} epochs in {outcome.seconds:.1f} s"
        else:
            told = f"{name}: found"
        left = f", {self.left()}" if self.left_over else ""
        self._say(f"{self.ended}/{len(self.runs)} {told}" + ("" if self._bar else left))
        self._show()

    def left(self) -> str:
        """Work still to do at the paces seen so far, shared among those who can work at once."""
        gone = time.monotonic() - self.started
        todo = {path: run.recipe.task.plan.epochs - _epochs(run) for path, run in self.left_over.items()}
        if not todo:
            return "done"
        new = sum(_epochs(run) - self.before[run.path] for run in self.runs)
        if new < 2:
            return "estimating"
        known = {name: sum(paces) / len(paces) for name, paces in self.pace.items()}
        usual = sum(known.values()) / len(known) if known else gone * min(self.workers, len(self.runs)) / new
        seconds = sum(n * known.get(self.left_over[path].recipe.method.name, usual) for path, n in todo.items())
        return time_left(seconds / min(self.workers, len(todo)))

    def _look(self) -> None:
        """Every second on a terminal, every minute elsewhere."""
        while not self._over.wait(1.0 if self._bar else 60.0):
            if self._bar:
                self._show()
            else:
                self._say(
                    f"{self.ended}/{len(self.runs)} runs, {self._epochs_now()}/{self.total} epochs, {self.left()}"
                )

    def _epochs_now(self) -> int:
        ended = sum(run.recipe.task.plan.epochs for run in self.runs if run.path not in self.left_over)
        return ended + sum(_epochs(run) for run in list(self.left_over.values()))

    def _show(self) -> None:
        if self._bar:
            told = f"{self.ended}/{len(self.runs)} runs  {self.left()}"
            self._bar.update(self._task, completed=self._epochs_now(), told=told)

    def _say(self, text: str) -> None:
        text = plain(text)
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, emoji=False)
        elif not self.quiet:
            print(f"{self.title}: {text}", file=sys.stderr, flush=True)


def name_of(recipe: Recipe) -> str:
    """A run in a few words, with the settings that were changed."""
    changed = f" ({', '.join(recipe.overrides)})" if recipe.overrides else ""
    return f"{recipe.for_training().method} seed {recipe.seed}{changed}"


def _epochs(run: Run) -> int:
    """Finished so far, as the file says: it is replaced as a whole, so it is never half there."""
    try:
        return (run.path / "history.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
