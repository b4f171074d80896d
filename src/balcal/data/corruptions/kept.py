"""Corrupted images on disk: made once, then mapped into memory."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.corruptions import AT_ONCE, VERSION, checked, corrupt
from balcal.data.corruptions.draws import Bytes
from balcal.files import write_atomic

SEAL = hashlib.sha256().digest_size
STALE = 600
"""seconds after which nobody is at work on an unfinished file any more"""


def corrupted(images: Tensor | Bytes, name: str, severity: int, seed: int, folder: Path) -> Bytes:
    """What `corrupt` makes of all the images, read-only, from a file in the folder; made first if there is none.

    The file is an .npy like any other, with a checksum behind its end. Its name says what it is of: the pixels, the
    corruption, the severity, the seed and the version of the generator. Whoever wants it sees a whole file or none.
    """
    pixels = np.ascontiguousarray(checked(images, name, severity))
    path = folder / f"{name}-{severity}-{_content(pixels)}-{seed}-v{VERSION}.npy"
    if (found := _whole(path, pixels.shape)) is not None:
        return found
    _sweep(path)
    write_atomic(path, _parts(pixels, name, severity, seed))
    if (made := _whole(path, pixels.shape)) is None:
        raise BalcalError(f"{path} did not come back from the disk as it was written: choose another folder")
    return made


def _content(pixels: Bytes) -> str:
    """Sixteen letters that change with any pixel."""
    content = hashlib.sha256(str(pixels.shape).encode())
    content.update(pixels.data if pixels.size else b"")
    return content.hexdigest()[:16]


def _parts(pixels: Bytes, name: str, severity: int, seed: int) -> Iterator[bytes]:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": pixels.shape})
    seal = hashlib.sha256(header.getvalue())
    yield header.getvalue()
    together = max(1, 8 * AT_ONCE // max(1, pixels[:1].size))
    for start in range(0, len(pixels), together):
        part = corrupt(pixels[start : start + together], name, severity, seed, start).tobytes()
        seal.update(part)
        yield part
    yield seal.digest()


def _whole(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """The images in the file; none if there is no such file, or it is not what was written."""
    try:
        with open(path, "rb") as file:
            seal, rest = hashlib.sha256(), os.fstat(file.fileno()).st_size - SEAL
            while rest > 0 and (part := file.read(min(rest, 1 << 20))):
                seal.update(part)
                rest -= len(part)
            if file.read() != seal.digest():
                return None
        found: Bytes = np.load(path, mmap_mode="r")
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == np.uint8 else None


def _sweep(path: Path) -> None:
    """Remove what killed processes left of this very file; whoever is writing it now does so every few seconds."""
    for debris in path.parent.glob(f".unfinished-*-{path.name}"):
        with suppress(FileNotFoundError):
            if time.time() - debris.stat().st_mtime > STALE:
                debris.unlink()
