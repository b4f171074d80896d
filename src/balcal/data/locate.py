"""Locate the files of a data set on disk, in any of its published forms, or fetch them."""

from __future__ import annotations

import lzma
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from balcal.core import BalcalError
from balcal.data.download import DATA, Download, cache, data_folders, fetch, matches, missing_of, offline, unpack
from balcal.runtime.files import sweep_abandoned

T = TypeVar("T")
MALFORMED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    EOFError,
    RuntimeError,  # of zipfile, for an encrypted member or an unknown kind of compression
    MemoryError,  # a header can announce any size
    struct.error,
    zlib.error,
    lzma.LZMAError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""what reading a damaged file raises"""


@dataclass(frozen=True)
class Form(Generic[T]):
    """One form in which a data set is published: a folder with certain files in it, perhaps packed in an archive."""

    folder: str
    """its name; `.` if the files have no folder of their own"""
    files: tuple[tuple[str, str], ...]
    """(what must be in it, its checksum; empty if nobody has published one)"""
    read: Callable[[Path], T]
    downloads: tuple[Download, ...] = ()
    """the archive that unpacks to the folder; or the files themselves"""
    title: str = ""
    """what to call it, where its images are not the published ones to the byte"""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.files]

    @property
    def archive(self) -> Download | None:
        return next((d for d in self.downloads if d.is_archive), None)

    @property
    def expected(self) -> str:
        """What the user has to provide, in words."""
        if self.archive:
            return f"{self.archive.name} (or its folder {self.folder})"
        inside = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        return inside if self.folder == "." else f"the folder {self.folder} with {inside}"


@dataclass(frozen=True)
class Found(Generic[T]):
    """Where a form is, and whether it is still packed."""

    form: Form[T]
    path: Path
    packed: bool = False


@dataclass(frozen=True)
class StoredFiles(Generic[T]):
    """The files of something with a name, in one of several forms. Calling it reads them."""

    name: str
    forms: tuple[Form[T], ...]
    sizes: tuple[int, ...] = ()
    """how many images each part must have"""
    terms: str = ""
    """where to get the files by hand, if no command can fetch them"""

    @property
    def stored(self) -> tuple[StoredFiles[T], ...]:
        return (self,)

    def find(self) -> Found[T] | None:
        """Unpacked folders first, wherever they are, then archives."""
        for root in data_folders():
            for form in self.forms:
                for path in _candidates(root, self.name, form.folder):
                    if not missing_of(path, form.names):
                        return Found(form, path)
        for root in data_folders():
            for form in self.forms:
                if form.archive:
                    for path in (root / form.archive.name, root / self.name / form.archive.name):
                        if path.is_file():
                            return Found(form, path, packed=True)
        return None

    def locate(self) -> Found[T]:
        """Find the files, fetch them if allowed, unpack them. Else an error says what to put where."""
        sweep_abandoned(cache())
        found = self.find() or self._fetched()
        if not found.packed:
            return found
        archive, form = found.form.archive, found.form
        assert archive
        if not matches(found.path, archive.checksum):
            raise BalcalError(
                f"{found.path} is not the published {archive.name}: its checksum differs, so it is cut off or altered; "
                "delete it and fetch it anew"
            )
        unpack(found.path, form.folder, cache() / form.folder, form.names)
        return Found(form, cache() / form.folder)

    def __call__(self) -> T:
        found = self.locate()
        stamps = tuple((stat.st_size, stat.st_mtime_ns) for stat in ((found.path / n).stat() for n in found.form.names))
        content: T = _read(self, found, stamps)
        return content

    def _fetched(self) -> Found[T]:
        form = next((form for form in self.forms if any(d.urls for d in form.downloads)), None)
        if form is None or offline():
            raise BalcalError(self.missing("may not be fetched (offline)" if form else "cannot be fetched by command"))
        try:
            paths = [fetch(download, cache()) for download in form.downloads]
        except BalcalError as error:
            raise BalcalError(self.missing(f"could not be fetched: {error}")) from None
        return Found(form, paths[0], packed=True) if form.archive else Found(form, cache())

    def missing(self, why: str) -> str:
        """The sentence for an error: what is missing, why, and what to do."""
        where = ", ".join(f"{root}{'' if root.is_dir() else ' (no such folder)'}" for root in data_folders())
        expected = " or ".join(dict.fromkeys(form.expected for form in self.forms))
        fetchable = any(d.urls for form in self.forms for d in form.downloads)
        command = f"run `balcal data {self.name}` where there is a network, or " if fetchable else self.terms
        return (
            f"data set `{self.name}` is not on this machine and {why}; {command}put {expected} "
            f"into a folder that {DATA} names or into {cache()} (looked in: {where})"
        )


def _candidates(root: Path, name: str, folder: str) -> Iterator[Path]:
    yield root / folder
    yield root / name / folder
    if root.name == folder:
        yield root


def verify(form: Form[Any], path: Path) -> None:
    """Refuse a file that does not have its published checksum."""
    for name, checksum in form.files:
        if checksum and not matches(path / name, checksum):
            raise BalcalError(f"{path / name} is not the published file: its checksum differs, so fetch it anew")


@lru_cache(maxsize=4)
def _read(stored: StoredFiles[Any], found: Found[Any], stamps: tuple[Any, ...]) -> Any:
    verify(found.form, found.path)
    try:
        content = found.form.read(found.path)
    except MALFORMED as error:
        raise BalcalError(
            f"{found.path} cannot be read as {stored.name}: {str(error) or type(error).__name__}"
        ) from None
    sizes = tuple(len(part) for part in content) if stored.sizes else ()
    if sizes != stored.sizes:
        raise BalcalError(f"{found.path} is not all of {stored.name}: it has {sizes} images, not {stored.sizes}")
    return content
