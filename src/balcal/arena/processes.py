"""Several processes of this machine (joblib). None outlives the arena, and none holds it up for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from balcal.arena.jobs import PATIENCE, Outcome, Piece, Work
from balcal.runtime.devices import StopRequest

DIED = "its worker process died (killed, or out of memory)"
LOOK_SECONDS = 1.0


class PassedOn(StopRequest):
    """Takes note, and tells the worker processes, again and again: one that is just starting has no ear for it."""

    def __init__(self) -> None:
        super().__init__()
        self._left = threading.Event()

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        self._left.set()

    def note(self, signum: int) -> None:
        super().note(signum)
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        while not self._left.is_set():
            for pid in workers():
                _send(pid, signal.SIGTERM)
            self._left.wait(0.5)


@dataclass
class Processes:
    """A piece whose worker dies is done again, from its last checkpoint; one that kills whoever takes it has failed."""

    size: int
    patience: float = PATIENCE
    """seconds that a busy worker may go without using the processor"""
    stop: StopRequest = field(default_factory=PassedOn)

    def __post_init__(self) -> None:
        self._busy: set[int] = set()
        """pieces that were handed out and have not come back"""

    def outcomes(self, work: Work, pieces: Sequence[Piece]) -> Iterator[tuple[int, Outcome]]:
        left = dict(enumerate(pieces))
        with self._watched():
            while left and not self.stop:
                taken: list[int] = []
                try:
                    for number, outcome in self._together(work, left, taken):
                        if outcome.signum and not self.stop:
                            continue  # somebody asked that worker alone to stop: the piece has its turn again
                        del left[number]
                        yield number, outcome
                except TerminatedWorkerError:
                    if self.stop:
                        return
                    for number in [n for n in taken if n in left]:
                        if self.stop:
                            return
                        yield number, self._apart(work, number, left.pop(number))

    def _together(self, work: Work, pieces: dict[int, Piece], taken: list[int]) -> Iterator[tuple[int, Outcome]]:
        """Few more pieces are handed out than there are workers, so that we know which ones a death concerns."""
        self._busy.clear()

        def handed_out() -> Iterator[Any]:
            for number, piece in list(pieces.items()):
                if self.stop:
                    return
                taken.append(number)
                self._busy.add(number)
                yield delayed(_numbered)(number, work, piece)

        at_once = Parallel(
            self.size,
            backend="loky",
            batch_size=1,
            pre_dispatch=self.size,
            return_as="generator_unordered",
            initializer=_begin,
            initargs=(os.getpid(),),
        )
        for number, outcome in at_once(handed_out()):
            self._busy.discard(number)
            yield number, outcome

    def _apart(self, work: Work, number: int, piece: Piece) -> Outcome:
        """Some worker has died, of this piece or of another: by itself it may have three more."""
        for _ in range(3):
            try:
                for _, outcome in list(self._together(work, {number: piece}, [])):
                    return outcome
            except TerminatedWorkerError:
                pass
            if self.stop:
                return Outcome(signum=self.stop.signum)
        return Outcome(error=DIED)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        """End workers that show no sign of life; to the rest of us they have died then.

        Who works or waits for a run uses the processor now and then, in the longest epoch too; who is stopped or stuck
        does not, and neither does who is idle. So somebody is stuck if fewer are awake than there are pieces in work.
        Looks are counted, not hours: while we are stopped ourselves, nobody can show anything.
        """
        used: dict[int, str] = {}
        still: dict[int, float] = {}
        every = min(LOOK_SECONDS, self.patience / 4)
        while not over.wait(every):
            here = workers()
            for pid in here:
                now = processor_time(pid)
                still[pid] = still.get(pid, 0.0) + every if now and used.get(pid) == now else 0.0
                used[pid] = now
            silent = [pid for pid in here if still[pid] >= self.patience]
            if silent and len(here) - len(silent) < min(len(self._busy), self.size):
                for pid in silent:
                    _send(pid, signal.SIGKILL)
                    still[pid] = 0.0
                told = f"a worker process showed no sign of life for {self.patience:,.0f} s, and was ended"
                print(f"{told}: its run is taken up again from its last checkpoint", file=sys.stderr, flush=True)


def workers() -> list[int]:
    """Process ids of the worker processes that this process has."""
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.pid is not None and child.name.startswith("Loky")]


def processor_time(pid: int) -> str:
    """What a process has used so far (on Linux: its main thread), as the system writes it; empty if it does not say."""
    try:
        return " ".join(Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    except OSError:
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["ps", "-o", "time=", "-p", str(pid)]
            return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        return ""


def _send(pid: int, signum: int) -> None:
    with suppress(OSError):
        os.kill(pid, signum)


def _begin(parent: int) -> None:
    """In a worker, when it starts. Requests to stop are for pieces of work; they must not end a worker that is idle."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    if os.name == "posix":
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """End with the arena, however it ended. What was being trained resumes from its last checkpoint."""
    above = os.getppid()  # the arena, or a wrapper around Python that it started us by
    if above == parent or _alive(parent):
        while os.getppid() == above:
            time.sleep(LOOK_SECONDS)
    os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _numbered(number: int, work: Work, piece: Piece) -> tuple[int, Outcome]:
    return number, work(*piece)
