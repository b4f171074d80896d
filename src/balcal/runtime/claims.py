"""Claims on a folder: by one process that trains there, or by any number that only read.

A claim is a lock on the file `.claim`; it ends with its process, however that ends. Where the file system has no locks,
nothing is claimed. Files are written as a whole and say what they were made from, so two processes do each other no
harm.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from balcal.core import BalcalError
from balcal.runtime.files import sweep

try:
    import fcntl
except ImportError:  # Windows: two trainings of one recipe at once are then up to the user
    fcntl = None  # type: ignore[assignment]

NAME = ".claim"
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""errors of a lock that another process holds; any other error means that the file system has no locks"""


class Claimed(BalcalError):
    """Another process is using this folder."""


_mine: dict[tuple[Path, int], bool] = {}
"""claims of this process, by folder and thread, and whether they are shared"""


@contextmanager
def claim(folder: Path, shared: bool) -> Iterator[None]:
    """Claim a folder, alone or shared. Claims of one thread may be nested; the folder is free after the outer one."""
    key = folder.absolute(), threading.get_ident()
    if key in _mine:
        if _mine[key] and not shared:
            raise Claimed(f"{folder} is in use by this process: train before or after looking at it")
        yield
        return
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = _locked(folder, shared)
    _mine[key] = shared
    try:
        yield
    finally:
        del _mine[key]
        if new:
            _remove_if_empty(new)
        os.close(lock)


def _locked(folder: Path, shared: bool) -> int:
    """The descriptor of the locked file."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise BalcalError(
                f"cannot write to {folder} ({error.strerror}): choose another folder with --out"
            ) from None
        try:
            if not _lock(lock, shared):
                raise Claimed(
                    f"{folder} is being trained {'' if shared else 'or evaluated '}by another process: "
                    "wait for it or stop it"
                )
            if _is(lock, folder / NAME):
                sweep(folder, shared)
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its former owner has removed the folder meanwhile


def _lock(lock: int, shared: bool) -> bool:
    """Whether the lock was free."""
    if not fcntl:
        return True
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in TAKEN
    return True


def _is(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except OSError:
        return False


def _remove_if_empty(new: Sequence[Path]) -> None:
    """Remove a new folder that stayed empty, and the folders above that were made for it."""
    with suppress(OSError):
        if os.listdir(new[0]) == [NAME]:
            os.unlink(new[0] / NAME)
            for folder in new:
                os.rmdir(folder)
