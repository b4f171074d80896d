"""Vectors that cost much to compute, kept in memory and on disk: those of frozen encoders.

A vector is found by a digest of what it is of. The cache folder has sealed files of many vectors each.
Processes add files and never change one, so that any number of them may share a folder. A damaged file is removed, and
what it held is computed again.
"""

from __future__ import annotations

import atexit
import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from balcal.core import BalcalError
from balcal.runtime.files import cache_folder, load_sealed, save_sealed
from balcal.runtime.names import plain

AT_ONCE = 2048
"""new vectors that are written to one file"""
BYTES = 32
"""of a digest"""


def vector_cache(name: str, width: int) -> VectorCache:
    """The one that this process has for an encoder and the present cache folder."""
    return _shared(name, width, cache_folder())


@cache
def _shared(name: str, width: int, folder: Path) -> VectorCache:
    return VectorCache(name, width)


class VectorCache:
    """Vectors of `width` numbers by encoder: `name` must change when its weights do.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()  # a name alone is below the cache folder
    >>> cached = VectorCache(folder, 1)
    >>> cached.get([b"abc", b"de"], lambda rows: torch.tensor([[3.0], [2.0]])).tolist()
    [[3.0], [2.0]]
    >>> cached.write()
    >>> VectorCache(folder, 1).get([b"de"], lambda rows: torch.tensor([[-1.0]])).tolist()
    [[2.0]]
    """

    def __init__(self, name: str, width: int) -> None:
        self.folder, self.width = cache_folder() / "encoded" / name, width
        self.found, self.new = dict[bytes, Tensor](), dict[bytes, Tensor]()
        self.read = False

    def get(self, contents: Sequence[bytes], compute: Callable[[list[int]], Tensor]) -> Tensor:
        """(N, width): one vector for each content; `compute` gets the places of those that are new, each once."""
        if not self.read:
            self._read()
        keys = [hashlib.sha256(content).digest() for content in contents]
        missing = list({key: place for place, key in enumerate(keys) if key not in self.found}.values())
        if missing:
            made = compute(missing).detach().float().cpu()
            if made.shape != (len(missing), self.width):
                raise BalcalError(f"an encoder of {self.width} features gave {tuple(made.shape)}")
            self._add({keys[place]: row.clone() for place, row in zip(missing, made, strict=True)})
        return torch.stack([self.found[key] for key in keys])

    def write(self) -> None:
        """Write what is new; a full or read-only disk is no error, as the vectors are in memory."""
        if not self.new:
            return
        keys = torch.frombuffer(bytearray(b"".join(self.new)), dtype=torch.uint8).reshape(-1, BYTES)
        with suppress(OSError, BalcalError):
            save_sealed(self.folder, "vectors", {"keys": keys, "vectors": torch.stack(list(self.new.values()))})
        self.new = {}

    def _add(self, made: dict[bytes, Tensor]) -> None:
        if not self.new:
            atexit.unregister(self.write)
            atexit.register(self.write)
        self.found |= made
        self.new |= made
        if len(self.new) >= AT_ONCE:
            self.write()

    def _read(self) -> None:
        self.read = True
        for path in sorted(self.folder.glob("vectors.*.pt")):
            vectors = self._part(path)
            if vectors is None:
                print(f"{plain(path)} is damaged: what it held is computed again", file=sys.stderr, flush=True)
                path.unlink(missing_ok=True)
            else:
                self.found |= vectors

    def _part(self, path: Path) -> dict[bytes, Tensor] | None:
        try:
            part = load_sealed(path)
            keys, vectors = part["keys"], part["vectors"]
            if keys.shape != (len(vectors), BYTES) or vectors.shape[1:] != (self.width,):
                return None
        except (BalcalError, KeyError, TypeError, AttributeError):
            return None
        return {bytes(key.tolist()): row for key, row in zip(keys, vectors, strict=True)}
