"""Progress on stderr: a bar on a terminal, plain lines elsewhere, and an estimate of the time left in both."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from balcal.core import Record
from balcal.runtime.names import plain, plain_lines

VAL_COST = 1 / 3
"""a validation batch relative to a training batch: forward without backward"""


class Bar:
    """A bar on a terminal, plain lines elsewhere. Both are on stderr; `quiet` has neither."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = plain(title), quiet
        self._rich: Any = None

    def start(self, total: float, done: float = 0.0) -> None:
        if self.quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=Console(stderr=True),
        )
        self._rich.start()
        self._task = self._rich.add_task(self.title, total=total, completed=done, status="")

    @property
    def drawn(self) -> bool:
        """Whether there is a terminal to draw it on."""
        return self._rich is not None

    def update(self, done: float, status: str) -> None:
        if self._rich:
            self._rich.update(self._task, completed=done, status=status)

    def line(self, text: str) -> None:
        """A line of its own: above the bar, if there is one."""
        if self._rich:
            self._rich.console.print(text, markup=False, highlight=False, emoji=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._rich:
            self._rich.stop()
            self._rich = None


class Progress:
    """Speaks on stderr, so that stdout stays for results. `log` gets every finished epoch and every note as well."""

    def __init__(self, title: str, quiet: bool = False, log: Callable[[str], None] | None = None) -> None:
        self.title = plain(title)
        self.log = log or (lambda line: None)
        self._bar = Bar(title, quiet)
        self._seen: list[Record] = []

    def start(self, epochs: int, at_epoch: int, at_step: int, train_batches: int, val_batches: int) -> None:
        self.epochs, self.epoch = epochs, at_epoch
        self.per_epoch = train_batches + val_batches * VAL_COST
        self.done = self.begun = at_epoch * self.per_epoch + at_step
        self.started = self.epoch_started = self._shown_at = time.monotonic()
        self._bar.start(epochs * self.per_epoch, self.done)

    def train_batch(self, loss: Tensor) -> None:
        self.done += 1
        if self._due():
            self._show(f"{self._now()}  loss {float(loss):.3f}  {self.left()}")

    def val_batch(self) -> None:
        self.done += VAL_COST
        if self._due():
            self._show(f"{self._now()}  validating  {self.left()}")

    def end_epoch(self, record: Record) -> None:
        now = time.monotonic()
        self.epoch = record["epoch"] + 1
        self.done = self.epoch * self.per_epoch
        line = f"epoch {self.epoch}/{self.epochs}  {epoch_line(record)}  {now - self.epoch_started:.1f} s"
        self.epoch_started = now
        self.log(f"{self.title}: {line}")
        if self._bar.drawn:
            self._seen.append(record)
            self.note(line, log=False)
            self._show(f"{trends(self._seen)}  {self.left() if self.epoch < self.epochs else 'done'}")
        else:
            self.note(f"{self.title}: {line}" + (f", {self.left()}" if self.epoch < self.epochs else ""), log=False)

    def _now(self) -> str:
        """The epoch, and on a terminal the trends so far."""
        where = f"epoch {self.epoch + 1}/{self.epochs}"
        return f"{where}  {trends(self._seen)}" if self._seen else where

    def left(self) -> str:
        """From the pace of this session only: a run may be resumed on another machine."""
        gone, worked = time.monotonic() - self.started, self.done - self.begun
        seconds = gone / max(worked, 1e-9) * (self.epochs * self.per_epoch - self.done)
        if worked < 3:
            return "estimating"
        return time_left(max(seconds, 0.0))  # at the end there may be one more validation than was planned

    def note(self, text: str, log: bool = True) -> None:
        text = plain_lines(text)
        if log:
            self.log(text)
        self._bar.line(text)

    def close(self) -> None:
        self._bar.close()

    def _due(self) -> bool:
        """Twice a second on a terminal, once a minute elsewhere: reading a loss makes an accelerator wait."""
        if time.monotonic() - self._shown_at < (0.5 if self._bar.drawn else 60.0):
            return False
        self._shown_at = time.monotonic()
        return True

    def _show(self, status: str) -> None:
        if self._bar.drawn:
            self._bar.update(self.done, status)
        else:
            self.note(f"{self.title}: {status}")


class Steps:
    """Progress of a known number of steps that take about equally long."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = plain(title), quiet
        self.started = time.monotonic()
        self._shown_at = 0.0

    def __call__(self, name: str, number: int, total: int) -> None:
        """`number` steps of `total` are done, `name` was the last."""
        now = time.monotonic()
        done = number == total
        if self.quiet or not (done or now - self._shown_at > (0.2 if sys.stderr.isatty() else 15.0)):
            return
        self._shown_at = now
        left = (now - self.started) / number * (total - number)
        line = f"{self.title}: {number}/{total}  {plain(name)}" + ("" if done else f"  {time_left(left)}")
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="\n" if done else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def time_left(seconds: float) -> str:
    """The time left in words, rounded as an estimate should be.

    >>> time_left(42.3), time_left(200), time_left(3 * 3600)
    ('about 42 s left', 'about 3 min left', 'about 3.0 h left')
    """
    if seconds > 5400:
        return f"about {seconds / 3600:.1f} h left"
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


BARS = "▁▂▃▄▅▆▇█"
WIDEST = 12
"""epochs that a sparkline shows"""


def sparkline(values: Sequence[float]) -> str:
    """The last few numbers as a curve on one line.

    >>> sparkline([0.0, 0.4, 1.0, 0.8]), sparkline([1.0, 1.0]), sparkline([])
    ('▁▄█▇', '▄▄', '')
    """
    shown = [value for value in values if math.isfinite(value)][-WIDEST:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    if low == high:
        return "▄" * len(shown)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in shown)


def trends(history: Sequence[Record]) -> str:
    """Sparklines of accuracy, ECE and gamma, and their last values.

    >>> trends([{"val_acc": 0.8, "val_ece": 0.05}, {"val_acc": 0.9, "val_ece": 0.02}])
    'acc ▁█ 90.0%  ECE █▁ 2.0%'
    """
    parts = []
    for name, title, form in (("val_acc", "acc", ".1%"), ("val_ece", "ECE", ".1%"), ("gamma", "gamma", ".3f")):
        values = [record[name] for record in history if name in record]
        if values:
            parts.append(f"{title} {sparkline(values)} {values[-1]:{form}}")
    return "  ".join(parts)


def epoch_line(record: Record) -> str:
    """The figures of an epoch on one line, and which weights were kept where there was a choice.

    >>> epoch_line({"loss": 0.5, "val_nll": 0.4, "val_acc": 0.9, "val_ece": 0.02, "gamma": 0.93})
    'loss 0.500  val NLL 0.400  acc 90.0%  ECE 2.0%  gamma 0.930'
    """
    solved = "".join(f"  {name} {record[name]:.3f}" for name in ("gamma", "beta") if name in record)
    chosen = f"  weights: {record['weights']}" if "weights" in record else ""
    return (
        f"loss {record['loss']:.3f}  val NLL {record['val_nll']:.3f}  acc {record['val_acc']:.1%}  "
        f"ECE {record['val_ece']:.1%}{solved}{chosen}"
    )
