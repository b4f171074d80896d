"""Corrupted images on disk: made once, then mapped into memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.corruptions import AT_ONCE, VERSION, checked, corrupt
from balcal.data.corruptions.draws import Bytes
from balcal.data.sealed import whole
from balcal.files import write_atomic
from balcal.unfinished import sweep_abandoned


def corrupted(images: Tensor | Bytes, name: str, severity: int, seed: int, folder: Path) -> Bytes:
    """What `corrupt` makes of all the images, read-only, from a file in the folder; made first if there is none.

    The file is an .npy like any other, with a checksum behind its end. Its name says what it is of: the pixels, the
    corruption, the severity, the seed and the version of the generator. Whoever wants it sees a whole file or none.
    """
    pixels = np.ascontiguousarray(checked(images, name, severity))
    path = folder / f"{name}-{severity}-{_content(pixels)}-{seed}-v{VERSION}.npy"
    sweep_abandoned(folder)
    if (found := whole(path, pixels.shape, "r")) is not None:
        return found
    write_atomic(path, _parts(pixels, name, severity, seed))
    if (made := whole(path, pixels.shape, "r")) is None:
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
