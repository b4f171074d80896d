"""Files that are either there in full or not there at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
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
