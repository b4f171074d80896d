"""Stopping on request: finish the batch, save, say how to go on."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import ClassVar, Self

from balcal.core import BalcalError


class Stopped(BalcalError):
    """The run was asked to stop, and did, with everything saved."""

    def __init__(self, where: str, signum: int) -> None:
        super().__init__(f"stopped {where}; everything is saved: give the same command again to resume")
        self.exit_code = 128 + signum


class StopRequest:
    """While this is entered, SIGTERM and the first Ctrl-C only take note; a second Ctrl-C interrupts as usual.

    One may be entered inside another. A signal is noted by all of them, and one that is entered later knows of it: so a
    request that arrives between two steps is not lost on the second.
    """

    _entered: ClassVar[list[StopRequest]] = []
    """from the outermost to the innermost"""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, signal._HANDLER] = {}

    def __bool__(self) -> bool:
        return self.signum != 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, _note)
            if self._entered:
                self.signum = self.signum or self._entered[-1].signum
            self._entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in self._entered:
            self._entered.remove(self)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def note(self, signum: int) -> None:
        self.signum = signum


def _note(signum: int, frame: FrameType | None) -> None:
    entered = StopRequest._entered
    if signum == signal.SIGINT and any(entered):
        raise KeyboardInterrupt
    for request in entered:
        request.note(signum)
