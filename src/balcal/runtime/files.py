"""Files that are either there in full or not at all; sealed files, which have their checksum in their name.

A file is written under a temporary name beside its place, `.unfinished-KERNEL-RANDOM-NAME`, and then renamed. The
random part keeps two writers apart: process ids may be equal in containers and on clusters. The writer holds a lock on
it. Whoever shares the folder removes only what nobody writes any more. If the lock is free and was taken under the
running kernel, which knows all of its own locks, that is at once. Otherwise locks of other hosts may be invisible, and
it is after a day.
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
"""the locked file in an unfinished folder"""
STALE = 24 * 3600.0
"""seconds after which an unfinished file counts as abandoned, where locks cannot tell"""


def cache_folder() -> Path:
    """The folder that we write to: BALCAL_CACHE, or the platform's cache folder."""
    if named := os.environ.get("BALCAL_CACHE"):
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("balcal"))


def write_atomic(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file beside its place, flush it to disk, rename it. A crash leaves the old file or the new one.

    A large content may come in parts. Unfinished versions that a killed process left are removed.
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
    """Write a file unless it has this content already, so that reading a run does not touch its files."""
    try:
        same = path.read_bytes() == content
    except OSError:
        same = False
    if not same:
        write_atomic(path, content)


def sweep(folder: Path, shared: bool = False) -> None:
    """Remove unfinished files below a folder; where others may be writing (`shared`), only abandoned ones."""
    for debris in list(folder.glob(f"**/{PREFIX}*")):
        if shared:
            sweep_abandoned(debris.parent)
        else:
            remove(debris)


def save_sealed(folder: Path, stem: str, value: Any) -> Path:
    """Save tensors as `stem.<checksum>.pt`, for torch.load; the checksum tells whether the content is complete."""
    buffer = io.BytesIO()
    torch.save(_canonical(value), buffer)
    content = buffer.getvalue()
    path = folder / f"{stem}.{seal(content)}.pt"
    write_atomic(path, content)
    return path


def _canonical(value: Any) -> Any:
    """A copy in which equal strings are one object, so that equal values give equal bytes.

    Pickle writes an object that occurs twice once, and strings read from a file are other objects than the program's.
    """
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
    """Load what `save_sealed` saved."""
    content = read_sealed(path)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise BalcalError(f"{path} is not a checkpoint of balcal ({type(error).__name__})") from None


def save_sealed_json(folder: Path, stem: str, value: Any) -> Path:
    """Save plain values as `stem.<checksum>.json`."""
    content = (json.dumps(value, indent=1) + "\n").encode()
    path = folder / f"{stem}.{seal(content)}.json"
    write_atomic(path, content)
    return path


def read_sealed(path: Path) -> bytes:
    """The content of a sealed file; an error if it does not match the checksum in its name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    if seal_in_name(path) != seal(content):
        raise BalcalError(f"checkpoint {path} is damaged: its content does not match the checksum in its name")
    return content


def seal_in_name(path: Path) -> str:
    """The checksum in a sealed file's name.

    >>> seal_in_name(Path("weights-e0003.0123456789abcdef.pt"))
    '0123456789abcdef'
    """
    return path.stem.rpartition(".")[2]


def seal(content: bytes) -> str:
    """The checksum of a content: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def new_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new, locked file beside the target. It is removed at the end: rename it when it is complete."""
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
    """A new, locked folder beside the target. It is removed at the end, with all that is still in it."""
    while True:
        beside = _name(target)
        beside.mkdir()
        try:
            try:
                file = open(beside / LOCK, "xb")  # noqa: SIM115
            except FileNotFoundError:
                if beside.exists():
                    raise
                continue  # another process took it for abandoned, and removed it
            with file:
                if _lock(file, beside / LOCK):
                    yield beside
                    return
        finally:
            remove(beside)


def sweep_abandoned(folder: Path, name: str = "") -> None:
    """Remove abandoned unfinished files from a folder that others share; with a name, only those of that file."""
    with suppress(OSError):
        for path in [*folder.iterdir()]:
            if path.name.startswith(PREFIX) and path.name.endswith(f"-{name}" if name else ""):
                _remove_abandoned(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content. Its lock goes last, so that a crash leaves that too."""
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
    """Eight hex digits for the running kernel; random ones where it has no id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = secrets.token_bytes(16)
    return hashlib.sha256(boot).hexdigest()[:8]


def _lock(file: IO[bytes], path: Path) -> bool:
    """Lock a new file; false if another process took it for abandoned before."""
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
    """Remove an unfinished file or folder if nobody writes it; its lock is held meanwhile, so that nobody begins to."""
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
