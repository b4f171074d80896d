"""Stopping on request: finish the batch, save, say how to go on."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from balcal.core import BalcalError


class Stopped(BalcalError):
    """The run was asked to stop, and did, with everything saved."""

    def __init__(self, where: str, signum: int) -> None:
        super().__init__(f"stopped {where}; everything is saved: give the same command again to resume")
        self.exit_code = 128 + signum


class StopRequest:
    """While this is entered, SIGTERM and the first Ctrl-C only take note; a second Ctrl-C interrupts as usual."""

    def __init__(self) -> None:
        self.signum = 0
        self._before: dict[int, signal._HANDLER] = {}

    def __bool__(self) -> bool:
        return self.signum != 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
