"""Find, fetch and unpack files: the folders to look in, downloads with a checksum, archives that are not trusted.

We look in the folders that BALCAL_DATA names, then in our cache, where downloads go. BALCAL_OFFLINE=1 forbids the
network. A download is kept only if it has the published checksum. An archive is unpacked whole or not at all, and never
outside its own folder.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from balcal.core import BalcalError
from balcal.runtime.files import cache_folder, new_folder, sweep_abandoned
from balcal.runtime.names import plain

DATA, CACHE, OFFLINE = "BALCAL_DATA", "BALCAL_CACHE", "BALCAL_OFFLINE"
RETRIES = 2
"""further tries after a transfer that broke off or arrived damaged"""
TIMEOUT = (10, 60)
"""seconds to connect, and to wait for the next piece"""
Member = tuple[str, int, IO[bytes] | None]
"""of an archive: name, declared size, and content; a folder has none"""


class BadArchive(Exception):
    """What is wrong with an archive."""


DAMAGED = (
    BadArchive,
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # of zipfile, for an unknown kind of compression
)
"""what reading a damaged archive raises"""


cache = cache_folder
"""BALCAL_CACHE, or the platform's cache folder"""


def data_folders() -> list[Path]:
    """Where to look for data, in this order."""
    named = os.environ.get(DATA, "").split(os.pathsep)
    return [*(Path(folder).expanduser() for folder in named if folder.strip()), cache()]


def offline() -> bool:
    return os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no")


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A path to write to, beside the target. Rename it to the target when it is complete: what is left is removed.

    The cache may be shared with other hosts. Files that they are still writing stay.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(target.parent)
        with new_folder(target) as folder:
            yield folder / target.name
    except OSError as error:
        raise BalcalError(
            f"cannot write {target} ({error.strerror or error}): make room, or name another folder in {CACHE}"
        ) from None


def checksum_of(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has a checksum such as `md5:c58f30...` or `sha256:47af8b...`."""
    kind, _, wanted = checksum.partition(":")
    return checksum_of(path, kind) == wanted.lower()


@dataclass(frozen=True)
class Download:
    """A file as its authors publish it."""

    name: str
    urls: tuple[str, ...]
    """the same file at several addresses, tried in this order"""
    checksum: str

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))


def fetch(download: Download, into: Path) -> Path:
    """Download a file to the folder `into`. If it cannot be had with the right checksum, nothing is kept."""
    if offline():
        raise BalcalError(f"{download.name} may not be fetched: {OFFLINE} is set")
    target = into / download.name
    if target.is_file() and matches(target, download.checksum):
        return target
    reasons = []
    with unfinished(target) as beside:
        for url in download.urls:
            print(f"fetching {url} into {plain(into)}", file=sys.stderr, flush=True)
            if (reason := _transferred(url, download.checksum, beside)) is None:
                os.replace(beside, target)
                return target
            reasons.append(f"{url}: {reason}")
    raise BalcalError(f"{download.name} could not be fetched ({'; '.join(reasons)}) and nothing of it was kept")


def _transferred(url: str, checksum: str, beside: Path) -> str | None:
    """Download a file, with retries. Returns the reason if that failed."""
    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel("WARNING")
    for attempt in range(1 + RETRIES):
        bar = _Bar(beside.name)
        try:
            downloader = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT)
            pooch.retrieve(url, checksum, beside.name, beside.parent, downloader=downloader)
            return None
        except ValueError:
            reason, again = "what arrives does not have the published checksum", True
        except RequestException as error:
            reason, again = _why(error)
        finally:
            bar.close()
        if not again or attempt == RETRIES:
            break
        time.sleep(attempt + 0.5)
    return reason


def _why(error: Exception) -> tuple[str, bool]:
    """The reason in a few words, and whether another try may succeed."""
    from requests.exceptions import ChunkedEncodingError, HTTPError

    if isinstance(error, ChunkedEncodingError):
        return "the transfer broke off", True
    if isinstance(error, HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}", error.response.status_code >= 500
    return "no connection", False


class _Bar:
    """A progress bar with the interface that pooch asks for, drawn by rich, on terminals only."""

    def __init__(self, title: str) -> None:
        self._bar: Any = None
        self._total = 0
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(title, total=None)

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        if self._bar:
            self._bar.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        if self._bar:
            self._bar.advance(self._task, size)

    def reset(self) -> None:
        if self._bar:
            self._bar.update(self._task, completed=0)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


def unpack(archive: Path, folder: str, target: Path, needs: Iterable[str]) -> None:
    """Unpack `archive` so that the folder `folder` in it becomes `target`. It must hold the files that it `needs`."""
    needed = list(needs)
    with unfinished(target) as beside:
        try:
            beside.mkdir()
            members = _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive)
            for name, size, content in members:
                _write_member(beside, name, size, content)
            if missing := missing_of(beside / folder, needed):
                raise BadArchive(f"it has no {folder}/{missing[0]}")
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
    """The names that a folder lacks, as a file or as a folder. A pipe, which could block a reader, does not count."""
    return [name for name in needed if not ((folder / name).is_file() or (folder / name).is_dir())]


def _write_member(root: Path, name: str, size: int, content: IO[bytes] | None) -> None:
    path = root / safe_name(name)
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    if size > shutil.disk_usage(root).free:
        raise BadArchive(f"`{name}` says it has {size:,} bytes, which is more than the disk has room for")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, open(path, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        if file.tell() != size:
            raise BadArchive(f"`{name}` has {file.tell():,} bytes instead of {size:,}: the archive is cut off")


def safe_name(name: str) -> PurePosixPath:
    """The path of a member, if it stays inside its folder; else an error.

    >>> safe_name("./cifar/train").parts
    ('cifar', 'train')
    >>> safe_name("../../etc/passwd")
    Traceback (most recent call last):
    balcal.data.download.BadArchive: `../../etc/passwd` leads out of its folder
    """
    path = PurePosixPath(name)
    windows = "\\" in name or ":" in name  # a drive or a separator there, a character without meaning here
    if path.is_absolute() or ".." in path.parts or windows or "\0" in name:
        raise BadArchive(f"`{name}` leads out of its folder")
    return path


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise BadArchive(f"`{member.name}` is neither a file nor a folder but a link or a device")
            yield member.name, member.size, tar.extractfile(member)


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise BadArchive(f"`{member.filename}` is neither a file nor a folder but a link or a device")
            if member.flag_bits & 1:
                raise BadArchive(f"`{member.filename}` is encrypted")
            yield member.filename, member.file_size, None if member.is_dir() else zipped.open(member)
