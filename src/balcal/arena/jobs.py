"""One piece of work, as a process anywhere does it: train a run or find it, judge a run. Nothing here is raised.

The number of threads is fixed, not left to the machine or to how many others work beside: the same bits everywhere.
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

from balcal.arena.entries import line_of
from balcal.core import BalcalError
from balcal.evaluation.judge import calibrated_predictions, evaluate
from balcal.metrics.bootstrap import Floats
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.over_seeds import floor_by_mass
from balcal.metrics.scoring import losses, squares
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.runtime.claims import Claimed
from balcal.runtime.devices import Stopped, StopRequest, pick_device
from balcal.runtime.names import plain
from balcal.training.fit import train_recipe

PATIENCE = 1800.0
"""seconds without any sign of life; a training saves every five minutes, in the middle of an epoch too"""
ASK_AGAIN = 0.5
"""seconds between two looks at a run that somebody else holds"""

_ALONE = threading.Lock()
"""torch has one stream of random numbers per process: two trainings in one would disturb each other"""


@dataclass(frozen=True)
class Bench:
    """Where work is done, and how."""

    runs: Path
    """folder of all runs; the same for everybody who works"""
    device: str | None = None
    threads: int = 1
    patience: float = PATIENCE
    """how long somebody else may hold a run without writing to it"""


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended. `told` is what came out of it; else `error` says in a sentence why not."""

    told: Any = None
    error: str | None = None
    signum: int = 0
    """it was asked to stop, and did, with everything saved"""
    seconds: float = 0.0


Work = Callable[..., Outcome]
Piece = tuple[Any, ...]
"""arguments of the work"""


@dataclass(frozen=True)
class Judged:
    """An entry's figures, and of each test sample what comparisons need."""

    figures: dict[str, Any]
    top: TopLabels
    nll: Floats
    brier: Floats


def trained(recipe: Recipe, bench: Bench, keep_epochs: int | None = None) -> Outcome:
    """Train a run, or resume it, or find it finished; `told` has its facts."""

    def work() -> dict[str, Any]:
        run = Run(bench.runs, recipe)
        found = run.finished
        train_recipe(recipe, bench.runs, bench.device, quiet=True, keep_epochs=keep_epochs)
        history, epoch = run.ending().history, run.chosen
        return {
            "found": found,
            "epoch": epoch,
            "epochs": len(history),
            "val_nll": history[epoch]["val_nll"],
            "seconds": sum(run.seconds()) or None,
            "environment": run.environment(),
        }

    return _done(work, recipe, bench)


def judged(recipes: dict[str, Recipe], bench: Bench) -> Outcome:
    """Judge one finished run as several entries; `told` is what each of them came to, or why it came to nothing."""
    told: dict[str, Judged | str] = {}
    for entry, recipe in recipes.items():
        outcome = _done(partial(_judge, recipe, bench), recipe, bench)
        if outcome.signum:
            return outcome
        told[entry] = outcome.error or outcome.told
    return Outcome(told)


def _judge(recipe: Recipe, bench: Bench) -> Judged:
    run, device = Run(bench.runs, recipe), pick_device(bench.device)
    told = evaluate(run, recipe.method, device)
    _, test, _ = calibrated_predictions(run, recipe.method, device)
    rows = read(None, test.log_probs, test.labels)
    top = rows.top()
    wanted = ("accuracy_interval", "ece_interval", "floor_mean", "floor_high", "nll_interval", "brier_interval", "gap")
    floor = floor_by_mass(top)
    more = {
        "adaptive_floor_mean": float(floor.mean()),
        "adaptive_floor_high": float(torch.from_numpy(floor).quantile(0.975)),
    }
    dials = {"epoch": told["epoch"], **told["dials"], "posthoc": told["posthoc"]}
    figures = told["metrics"] | {name: told["test"][name] for name in wanted} | more | dials
    figures = {name: list(value) if isinstance(value, tuple) else value for name, value in figures.items()}
    return Judged(figures, top, losses(rows).double().numpy(), squares(rows).double().numpy())


def _done(work: Callable[[], Any], recipe: Recipe, bench: Bench) -> Outcome:
    begun = time.monotonic()
    try:
        with _ALONE, _threads(bench.threads):
            return Outcome(_when_free(work, recipe, bench), seconds=time.monotonic() - begun)
    except Stopped as stopped:
        return Outcome(error=str(stopped), signum=stopped.exit_code - 128)
    except BalcalError as error:
        return Outcome(error=str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).strip().split("\n")[0] or "no message"
        return Outcome(error=f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {said}")


Found = TypeVar("Found")


def _when_free(work: Callable[[], Found], recipe: Recipe, bench: Bench) -> Found:
    """Do it as soon as nobody else holds the run, and say once that this is waited for.

    It ends if we are asked to stop, or if nothing has been written to the run for too long. Looks are counted, not
    hours: a machine that slept has waited for nothing.
    """
    paths = [Run(bench.runs, each).path for each in line_of(recipe)]
    said, before, silent = False, None, 0.0
    with StopRequest() as asked:
        while not asked:
            try:
                return work()
            except Claimed as claimed:
                if not said:
                    print(plain(f"{recipe.address()} has to wait: {claimed}"), file=sys.stderr, flush=True)
                said, why = True, str(claimed)
            now = [_written(path) for path in paths]
            silent, before = (silent + ASK_AGAIN if now == before else 0.0), now
            if silent >= bench.patience:
                told = f"{why}; it has written nothing for {silent:,.0f} s, and is not waited for any longer"
                raise BalcalError(told)
            time.sleep(ASK_AGAIN)
        raise Stopped(f"while waiting for {recipe.address()}", asked.signum)


def _written(run: Path) -> list[tuple[str, int, int]]:
    """What there is in a run's folder, apart from claims and what is unfinished."""
    found = []
    for path in run.rglob("[!.]*"):
        with suppress(OSError):
            told = path.stat()
            found.append((str(path), told.st_mtime_ns, told.st_size))
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
