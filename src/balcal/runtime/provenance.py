"""Provenance: a record's fingerprint, what a file of a run was made from, and a checksum (`seal`) of its content.

A run trusts its states, its weights and the record that it is finished; they have their checksum in their name. Its
predictions and figures say which recipe, weights and images they come from; what does not fit is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
import torch

from balcal.core import BalcalError, Predictions, Record
from balcal.runtime.files import seal, write_atomic

MADE_FROM, SEAL = "made_from", "seal"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, MemoryError, BadZipFile, ZlibError)
LATER = (
    *("parent", "train_size", "side", "average", "average_or_last", "nesterov", "decay_weights_only"),
    *("bottleneck", "norm_momentum", "sum_loss", "pixels", "views", "join"),
)
"""Fields that were added later: unset, they are left out of the address, so that older runs keep theirs."""


def describe(value: Any) -> Any:
    """A record as plain JSON: its class name and its fields, apart from those that do not count (compare=False)."""
    if is_dataclass(value) and not isinstance(value, type):
        shown = {f.name: describe(getattr(value, f.name)) for f in fields(value) if f.compare}
        for later in LATER:
            if later in shown and (shown[later] is None or shown[later] is False):
                del shown[later]
        return {"kind": type(value).__name__} | shown
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", repr(value))


def flattened(value: Any, path: str = "") -> dict[str, str]:
    """A described record as dotted names and texts.

    >>> flattened({"plan": {"kind": "Plan", "lr": 0.1, "clip": None}, "seed": 0})
    {'plan': 'Plan', 'plan.lr': '0.1', 'seed': '0'}
    """
    if not isinstance(value, dict):
        return {} if value is None or not path else {path: value if isinstance(value, str) else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, each in value.items():
        flat |= flattened(each, path if key == "kind" else f"{path}.{key}".lstrip("."))
    return flat


def fingerprint(value: Any) -> str:
    """Ten letters that change when anything in the record changes."""
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()[:10]


class FigureFile(StrEnum):
    """Figures in a run's folder, without `.json`; after a post-hoc method with its name added: `shift+ts`."""

    METRICS = "metrics"
    SHIFT = "shift"
    OOD = "ood"
    HUMAN = "human"


class PredictionFile(StrEnum):
    """Predictions in a run's folder, without `.npz`. Whoever writes or reads them takes their names from here."""

    TEST = "test"
    CALIBRATE = "calibrate"
    VAL = "val"
    """the calibration split of tasks that set none apart"""

    @staticmethod
    def branch(number: int) -> str:
        """Of one classifier of the head alone, on the test split."""
        return f"{PredictionFile.TEST}-branch{number}"

    @staticmethod
    def corrupted(name: str, severity: int, seed: int, version: int) -> str:
        return f"shift-{name}-{severity}-{seed}-v{version}"

    @staticmethod
    def published(name: str, severity: int) -> str:
        return f"published-{name}-{severity}"

    @staticmethod
    def ood(name: str) -> str:
        """Of an out-of-distribution set."""
        return f"outside-{name}"

    @staticmethod
    def energy(stem: str) -> str:
        return f"{stem}-energy"

    @staticmethod
    def at(epoch: int) -> str:
        """Added to the name if the epoch is not the one that the run's own method chooses."""
        return f"-e{epoch:04d}"

    @staticmethod
    def seen(views: str | None) -> str:
        """Added to the name if the images are seen through several views."""
        return f"+{views}" if views else ""

    @staticmethod
    def epoch(stem: str) -> int | None:
        """The epoch in the name, if there is one.

        >>> PredictionFile.epoch("test" + PredictionFile.at(7)), PredictionFile.epoch("test")
        (7, None)
        """
        found = re.search(r"-e(\d{4})", stem)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class MadeFrom:
    """Where the numbers in a file come from. An empty text is not compared."""

    file: str
    """its name, so that a renamed file is noticed"""
    recipe: str
    """fingerprint of the run"""
    epoch: int
    weights: str
    """seal of that epoch's weights"""
    data: str = ""
    """digest of the images"""
    posthoc: str = ""
    """fingerprint of the post-hoc method, if the numbers depend on one"""
    part: str = ""
    """"1 of 2", if several files belong together"""

    def check(self, written: Any, path: Path) -> None:
        """Raise an error if a file was made from something else."""
        if not isinstance(written, dict):
            raise BalcalError(f"{path} does not say what it was made from: delete it, and it will be computed again")
        names = {
            "file": "under another name",
            "recipe": "by another run",
            "epoch": "from another epoch",
            "weights": "from other weights",
            "data": "of other images",
            "posthoc": "with another post-hoc method",
            "part": "of another classifier",
        }
        for field in fields(self):
            expected = getattr(self, field.name)
            if expected != "" and written.get(field.name) != expected:
                raise BalcalError(f"{path} was made {names[field.name]}: delete it, and it will be computed again")


@dataclass(frozen=True)
class Finished:
    """The record of a finished training: its history, and the checksums of its weights and images."""

    fingerprint: str
    history: list[Record]
    weights: dict[int, str]
    """seals by epoch"""
    data: dict[str, Any] | None
    """the splits; None for runs that are older than this record"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(written: Any) -> Finished:
        """Read what `as_dict` gave; raises KeyError, TypeError or ValueError for anything else."""
        weights = {int(epoch): str(each) for epoch, each in written["weights"].items()}
        history, data = written["history"], written["data"]
        if not isinstance(history, list) or not history or not (data is None or is_manifest(data)):
            raise ValueError("not a record of a finished run")
        return Finished(str(written["fingerprint"]), history, weights, data)

    def digest(self, role: str) -> str:
        """The digest of the images in a split; empty if it was not recorded."""
        return str(self.data["roles"][role]["digest"]) if self.data else ""


def is_manifest(data: Any) -> bool:
    """Whether this describes every split, as data.json does."""
    roles = data.get("roles") if isinstance(data, dict) else None
    wanted = ("train", "select", "calibrate", "test")
    return isinstance(roles, dict) and all(isinstance(roles.get(r), dict) and "digest" in roles[r] for r in wanted)


def write_predictions(path: Path, predictions: Predictions, made: MadeFrom) -> None:
    """Write an .npz file with its origin and its checksum inside."""
    arrays: dict[str, Any] = {
        "log_probs": predictions.log_probs.cpu().numpy(),
        "labels": predictions.labels.cpu().numpy(),
        "role": np.array(predictions.role or "?"),
        MADE_FROM: np.array(json.dumps(asdict(made))),
    }
    buffer = io.BytesIO()
    arrays[SEAL] = np.array(_seal_of_arrays(arrays))
    np.savez(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def read_predictions(path: Path) -> tuple[Predictions, Any] | None:
    """(predictions, what they say they were made from); None if there are none, or none with a checksum."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if SEAL not in arrays:
            return None  # an earlier version wrote it, and cannot say of which weights
        whole = str(arrays.pop(SEAL)) == _seal_of_arrays(arrays)
        role = str(arrays["role"])
        found = Predictions(
            torch.from_numpy(arrays["log_probs"]), torch.from_numpy(arrays["labels"]), None if role == "?" else role
        )
        made = json.loads(str(arrays[MADE_FROM]))
    except UNREADABLE:
        whole = False
    if not whole:
        raise BalcalError(f"{path} is damaged: delete it, and it will be computed again")
    return found, made


def write_figures(path: Path, figures: Mapping[str, Any], made: MadeFrom) -> None:
    """Write figures as JSON, with their origin and their checksum."""
    content = json.loads(json.dumps({**figures, MADE_FROM: asdict(made)}))  # as it will be read back
    content[SEAL] = _seal_of_json(content)
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def read_figures(path: Path, made: MadeFrom) -> dict[str, Any] | None:
    """Figures of this origin; None if there are none, or none with a checksum."""
    found = read_sealed_figures(path)
    if found is None:
        return None
    figures, written = found
    made.check(written, path)
    return figures


def read_sealed_figures(path: Path) -> tuple[dict[str, Any], Any] | None:
    """(figures, what they say they were made from); None if there are none, or none with a checksum."""
    try:
        found = json.loads(path.read_text())
        if isinstance(found, dict) and SEAL not in found:
            return None
        whole = isinstance(found, dict) and found.pop(SEAL) == _seal_of_json(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise BalcalError(f"{path} is damaged: delete it, and evaluate the run again")
    return found, found.pop(MADE_FROM, None)


def _seal_of_json(content: dict[str, Any]) -> str:
    return seal(json.dumps(content, sort_keys=True).encode())


def _seal_of_arrays(arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
