"""The machine: which device, how memory is given back, and the other processes of the same run."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from balcal.core import BalcalError
from balcal.settings import check_value, within

TIMEOUT = "BALCAL_TIMEOUT"
PATIENCE_SECONDS = 1800
"""long enough for what only the first process does meanwhile: fetching data, evaluating"""


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
    """Ask glibc to reuse large blocks instead of giving them back after each batch (fewer page faults on CPUs).

    `MALLOC_MMAP_THRESHOLD_` in the environment does the same from outside, and then wins. Other libcs: nothing happens.
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
    """The processes of one run. Alone, every call here returns at once."""

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None
    """a gloo group for small facts held in ordinary memory, so that asking never waits for a GPU"""

    @property
    def first(self) -> bool:
        """Only the first process writes and speaks."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> None:
        """Add up in place over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def rows(self, tensor: Tensor) -> Tensor:
        """What each process has, in the order of their ranks: (processes, ...)."""
        if self.size == 1:
            return tensor[None]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def share(self, *tensors: Tensor) -> None:
        """Everybody takes what the first process has."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def told(self, value: Any) -> Any:
        """What the first process has to say, for everybody."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def any(self, flag: bool) -> bool:
        """Whether it is so for at least one process; all of them hear the same answer."""
        if self.size == 1:
            return flag
        fact = torch.tensor([int(flag)])
        dist.all_reduce(fact, group=self.control)
        return bool(fact)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.control)


def current_world(control: bool = True) -> World:
    """The processes that somebody set up already, if any."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        group = dist.new_group(backend="gloo", timeout=patience()) if control else None
        return World(dist.get_rank(), dist.get_world_size(), group)
    return World()


def patience() -> timedelta:
    """How long a process waits for the others of its run: BALCAL_TIMEOUT in seconds."""
    told = os.environ.get(TIMEOUT, "").strip() or str(PATIENCE_SECONDS)
    try:
        return timedelta(seconds=check_value(TIMEOUT, float(told), float, within("[1, 1e6]")))
    except ValueError:
        raise BalcalError(f"{TIMEOUT} must be a number of seconds, not `{told}`") from None


@contextmanager
def joined_world(device: torch.device) -> Iterator[World]:
    """Join the other processes that torchrun started, for as long as the block lasts."""
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
    except ValueError as error:  # what torchrun says in the environment is not there, or is no number
        raise BalcalError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} announces several processes that are not there ({error}): "
            "start them with torchrun, or unset WORLD_SIZE"
        ) from None


def _waited(error: RuntimeError) -> bool:
    return any(word in str(error).lower() for word in ("timed out", "timeout"))


def _lost_contact(error: RuntimeError) -> bool:
    words = ("Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket", "recv", "send")
    return isinstance(error, dist.DistError) or _waited(error) or any(word in str(error) for word in words)
