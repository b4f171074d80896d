"""Archives of strangers, unpacked with suspicion: whole or not at all, and never outside their own folder."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from balcal.core import BalcalError
from balcal.data.places import unfinished

Member = tuple[str, int, IO[bytes] | None]
"""name, declared size, and content; a folder has none"""


class Refused(Exception):
    """What is wrong with an archive."""


DAMAGED = (
    Refused,
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # of zipfile, for an unknown kind of compression
)


def unpack(archive: Path, folder: str, target: Path, needs: Iterable[str]) -> None:
    """Unpack `archive`, whose one folder is `folder` and holds what is needed, so that this folder becomes `target`."""
    needed = list(needs)
    with unfinished(target) as beside:
        try:
            beside.mkdir()
            members = _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive)
            for name, size, content in members:
                _place(beside, name, size, content)
            if missing := missing_of(beside / folder, needed):
                raise Refused(f"it has no {folder}/{missing[0]}")
        except DAMAGED as error:
            raise BalcalError(f"{archive} is refused: {error}; nothing of it was kept, so fetch it anew") from None
        if target.is_dir() and missing_of(target, needed):
            os.rename(target, beside.with_name("incomplete"))  # and is removed with what is left here
        try:
            os.rename(beside / folder, target)
        except OSError:
            if not target.is_dir() or missing_of(target, needed):
                raise  # else another process has just unpacked the same archive


def missing_of(folder: Path, needed: Iterable[str]) -> list[str]:
    """What a folder lacks: files or folders, and nothing that could be waited for in vain, such as a pipe."""
    return [name for name in needed if not ((folder / name).is_file() or (folder / name).is_dir())]


def _place(root: Path, name: str, size: int, content: IO[bytes] | None) -> None:
    path = root / safe_name(name)
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    if size > shutil.disk_usage(root).free:
        raise Refused(f"`{name}` says it has {size:,} bytes, which is more than the disk has room for")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, open(path, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        if file.tell() != size:
            raise Refused(f"`{name}` has {file.tell():,} bytes instead of {size:,}: the archive is cut off")


def safe_name(name: str) -> PurePosixPath:
    """A member's path if it stays inside, or an error.

    >>> safe_name("./cifar/train").parts
    ('cifar', 'train')
    >>> safe_name("../../etc/passwd")
    Traceback (most recent call last):
    balcal.data.archives.Refused: `../../etc/passwd` leads out of its folder
    """
    path = PurePosixPath(name)
    windows = "\\" in name or ":" in name  # a drive or a separator there, a character without meaning here
    if path.is_absolute() or ".." in path.parts or windows or "\0" in name:
        raise Refused(f"`{name}` leads out of its folder")
    return path


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise Refused(f"`{member.name}` is neither a file nor a folder but a link or a device")
            yield member.name, member.size, tar.extractfile(member)


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise Refused(f"`{member.filename}` is neither a file nor a folder but a link or a device")
            if member.flag_bits & 1:
                raise Refused(f"`{member.filename}` is encrypted")
            yield member.filename, member.file_size, None if member.is_dir() else zipped.open(member)
