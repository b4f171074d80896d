"""Who does the work: this process, several processes of this machine (joblib), or the workers of a Dask cluster.

A crew is given pieces of work and hands back outcomes as they come. A worker that is killed takes nothing with it: its
piece is done again by another one, from its last checkpoint. A piece that kills whoever takes it up has failed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from balcal.arena.work import Outcome
from balcal.core import BalcalError
from balcal.stopping import StopRequest

ANSWER_SECONDS = 10.0
DIED = "its worker process died (killed, or out of memory)"
Work = Callable[..., Outcome]
Piece = tuple[Any, ...]
"""arguments of the work"""


class Crew(Protocol):
    stop: StopRequest

    @property
    def size(self) -> int: ...

    def outcomes(self, work: Work, pieces: Sequence[Piece]) -> Iterator[tuple[int, Outcome]]:
        """(number of the piece, how it ended), in the order in which they end; ends early if asked to stop."""
        ...


class PassedOn(StopRequest):
    """Takes note, and tells the worker processes, again and again: one that is still loading data has no ear for it."""

    def __init__(self) -> None:
        super().__init__()
        self._left = threading.Event()

    def __exit__(self, *reason: object) -> None:
        super().__exit__(*reason)
        self._left.set()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        super()._note(signum, frame)
        threading.Thread(target=self._tell, daemon=True).start()

    def _tell(self) -> None:
        while not self._left.is_set():
            for child in multiprocessing.active_children():
                if child.pid is not None and child.name.startswith("Loky"):
                    with suppress(OSError):
                        os.kill(child.pid, signal.SIGTERM)
            self._left.wait(0.5)


@dataclass
class Alone:
    """This process, one piece after the other."""

    size: int = 1
    stop: StopRequest = field(default_factory=StopRequest)

    def outcomes(self, work: Work, pieces: Sequence[Piece]) -> Iterator[tuple[int, Outcome]]:
        for number, piece in enumerate(pieces):
            if self.stop:
                return
            outcome = work(*piece)
            self.stop.signum = self.stop.signum or outcome.signum
            yield number, outcome


@dataclass
class Processes:
    """Several processes of this machine."""

    size: int
    stop: StopRequest = field(default_factory=PassedOn)

    def outcomes(self, work: Work, pieces: Sequence[Piece]) -> Iterator[tuple[int, Outcome]]:
        left = dict(enumerate(pieces))
        while left and not self.stop:
            taken: list[int] = []
            try:
                for number, outcome in self._together(work, left, taken):
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
        """No more pieces are handed out than there are workers, so that we know which ones a death concerns."""

        def handed_out() -> Iterator[Any]:
            for number, piece in list(pieces.items()):
                if self.stop:
                    return
                taken.append(number)
                yield delayed(_numbered)(number, work, piece)

        at_once = Parallel(self.size, batch_size=1, pre_dispatch=self.size, return_as="generator_unordered")
        yield from at_once(handed_out())

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


def _numbered(number: int, work: Work, piece: Piece) -> tuple[int, Outcome]:
    """In a worker. Requests to stop are for the training loop, which saves; they must not end a worker that is idle."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    return number, work(*piece)


@dataclass
class Cluster:
    """The workers of a Dask cluster that is there already. They must see the same folder of runs."""

    address: str
    stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        try:
            import distributed
        except ImportError:
            raise BalcalError("a Dask cluster needs the package `distributed`: pip install 'balcal[dask]'") from None
        self._dask = distributed
        try:
            self._client = distributed.Client(self.address, set_as_default=False, timeout=ANSWER_SECONDS)
        except (OSError, ValueError, TimeoutError) as error:
            raise BalcalError(f"no Dask scheduler answers at {self.address} ({type(error).__name__})") from None

    @property
    def size(self) -> int:
        return max(1, len(self._client.ncores()))

    def outcomes(self, work: Work, pieces: Sequence[Piece]) -> Iterator[tuple[int, Outcome]]:
        waiting = {self._client.submit(work, *piece, pure=False): n for n, piece in enumerate(pieces)}
        try:
            while waiting and not self.stop:
                time.sleep(0.1)
                for future in [future for future in waiting if future.done()]:
                    yield waiting.pop(future), self._outcome(future)
        finally:
            self._client.cancel(list(waiting))

    def _outcome(self, future: Any) -> Outcome:
        if future.status == "finished":
            found: Outcome = future.result()
            return found
        error = future.exception() if future.status == "error" else None
        if isinstance(error, self._dask.scheduler.KilledWorker):
            return Outcome(error=DIED)
        return Outcome(error=f"the cluster could not run it ({type(error).__name__}: {error})".replace("\n", " "))

    def close(self) -> None:
        self._client.close()


def crew(jobs: int, scheduler: str | None) -> Alone | Processes | Cluster:
    if scheduler:
        return Cluster(scheduler)
    if jobs < 1:
        raise BalcalError(f"there must be at least one job at a time, not {jobs}")
    return Alone() if jobs == 1 else Processes(jobs)
