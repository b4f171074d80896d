"""The machine that a run trains on: its device, the other processes of the run, and requests to stop."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor

from balcal.core import BalcalError

TIMEOUT = "BALCAL_TIMEOUT"
PATIENCE_SECONDS = 1800
"""long enough for what the other processes wait for: the first one downloads data, and evaluates"""


def pick_device(name: str | None = None) -> torch.device:
    """The named device, or the best one there is."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BalcalError(f"cannot use device `{name}` ({reason}); leave --device out to pick one") from None
    return device


def best_precision(device: torch.device | None = None) -> Literal["fp32", "bf16"]:
    """What `plan.precision=auto` becomes: bf16 where the device has instructions for it, else fp32.

    Without them bf16 is emulated, and slower than fp32. Apple's GPUs stay with fp32.
    """
    device = device or pick_device()
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device.type == "cpu" and cpu_has_bf16() else "fp32"


def cpu_has_bf16(described: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether every core says that it has bf16 instructions: avx512_bf16 or amx_bf16 on x86, bf16 on ARM.

    Only Linux says; elsewhere the answer is no.
    """
    try:
        lines = described.read_text().splitlines()
    except OSError:
        return False
    cores = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return bool(cores) and all({"avx512_bf16", "amx_bf16", "bf16"} & {*flags} for flags in cores)


def keep_freed_memory() -> bool:
    """Make glibc reuse large blocks instead of returning them after each batch (fewer page faults on CPUs).

    If `MALLOC_MMAP_THRESHOLD_` is set in the environment, that wins. With another libc nothing happens.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    trim_threshold, mmap_threshold, one_gib = -1, -3, 1 << 30
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(option, one_gib) == 1 for option in (trim_threshold, mmap_threshold))


@dataclass(frozen=True)
class World:
    """The processes of one run. With a single process every method returns at once."""

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None
    """a gloo group for small values in CPU memory, so that exchanging them never waits for a GPU"""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only process that writes files and prints."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> None:
        """Add tensors up over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def rows(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, stacked in the order of their ranks: (processes, ...)."""
        if self.size == 1:
            return tensor[None]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def share(self, *tensors: Tensor) -> None:
        """Overwrite tensors in place with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def broadcast(self, value: Any) -> Any:
        """The value that rank 0 passes, on every rank; any Python object."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on at least one rank; all get the same answer."""
        if self.size == 1:
            return flag
        fact = torch.tensor([int(flag)])
        dist.all_reduce(fact, group=self.control)
        return bool(fact)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.control)


def current_world(control: bool = True) -> World:
    """The processes that were set up already, if any."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        group = dist.new_group(backend="gloo", timeout=patience()) if control else None
        return World(dist.get_rank(), dist.get_world_size(), group)
    return World()


def patience() -> timedelta:
    """How long a process waits for the others of its run, from BALCAL_TIMEOUT in seconds."""
    written = os.environ.get(TIMEOUT, "").strip() or str(PATIENCE_SECONDS)
    try:
        seconds = float(written)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 1e6:
        raise BalcalError(f"{TIMEOUT} must be a number of seconds from 1 to 1,000,000, not `{written}`")
    return timedelta(seconds=seconds)


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """Inside the block, the process group of the processes that torchrun started."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = patience()
    try:
        _join(device, limit)
        yield current_world()
    except RuntimeError as error:
        if not _lost_contact(error):
            raise
        what = "has ended"
        if _waited(error):
            what = f"has not answered for {limit.total_seconds():g} seconds ({TIMEOUT})"
        raise BalcalError(
            f"another process of this run {what}, so this one stops too; "
            "what was saved is intact: start the same command again to resume"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(device: torch.device, limit: timedelta) -> None:
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=limit)
    except ValueError as error:  # torchrun's environment variables are missing, or are not numbers
        raise BalcalError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} announces several processes that are not there ({error}): "
            "start them with torchrun, or unset WORLD_SIZE"
        ) from None


def _waited(error: RuntimeError) -> bool:
    return any(word in str(error).lower() for word in ("timed out", "timeout"))


def _lost_contact(error: RuntimeError) -> bool:
    words = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket", "recv", "send")
    return isinstance(error, dist.DistError) or _waited(error) or any(word in str(error) for word in words)


class Stopped(BalcalError):
    """The run was asked to stop, and did, with everything saved."""

    def __init__(self, where: str, signum: int) -> None:
        super().__init__(f"stopped {where}; everything is saved: give the same command again to resume")
        self.exit_code = 128 + signum


class StopRequest:
    """Inside the block, SIGTERM and the first Ctrl-C only set a flag; a second Ctrl-C interrupts as usual.

    Blocks may be nested. A signal sets the flag of all of them, and a block that is entered later takes the flag over:
    so a request that arrives between two steps is not lost on the second.
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


def sum_dtype(device: torch.device) -> torch.dtype:
    """Sums are kept in float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64
