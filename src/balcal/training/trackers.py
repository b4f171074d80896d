"""Experiment trackers: a CSV file, TensorBoard, MLflow, Weights & Biases.

Each gets the figures after every epoch and at the end. A tracker is no part of the recipe, and none can stop a
training: one that fails is named in a note and left out from then on.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from balcal.core import BalcalError, Record
from balcal.runtime.files import write_atomic
from balcal.runtime.names import plain, unknown

try:
    import fcntl
except ImportError:  # Windows: two runs that track one file at once are then up to the user
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 30.0
LOCK_AGAIN = 0.02
Figures = Mapping[str, float]


class Tracker(Protocol):
    """Receives figures. `step` is the epoch, from 1 on. For a resumed run the tracker is opened again."""

    def epoch(self, step: int, figures: Figures) -> None: ...
    def finish(self, step: int, figures: Figures) -> None: ...


@dataclass(frozen=True)
class Tracked:
    """What is trained: a name, unique to its recipe, its settings, and how many epochs are done already."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    epochs: int = 0


class Csv:
    """One line per epoch and one at the end, in a file that several runs may share, at the same time too.

    The file is the only memory: each line is added to its present content under a lock, and the file is replaced as a
    whole. So a process that dies in between loses nothing of others.
    """

    def __init__(self, target: str, tracked: Tracked) -> None:
        self.path, self.run = Path(target), plain(tracked.name)
        self.known: int | None = tracked.epochs
        """later epochs in the file are from an earlier try, and are replaced; None once that is done"""

    def epoch(self, step: int, figures: Figures) -> None:
        self._put({"run": self.run, "epoch": str(step), **figures})

    def finish(self, step: int, figures: Figures) -> None:
        self._put({"run": self.run, "epoch": "", **figures})

    def _put(self, line: dict[str, Any]) -> None:
        with _alone(self.path):
            kept = [old for old in self._lines() if not self._replaced(old, line)] + [line]
            titles = list(dict.fromkeys(name for each in kept for name in each))
            buffer = io.StringIO()
            writer = csv.DictWriter(buffer, titles, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
            write_atomic(self.path, buffer.getvalue().encode())
        self.known = None

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if any(None in line for line in lines):
            raise ValueError("it has lines that are longer than its first one: name another file")
        return lines

    def _replaced(self, old: dict[str, Any], line: dict[str, Any]) -> bool:
        if old.get("run") != self.run:
            return False
        epoch = old.get("epoch") or ""
        stale = self.known is not None and not (epoch.isdigit() and int(epoch) <= self.known)
        return stale or epoch == line["epoch"]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock a file, where the file system has locks.

    The file itself is locked. It may have been replaced while we waited; then the new one is locked.
    """
    if not fcntl:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(round(LOCK_SECONDS / LOCK_AGAIN)):
        with open(path, "ab") as file:
            if _locked(file) and _same(file, path):
                yield
                return
        time.sleep(LOCK_AGAIN)
    raise TimeoutError(f"another process has kept {path} to itself for {LOCK_SECONDS:.0f} s")


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: two writers at once are then up to the user
    return True


def _same(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class TensorBoard:
    """One folder per run, below the target."""

    def __init__(self, target: str, tracked: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(Path(target) / tracked.name), purge_step=tracked.epochs + 1)
        if tracked.settings and not tracked.epochs:
            lines = "\n".join(f"    {name}: {value}" for name, value in tracked.settings.items())
            self.writer.add_text("recipe", lines)

    def epoch(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finish(self, step: int, figures: Figures) -> None:
        self.epoch(step, figures)
        self.writer.close()


class Mlflow:
    """A run of the experiment `balcal` at a tracking address; a resumed run is found by its name."""

    def __init__(self, target: str, tracked: Tracked) -> None:
        for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "10")):  # a server that is gone must not delay training
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.client, self.metric = MlflowClient(tracking_uri=target), Metric
        found = self.client.get_experiment_by_name("balcal")
        experiment = found.experiment_id if found else self.client.create_experiment("balcal")
        same_name = f"attributes.run_name = '{tracked.name.replace(chr(39), '')}'"
        before = self.client.search_runs([experiment], same_name, max_results=1) if tracked.epochs else []
        if before:
            self.run = before[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
        else:
            self.run = self.client.create_run(experiment, run_name=tracked.name.replace("'", "")).info.run_id
            params = [Param(name, value[:500]) for name, value in tracked.settings.items()]
            for start in range(0, len(params), 100):  # as many as a server takes at once
                self.client.log_batch(self.run, params=params[start : start + 100])

    def epoch(self, step: int, figures: Figures) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.run, [self.metric(name, value, now, step) for name, value in figures.items()])

    def finish(self, step: int, figures: Figures) -> None:
        self.epoch(step, figures)
        self.client.set_terminated(self.run)


class Wandb:
    """A run of the named project; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, target: str, tracked: Tracked) -> None:
        import wandb

        name = tracked.name.replace("/", "-")
        self.run = wandb.init(project=target, name=name, id=name[-60:], resume="allow", config=dict(tracked.settings))

    def epoch(self, step: int, figures: Figures) -> None:
        self.run.log({"epoch": step, **figures})

    def finish(self, step: int, figures: Figures) -> None:
        self.run.summary.update(dict(figures))
        self.run.finish()


KINDS: dict[str, Callable[[str, Tracked], Tracker]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "wandb": Wandb,
}


def check_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """Check that each is `kind:target`, before anything is trained.

    >>> check_trackers(["csv:epochs.csv"])
    ('csv:epochs.csv',)
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    for each in names:
        kind, colon, target = each.partition(":")
        if kind not in KINDS:
            raise BalcalError(unknown("tracker", kind, KINDS))
        if not colon or not target:
            raise BalcalError(
                f"`{each}` does not say where to: {kind}:TARGET, as in csv:epochs.csv or tensorboard:logs"
            )
    return names


@dataclass
class Trackers:
    """All trackers of a training. One that fails is dropped; the others go on."""

    names: tuple[str, ...] = ()
    note: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.open: dict[str, Tracker] = {}
        self.step = 0

    def start(self, tracked: Tracked) -> None:
        for each in self.names:
            kind, _, target = each.partition(":")
            try:
                self.open[each] = KINDS[kind](target, tracked)
            except ImportError:
                self.note(f"{kind} is not installed, so {each} is not kept: pip install 'balcal[{kind}]'")
            except Exception as error:
                self._drop(each, error)

    def epoch(self, record: Record) -> None:
        self.step = record["epoch"] + 1
        self._send(lambda tracker: tracker.epoch(self.step, numbers(record)))

    def finish(self, figures: Mapping[str, Any]) -> None:
        final = {f"test_{name}": value for name, value in numbers(figures).items()}
        self._send(lambda tracker: tracker.finish(self.step, final))
        self.open.clear()

    def replay(self, history: Sequence[Record]) -> None:
        """Send all epochs of a run that is finished already."""
        for record in history:
            self.epoch(record)

    def _send(self, call: Callable[[Tracker], None]) -> None:
        for each, tracker in list(self.open.items()):
            try:
                call(tracker)
            except Exception as error:
                self._drop(each, error)

    def _drop(self, each: str, error: Exception) -> None:
        self.open.pop(each, None)
        reason = str(error).strip().split("\n")[0] or "no reason given"
        with suppress(Exception):
            self.note(f"{each} has failed ({type(error).__name__}: {reason}): training goes on without it")


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record, without the epoch.

    >>> numbers({"epoch": 3, "loss": 0.5, "branch": "root", "gap": float("nan")})
    {'loss': 0.5}
    """
    return {
        name: float(value)
        for name, value in record.items()
        if name != "epoch" and isinstance(value, (int, float)) and math.isfinite(value)
    }
