"""Temporary names for what is being written, and how others tell it from debris.

A name is `.unfinished-KERNEL-RANDOM-NAME`, beside the place that the finished file will take. The random part is what
keeps two writers apart: process ids are equal in containers and on clusters. The writer holds a lock while it lives.
Who shares the folder removes only what nobody writes any more: at once if its lock is free and was taken under the
running kernel, which knows all locks of its own; otherwise, as locks of other hosts may be invisible, after a day.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, age alone decides
    fcntl = None  # type: ignore[assignment]

PREFIX = ".unfinished-"
LOCK = ".lock"
"""the file in a folder in the making that carries its lock"""
STALE = 24 * 3600.0
"""seconds after which something unfinished cannot be in the making any more, as far as locks cannot tell"""


@contextmanager
def new_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new file beside the target, under a lock. It is removed at the end: rename it when it is complete."""
    while True:
        beside = _name(target)
        file = open(beside, "xb")  # noqa: SIM115
        try:
            with file:
                if _lock(file, beside):
                    yield beside, file
                    return
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, under a lock, and removed at the end with all that is still in it."""
    while True:
        beside = _name(target)
        beside.mkdir()
        try:
            try:
                file = open(beside / LOCK, "xb")  # noqa: SIM115
            except FileNotFoundError:
                if beside.exists():
                    raise
                continue  # a sweeper was quicker
            with file:
                if _lock(file, beside / LOCK):
                    yield beside
                    return
        finally:
            remove(beside)


def sweep_abandoned(folder: Path, name: str = "") -> None:
    """Remove what nobody writes any more from a folder that others share; with a name, only what was to become that."""
    with suppress(OSError):
        for path in [*folder.iterdir()]:
            if path.name.startswith(PREFIX) and path.name.endswith(f"-{name}" if name else ""):
                _remove_abandoned(path)


def remove(path: Path) -> None:
    """A file, or a folder with all that is in it; its lock goes last, so that what is left at a crash can be judged."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    with suppress(OSError):
        for inside in path.iterdir():
            if inside.name != LOCK:
                remove(inside)
    shutil.rmtree(path, ignore_errors=True)


def _name(target: Path) -> Path:
    return target.with_name(f"{PREFIX}{_kernel()}-{secrets.token_hex(8)}-{target.name}")


@cache
def _kernel() -> str:
    """Eight letters for the kernel that runs; where they cannot be had, letters that nobody else has."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = secrets.token_bytes(16)
    return hashlib.sha256(boot).hexdigest()[:8]


def _lock(file: IO[bytes], path: Path) -> bool:
    """Lock a file that was just made; false if a sweeper was quicker and has taken it for debris."""
    if fcntl:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> None:
    """The lock is kept while the file is removed, so that nobody can begin to write it in between."""
    marked = path / LOCK if path.is_dir() else path
    ours = path.name.startswith(f"{PREFIX}{_kernel()}-")
    known, held = False, -1
    try:
        if ours:
            with suppress(OSError):
                path.rmdir()  # an empty folder, just made or almost removed
                return
        if fcntl and marked.is_file():
            held = os.open(marked, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                known = ours
            except BlockingIOError:
                return
            except OSError:
                pass  # a file system without locks
        if known or time.time() - path.stat().st_mtime > STALE:
            remove(path)
    except OSError:
        pass  # finished or removed meanwhile, or somebody else's
    finally:
        if held >= 0:
            os.close(held)
