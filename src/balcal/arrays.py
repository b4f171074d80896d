"""Predictions in files of other people: arrays by name, never guessed."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError, Predictions

KINDS = ("probs", "log_probs", "logits")
UNNAMED = "?"


@dataclass(frozen=True, eq=False)
class Arrays:
    """A table of predictions as it was stored, what its numbers are, and the labels."""

    kind: str
    table: NDArray[Any]
    labels: NDArray[Any]
    role: str | None = None
    """which part of the data these are, if the file says so"""

    def named(self) -> dict[str, Any]:
        """For a metric: probs= or log_probs=, and labels=."""
        if self.kind == "logits":
            return {"log_probs": self.predictions().log_probs, "labels": self.labels}
        return {self.kind: self.table, "labels": self.labels}

    def predictions(self) -> Predictions:
        table = torch.from_numpy(np.ascontiguousarray(self.table))
        if self.kind != "log_probs":
            table = table.log() if self.kind == "probs" else table.log_softmax(1)
        return Predictions(table, torch.from_numpy(self.labels.astype(np.int64)), self.role)


def read_arrays(source: str, labels: str | None = None, kind: str | None = None) -> Arrays:
    """Read predictions from a file.

    `FILE.npz` holds an array probs, log_probs or logits, and labels; `FILE.npz:ARRAY` takes one array of it. `FILE.csv`
    has a column `label` and the classes in order. `labels` names another file or array, `kind` says what an array is
    whose name does not.
    """
    if kind is not None and kind not in KINDS:
        raise BalcalError(f"--as must be one of {', '.join(KINDS)}, not `{kind}`")
    found = _read_csv(Path(source)) if source.endswith(".csv") else _read_npz(source)
    if labels is not None:
        found["labels"] = _labels(labels)
    told = [name for name in KINDS if name in found]
    if not told and kind is not None and UNNAMED in found:
        found[kind], told = found[UNNAMED], [kind]
    if len(told) != 1:
        has = ", ".join(sorted(found)).replace(UNNAMED, "one without a name")
        raise BalcalError(
            f"{source} must hold exactly one array called {', '.join(KINDS)}, it has: {has}; "
            "say what it is with --as, or save it by name, np.savez(file, probs=p, labels=y)"
        )
    if "labels" not in found:
        raise BalcalError(f"{source} has no array `labels`: name their file with --labels FILE.npz:ARRAY")
    role = str(found["role"]) if "role" in found else None
    return Arrays(told[0], found[told[0]], np.asarray(found["labels"]), role)


def _read_npz(source: str) -> dict[str, Any]:
    """Every array by name; `FILE.npz:ARRAY` leaves one, without a name unless that says what it is."""
    stem, colon, name = source.partition(".npz:")
    path = Path(f"{stem}.npz" if colon else source)
    try:
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {UNNAMED: content}
            arrays = {each: content[each] for each in content.files}
    except FileNotFoundError:
        raise BalcalError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError, BadZipFile):
        raise BalcalError(f"{path} is not a whole .npz or .npy file of numbers") from None
    if not name:
        return arrays
    if name not in arrays:
        raise BalcalError(f"{path} has no array `{name}`, it has: {', '.join(sorted(arrays))}")
    return {name if name in KINDS else UNNAMED: arrays[name]}


def _labels(source: str) -> Any:
    arrays = _read_npz(source)
    if "labels" in arrays or len(arrays) == 1:
        return arrays.get("labels", next(iter(arrays.values())))
    raise BalcalError(f"{source} holds {', '.join(sorted(arrays))}: say which are the labels, {source}:NAME")


def _read_csv(path: Path) -> dict[str, Any]:
    try:
        with open(path, newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    if len(rows) < 2 or "label" not in rows[0]:
        raise BalcalError(f"{path} needs a first line with a column `label`, and the classes in order beside it")
    at = rows[0].index("label")
    try:
        table = np.array([[float(cell) for i, cell in enumerate(row) if i != at] for row in rows[1:]])
        labels = np.array([int(row[at]) for row in rows[1:]])
    except (ValueError, IndexError):
        raise BalcalError(f"{path} has lines that are not numbers, or not as many as its first line") from None
    return {UNNAMED: table, "labels": labels}
