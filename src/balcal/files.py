"""Files that are either there in full or not there at all."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from balcal.core import BalcalError
from balcal.unfinished import PREFIX, new_file, remove, sweep_abandoned


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


def sweep(folder: Path) -> None:
    """Remove all that is unfinished below a folder that only we write to: what a killed process left."""
    for debris in folder.glob(f"**/{PREFIX}*"):
        remove(debris)


def save_sealed(folder: Path, stem: str, value: Any) -> Path:
    """Save tensors as `stem.<checksum>.pt`: the name tells whether the content is whole, and torch.load reads it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    content = buffer.getvalue()
    path = folder / f"{stem}.{_seal(content)}.pt"
    write_atomic(path, content)
    return path


def load_sealed(path: Path) -> Any:
    """What `save_sealed` saved, or an error that says what is wrong with it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    if path.suffixes[-2:-1] != [f".{_seal(content)}"]:
        raise BalcalError(f"checkpoint {path} is damaged: its content does not match the checksum in its name")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise BalcalError(f"{path} is not a checkpoint of balcal ({type(error).__name__})") from None


def _seal(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
