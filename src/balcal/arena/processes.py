"""Worker processes of this machine (joblib). None outlives the arena, and none holds it up for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from balcal.arena.jobs import PATIENCE, Arguments, Job, Outcome
from balcal.runtime.devices import StopRequest

DIED = "its worker process died (killed, or out of memory)"
LOOK_SECONDS = 1.0


class PassedOn(StopRequest):
    """Takes note, and signals the worker processes, again and again: one that is just starting does not listen yet."""

    def __init__(self) -> None:
        super().__init__()
        self._left = threading.Event()

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        self._left.set()

    def note(self, signum: int) -> None:
        super().note(signum)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        while not self._left.is_set():
            for pid in worker_pids():
                _send(pid, signal.SIGTERM)
            self._left.wait(0.5)


@dataclass
class Processes:
    """A job whose worker dies is done again, from its last checkpoint; one that kills every worker has failed."""

    size: int
    patience: float = PATIENCE
    """seconds that a busy worker may go without using the processor"""
    stop: StopRequest = field(default_factory=PassedOn)

    def __post_init__(self) -> None:
        self._busy: set[int] = set()
        """jobs that were handed out and have not come back"""

    def outcomes(self, job: Job, arguments: Sequence[Arguments]) -> Iterator[tuple[int, Outcome]]:
        left = dict(enumerate(arguments))
        self._used, self._idle = dict[int, str](), dict[int, float]()
        self._every = min(LOOK_SECONDS, self.patience / 4)
        with in_background(self._look, self._every):
            while left and not self.stop:
                taken: list[int] = []
                try:
                    for number, outcome in self._together(job, left, taken):
                        if outcome.signum and not self.stop:
                            continue  # that worker alone was asked to stop: the job has its turn again
                        del left[number]
                        yield number, outcome
                except TerminatedWorkerError:
                    for number in until_stopped([n for n in taken if n in left], self.stop):
                        yield number, self._apart(job, number, left.pop(number))

    def _together(self, job: Job, left: dict[int, Arguments], taken: list[int]) -> Iterator[tuple[int, Outcome]]:
        """Few more jobs are handed out than there are workers, so that we know which ones a death concerns."""
        self._busy.clear()

        def handed_out() -> Iterator[Any]:
            for number, given in until_stopped(list(left.items()), self.stop):
                taken.append(number)
                self._busy.add(number)
                yield delayed(_numbered)(number, job, given)

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

    def _apart(self, job: Job, number: int, given: Arguments) -> Outcome:
        """Some worker has died, of this job or of another: by itself it may have three more."""
        for _ in range(3):
            try:
                for _, outcome in list(self._together(job, {number: given}, [])):
                    return outcome
            except TerminatedWorkerError:
                pass
            if self.stop:
                return Outcome(signum=self.stop.signum)
        return Outcome(error=DIED)

    def _look(self) -> None:
        """End workers that show no sign of life; to the rest of the arena they have died then.

        A worker that trains or waits for a run uses the processor now and then, in the longest epoch too. One that is
        stopped, stuck or idle does not. So one is stuck if fewer are awake than there are jobs handed out. Looks are
        counted, not hours: while this process is stopped, no worker can show anything.
        """
        here = worker_pids()
        for pid in here:
            now = processor_time(pid)
            self._idle[pid] = self._idle.get(pid, 0.0) + self._every if now and self._used.get(pid) == now else 0.0
            self._used[pid] = now
        silent = [pid for pid in here if self._idle[pid] >= self.patience]
        if silent and len(here) - len(silent) < min(len(self._busy), self.size):
            for pid in silent:
                _send(pid, signal.SIGKILL)
                self._idle[pid] = 0.0
            message = f"a worker process showed no sign of life for {self.patience:,.0f} s, and was ended"
            print(f"{message}: its run is taken up again from its last checkpoint", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


Item = TypeVar("Item")


def until_stopped(items: Iterable[Item], stop: StopRequest) -> Iterator[Item]:
    """The items, one by one, until there is a request to stop."""
    for item in items:
        if stop:
            return
        yield item


@contextmanager
def in_background(look: Callable[[], None], every: float) -> Iterator[None]:
    """Call `look` every so many seconds, in a thread, until the block is left."""
    over = threading.Event()

    def keep_looking() -> None:
        while not over.wait(every):
            look()

    threading.Thread(target=keep_looking, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def worker_pids() -> list[int]:
    """Process ids of the worker processes that this process has."""
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.pid is not None and child.name.startswith("Loky")]


def processor_time(pid: int) -> str:
    """What a process has used so far (on Linux: its main thread), as the system writes it; empty if it does not say."""
    try:
        return " ".join(Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    except OSError:
        with suppress(OSError, subprocess.SubprocessError):
            command = ["ps", "-o", "time=", "-p", str(pid)]
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        return ""


def _send(pid: int, signum: int) -> None:
    with suppress(OSError):
        os.kill(pid, signum)


def _begin(parent: int) -> None:
    """In a worker, when it starts. Requests to stop are for jobs; they must not end a worker that is idle."""
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


def _numbered(number: int, job: Job, given: Arguments) -> tuple[int, Outcome]:
    return number, job(*given)
