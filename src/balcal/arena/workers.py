"""Who does the jobs: this process, several processes of this machine (joblib), or the workers of a Dask cluster.

All three are given jobs and hand back outcomes as they come. A worker that is killed loses nothing: its job is done
again by another one, from its last checkpoint. A job that kills every worker that takes it has failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from balcal.arena.jobs import PATIENCE, Arguments, Job, Outcome
from balcal.arena.processes import DIED, Processes, in_background, until_stopped
from balcal.core import BalcalError
from balcal.runtime.devices import StopRequest

ANSWER_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0


class Workers(Protocol):
    stop: StopRequest

    @property
    def size(self) -> int: ...

    def outcomes(self, job: Job, arguments: Sequence[Arguments]) -> Iterator[tuple[int, Outcome]]:
        """Do the job once per arguments: (their number, how it ended), in the order in which they end.

        It ends early if asked to stop.
        """
        ...

    def close(self) -> None: ...


@contextmanager
def open_workers(jobs: int, scheduler: str | None = None, patience: float = PATIENCE) -> Iterator[Workers]:
    """Workers that stop when this process is asked to; `scheduler` is the address of a Dask cluster.

    `patience`: seconds without a sign of life after which a worker counts as dead.
    """
    if not patience > 0:
        raise BalcalError(f"patience is a number of seconds above 0, not {patience}")
    if jobs < 1:
        raise BalcalError(f"there must be at least one job at a time, not {jobs}")
    here = ThisProcess() if jobs == 1 else Processes(jobs, patience)
    workers: Workers = Cluster(scheduler, patience) if scheduler else here
    try:
        with workers.stop:
            yield workers
    finally:
        workers.close()


@dataclass
class ThisProcess:
    """One job after the other."""

    size: int = 1
    stop: StopRequest = field(default_factory=StopRequest)

    def outcomes(self, job: Job, arguments: Sequence[Arguments]) -> Iterator[tuple[int, Outcome]]:
        for number, given in until_stopped(enumerate(arguments), self.stop):
            outcome = job(*given)
            self.stop.signum = self.stop.signum or outcome.signum
            yield number, outcome

    def close(self) -> None:
        pass


@dataclass
class Cluster:
    """The workers of a Dask cluster that is there already. They must see the same folder of runs."""

    address: str
    patience: float = PATIENCE
    """seconds that all workers together may go without telling the scheduler that they are there"""
    stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        try:
            import distributed
        except ImportError:
            raise BalcalError("a Dask cluster needs the package `distributed`: pip install 'balcal[dask]'") from None
        self._dask = distributed
        try:
            self._client = distributed.Client(self.address, set_as_default=False, timeout=ANSWER_SECONDS)
            self._heard = self._listen()
        except (OSError, ValueError, TimeoutError) as error:
            raise BalcalError(f"no Dask scheduler answers at {self.address} ({type(error).__name__})") from None
        self._silent = 0.0

    @property
    def size(self) -> int:
        return max(1, len(self._heard))

    def outcomes(self, job: Job, arguments: Sequence[Arguments]) -> Iterator[tuple[int, Outcome]]:
        waiting: dict[Any, int] = {}
        self._silent, self._every = 0.0, min(HEARTBEAT_SECONDS, self.patience / 4)
        with in_background(self._look, self._every):
            try:
                waiting |= {self._client.submit(job, *given, pure=False): n for n, given in enumerate(arguments)}
                while waiting and not self.stop:
                    time.sleep(0.1)
                    self._check()
                    for future in [future for future in waiting if future.done()]:
                        if outcome := self._outcome(future):
                            yield waiting.pop(future), outcome
            finally:
                for future in waiting:
                    future.release()

    def _check(self) -> None:
        if self._client.status != "running":
            raise self._gone()
        if self._silent >= self.patience:
            raise BalcalError(
                f"no worker of the Dask cluster at {self.address} showed a sign of life for {self._silent:,.0f} s: "
                "start workers there, and give the same command again; what was trained is kept"
            )

    def _gone(self) -> BalcalError:
        return BalcalError(
            f"the Dask scheduler at {self.address} has gone away: start it and its workers again, and give the same "
            "command; what was trained is kept"
        )

    def _outcome(self, future: Any) -> Outcome | None:
        """None while its worker does not hand it over."""
        if future.status in ("cancelled", "lost"):  # not by us: that is what losing the scheduler looks like
            raise self._gone()
        try:
            found: Outcome = future.result(timeout=ANSWER_SECONDS)
            return found
        except self._dask.scheduler.KilledWorker:
            return Outcome(error=DIED)
        except Exception as error:
            if isinstance(error, TimeoutError) and future.status == "finished":
                return None
            self._check()
            return Outcome(error=f"the cluster could not run it ({type(error).__name__}: {error})".replace("\n", " "))

    def _look(self) -> None:
        """Looks are counted, not hours: while this process is stopped, it hears nobody."""
        now = self._heard
        with suppress(Exception):  # a scheduler that does not answer is no sign of life either
            now = self._listen()
        heard = any(self._heard.get(worker) != at for worker, at in now.items())
        self._silent, self._heard = (0.0 if heard else self._silent + self._every), now

    def _listen(self) -> dict[str, float]:
        """When the scheduler last heard of each worker."""
        identity = self._client.sync(self._client.scheduler.identity, callback_timeout=ANSWER_SECONDS)
        return {worker: each["last_seen"] for worker, each in identity["workers"].items()}

    def close(self) -> None:
        """Without the client's own complaint about a scheduler that is gone."""
        logger = logging.getLogger("distributed.client")
        before = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            self._client.close()
        finally:
            logger.setLevel(before)
