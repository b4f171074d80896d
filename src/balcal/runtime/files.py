"""Temporary names for what is being written, and how others tell it from debris.

A name is `.unfinished-KERNEL-RANDOM-NAME`, beside the place that the finished file will take. The random part is what
keeps two writers apart: process ids are equal in containers and on clusters. The writer holds a lock while it lives.
Who shares the folder removes only what nobody writes any more: at once if its lock is free and was taken under the
running kernel, which knows all locks of its own; otherwise, as locks of other hosts may be invisible, after a day.

Files that are either there in full or not there at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from balcal.core import BalcalError

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


def write_atomic(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write beside, flush to disk, rename. A crash leaves the old file or the new one; a full disk leaves no debris.

    What is too big to hold may come in parts. What a killed process left of the same file is removed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(path.parent, path.name)
        with new_file(path) as (beside, file):
            for part in [content] if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":  # where an open file cannot be renamed
                file.close()
            os.replace(beside, path)
        if os.name == "posix":
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise BalcalError(
            f"cannot write {path} ({error.strerror}): make room or choose another folder with --out; "
            "what was saved before is intact"
        ) from None


def write_if_other(path: Path, content: bytes) -> None:
    """Write a file unless it has this content already, so that looking at a run does not touch its files."""
    try:
        same = path.read_bytes() == content
    except OSError:
        same = False
    if not same:
        write_atomic(path, content)


def sweep(folder: Path, shared: bool = False) -> None:
    """Remove what killed processes left unfinished below a folder; where others may be writing, only that."""
    for debris in list(folder.glob(f"**/{PREFIX}*")):
        if shared:
            sweep_abandoned(debris.parent)
        else:
            remove(debris)


def save_sealed(folder: Path, stem: str, value: Any) -> Path:
    """Save tensors as `stem.<checksum>.pt`: the name tells whether the content is whole, and torch.load reads it."""
    buffer = io.BytesIO()
    torch.save(_canonical(value), buffer)
    content = buffer.getvalue()
    path = folder / f"{stem}.{seal(content)}.pt"
    write_atomic(path, content)
    return path


def _canonical(value: Any) -> Any:
    """Equal values as equal bytes: pickle writes an object that occurs twice once, and strings that were read from a
    file are not the objects that strings of the program are."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        same = type(value)((_canonical(key), _canonical(each)) for key, each in value.items())
        for name, more in getattr(value, "__dict__", {}).items():  # versions of modules, in a state_dict
            setattr(same, name, _canonical(more))
        return same
    if type(value) in (list, tuple):
        return type(value)(_canonical(each) for each in value)
    return value


def load_sealed(path: Path) -> Any:
    """What `save_sealed` saved, or an error that says what is wrong with it."""
    content = read_sealed(path)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise BalcalError(f"{path} is not a checkpoint of balcal ({type(error).__name__})") from None


def save_sealed_json(folder: Path, stem: str, value: Any) -> Path:
    """Plain values as `stem.<checksum>.json`."""
    content = (json.dumps(value, indent=1) + "\n").encode()
    path = folder / f"{stem}.{seal(content)}.json"
    write_atomic(path, content)
    return path


def read_sealed(path: Path) -> bytes:
    """The content of a sealed file, which must match the checksum in its name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    if seal_in_name(path) != seal(content):
        raise BalcalError(f"checkpoint {path} is damaged: its content does not match the checksum in its name")
    return content


def seal_in_name(path: Path) -> str:
    """The checksum that a sealed file was given.

    >>> seal_in_name(Path("weights-e0003.0123456789abcdef.pt"))
    '0123456789abcdef'
    """
    return path.stem.rpartition(".")[2]


def seal(content: bytes) -> str:
    """Sixteen letters that change with any byte."""
    return hashlib.sha256(content).hexdigest()[:16]
