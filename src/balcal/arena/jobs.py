"""The two jobs of a worker: train a run (or find it), and evaluate a run. Errors come back as outcomes, not raised.

The number of threads is fixed. It does not depend on the machine or on other workers, so results are bit-identical.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from balcal.arena.columns import Evaluation
from balcal.arena.entries import lineage
from balcal.core import BalcalError
from balcal.evaluation.judge import calibrated_predictions, evaluate
from balcal.metrics.inputs import read
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.claims import Claimed
from balcal.runtime.devices import Stopped, StopRequest, pick_device
from balcal.runtime.names import plain
from balcal.training.fit import train_recipe

PATIENCE = 1800.0
"""seconds without any sign of life; a training saves every five minutes, in the middle of an epoch too"""
ASK_AGAIN = 0.5
"""seconds between two looks at a run that another process holds"""

_ALONE = threading.Lock()
"""torch has one stream of random numbers per process: two trainings in one would disturb each other"""


@dataclass(frozen=True)
class JobSettings:
    """Where a job's runs are, and how it is done."""

    runs: Path
    """folder of all runs; the same for all workers"""
    device: str | None = None
    threads: int = 1
    patience: float = PATIENCE
    """how long another process may hold a run without writing to it"""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: with a `result`, or with an `error` in one sentence."""

    result: Any = None
    error: str | None = None
    signum: int = 0
    """it was asked to stop, and did, with everything saved"""
    seconds: float = 0.0


Job = Callable[..., Outcome]
Arguments = tuple[Any, ...]
"""of a job"""


def train(recipe: Recipe, settings: JobSettings, keep_epochs: int | None = None) -> Outcome:
    """Train a run, or resume it, or find it finished; the result is the part of a `TrainingRun` that only it knows."""

    def job() -> dict[str, Any]:
        run = Run(settings.runs, recipe)
        found = run.finished
        train_recipe(recipe, settings.runs, settings.device, quiet=True, keep_epochs=keep_epochs)
        history, epoch = run.ending().history, run.chosen
        return {
            "found": found,
            "epoch": epoch,
            "epochs": len(history),
            "val_nll": history[epoch]["val_nll"],
            "seconds": sum(run.seconds()) or None,
            "environment": run.environment(),
        }

    return _outcome(job, recipe, settings)


def evaluate_entries(recipes: dict[str, Recipe], settings: JobSettings) -> Outcome:
    """Evaluate one finished run as several entries; the result has an `Evaluation` or an error for each."""
    results: dict[str, Evaluation | str] = {}
    for entry, recipe in recipes.items():
        outcome = _outcome(partial(_evaluate, recipe, settings), recipe, settings)
        if outcome.signum:
            return outcome
        results[entry] = outcome.error or outcome.result
    return Outcome(results)


def _evaluate(recipe: Recipe, settings: JobSettings) -> Evaluation:
    run, device = Run(settings.runs, recipe), pick_device(settings.device)
    report = evaluate(run, recipe.method, device)
    _, test, _ = calibrated_predictions(run, recipe.method, device)
    return Evaluation.of(report, read(None, test.log_probs, test.labels))


def _outcome(job: Callable[[], Any], recipe: Recipe, settings: JobSettings) -> Outcome:
    begun = time.monotonic()
    try:
        with _ALONE, _threads(settings.threads):
            return Outcome(_when_free(job, recipe, settings), seconds=time.monotonic() - begun)
    except Stopped as stopped:
        return Outcome(error=str(stopped), signum=stopped.exit_code - 128)
    except BalcalError as error:
        return Outcome(error=str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).strip().split("\n")[0] or "no message"
        return Outcome(error=f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {said}")


Found = TypeVar("Found")


def _when_free(job: Callable[[], Found], recipe: Recipe, settings: JobSettings) -> Found:
    """Do the job as soon as no other process holds the run; say once that it waits.

    Waiting ends on a request to stop, or if nothing has been written to the run for too long. Looks are counted, not
    hours: a machine that slept has waited for nothing.
    """
    paths = [Run(settings.runs, each).path for each in lineage(recipe)]
    said, before, silent = False, None, 0.0
    with StopRequest() as asked:
        while not asked:
            try:
                return job()
            except Claimed as claimed:
                if not said:
                    print(plain(f"{recipe.address()} has to wait: {claimed}"), file=sys.stderr, flush=True)
                said, why = True, str(claimed)
            now = [_written(path) for path in paths]
            silent, before = (silent + ASK_AGAIN if now == before else 0.0), now
            if silent >= settings.patience:
                message = f"{why}; it has written nothing for {silent:,.0f} s, and is not waited for any longer"
                raise BalcalError(message)
            time.sleep(ASK_AGAIN)
        raise Stopped(f"while waiting for {recipe.address()}", asked.signum)


def _written(run: Path) -> list[tuple[str, int, int]]:
    """What there is in a run's folder, apart from claims and what is unfinished."""
    found = []
    for path in run.rglob("[!.]*"):
        with suppress(OSError):
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
    return sorted(found)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)
