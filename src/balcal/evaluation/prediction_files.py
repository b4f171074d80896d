"""Read predictions from .npz, .npy and .csv files. What an array is must be named, and is never guessed."""

from __future__ import annotations

import csv
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from balcal.core import BalcalError, Predictions
from balcal.evaluation.judge import predictions_of
from balcal.metrics.inputs import Rows, read, read_logits
from balcal.runs import Run
from balcal.runtime.devices import pick_device

KINDS = ("probs", "log_probs", "logits")
UNNAMED = "?"


@dataclass(frozen=True, eq=False)
class Arrays:
    """Predictions and labels read from a file, checked."""

    rows: Rows
    role: str | None = None
    """the split that these are of, if the file says so"""
    classes: list[str] | None = None
    """names of the classes, if the file has them"""

    def named(self) -> dict[str, Any]:
        """As arguments of a metric: probs= or log_probs=, and labels=."""
        return {"log_probs" if self.rows.logs else "probs": self.rows.whole(), "labels": self.rows.labels}

    def predictions(self) -> Predictions:
        return Predictions(self.rows.log_probs(), self.rows.labels, self.role)


def read_arrays(source: str, labels: str | None = None, kind: str | None = None) -> Arrays:
    """Read predictions from a file.

    `FILE.npz` holds an array probs, log_probs or logits, and labels; `FILE.npz:ARRAY` takes one array of it. An array
    `classes` has the names of the classes, in order; then labels may be names. `FILE.csv` has a column `label`, with
    class indices or names, and a column for each class, called by its name. `labels` names another file or array,
    `kind` says what an array is whose name does not.
    """
    if kind is not None and kind not in KINDS:
        raise BalcalError(f"--as must be one of {', '.join(KINDS)}, not `{kind}`")
    found = _read_csv(Path(source)) if source.endswith(".csv") else _read_npz(source)
    if "classes" in found:
        found["class names"] = _names(found.pop("classes"), source)
    if labels is not None:
        found["labels"] = read_array(labels, "labels")
    kinds = [name for name in KINDS if name in found]
    if kind in kinds:
        kinds = [kind]
    elif kinds and kind is not None:
        raise BalcalError(f"{source} calls its array {kinds[0]}, and --as says {kind}: rename it, or leave --as out")
    if not kinds and kind is not None and UNNAMED in found:
        found[kind], kinds = found[UNNAMED], [kind]
    if len(kinds) != 1:
        has = ", ".join(sorted(set(found) - {"class names"})).replace(UNNAMED, "one without a name")
        raise BalcalError(
            f"{source} must hold exactly one array called {', '.join(KINDS)}, it has: {has}; "
            "say what it is with --as, or save it by name, np.savez(file, probs=p, labels=y)"
        )
    if "labels" not in found:
        raise BalcalError(f"{source} has no array `labels`: name their file with --labels FILE.npz:ARRAY")
    try:
        names = found.get("class names")
        rows = _rows(kinds[0], found[kinds[0]], _indices(found["labels"], names))
        if names is not None and len(names) != rows.num_classes:
            raise BalcalError(f"there are {len(names)} names in `classes` for {rows.num_classes} classes")
        return Arrays(rows, _role(found.get("role")), names)
    except BalcalError as error:
        raise BalcalError(f"{source}: {error}") from None


def _rows(kind: str, table: Any, labels: Any) -> Rows:
    """Check the arrays as the metrics do. Logits become log-probabilities."""
    if kind == "logits":
        return read(None, read_logits(table).log_softmax(1), labels)
    return read(table if kind == "probs" else None, table if kind == "log_probs" else None, labels)


def _indices(labels: Any, names: list[str] | None) -> Any:
    """Labels by name become class indices, where the file has the names."""
    if names is None or not isinstance(labels, np.ndarray) or labels.dtype.kind != "U" or labels.ndim != 1:
        return labels
    place = {name: k for k, name in enumerate(names)}
    strange = next((word for word in labels.tolist() if word not in place), None)
    if strange is not None:
        raise BalcalError(f"the label `{strange}` is none of the names in `classes`")
    return np.array([place[word] for word in labels.tolist()], dtype=np.int64)


def _names(array: Any, source: str) -> list[str] | None:
    """The array `classes` as names. Numbers would be ambiguous, as labels are numbers too; 0, 1, 2, ... say nothing."""
    if np.array_equal(array, np.arange(array.size)):
        return None
    names: list[str] = array.tolist() if array.ndim == 1 and array.dtype.kind == "U" else []
    if not names or len(set(names)) != len(names):
        raise BalcalError(f"{source}: `classes` must be the names of the classes as text, each once, in order")
    return names


def _role(array: Any) -> str | None:
    """The split's name that balcal writes beside predictions; any other array called `role` is ignored."""
    return str(array) if isinstance(array, np.ndarray) and array.ndim == 0 and array.dtype.kind == "U" else None


def _read_npz(source: str) -> dict[str, Any]:
    """Every array by name. `FILE.npz:ARRAY` gives that one, as `UNNAMED` unless its name says what it is."""
    stem, colon, name = source.partition(".npz:")
    path = Path(f"{stem}.npz" if colon else source)
    if not os.path.isfile(path):
        raise BalcalError(f"there is no file {path}")
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers in an older style
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {UNNAMED: content}
            arrays = {each: content[each] for each in content.files}
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror or 'it is damaged'})") from None
    except Exception:  # damaged, encrypted or too large: each layer of the format raises errors of its own
        raise BalcalError(f"{path} is not a whole .npz or .npy file of numbers") from None
    if not name:
        return arrays
    if name not in arrays:
        raise BalcalError(f"{path} has no array `{name}`, it has: {', '.join(sorted(arrays))}")
    return {name if name in KINDS else UNNAMED: arrays[name]} | {k: arrays[k] for k in ("classes",) if k in arrays}


def read_array(source: str, name: str) -> Any:
    """The array of this name, or the only one in the file."""
    arrays = {key: array for key, array in _read_npz(source).items() if key != "classes" or source.endswith(":classes")}
    if name in arrays or len(arrays) == 1:
        return arrays.get(name, next(iter(arrays.values())))
    raise BalcalError(f"{source} holds {', '.join(sorted(arrays))}: say which are the {name}, {source}:NAME")


def read_names(given: str) -> list[str]:
    """Names of classes, joined by commas, or from a text file with one in each line."""
    if not os.path.isfile(given):
        return [name.strip() for name in given.split(",")]
    try:
        lines = Path(given).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError):
        raise BalcalError(
            f"cannot read {given}: it must be a text file with the name of a class in each line"
        ) from None
    return [line.strip() for line in lines if line.strip()]


def _read_csv(path: Path) -> dict[str, Any]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first, *rows = [row for row in csv.reader(file) if row] or [[]]
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, csv.Error):
        raise BalcalError(f"{path} is not a text file of comma-separated values") from None
    if not rows or first.count("label") != 1:
        raise BalcalError(
            f"{path} needs a first line with one column `label`, and the classes in order beside it, joined by commas"
        )
    if first[0].strip() in ("", "Unnamed: 0"):
        raise BalcalError(f"{path} has a first column without a name: if it is an index, write it with index=False")
    at = first.index("label")
    try:
        if any(len(row) != len(first) for row in rows):
            raise ValueError
        table = np.array([[float(cell) for i, cell in enumerate(row) if i != at] for row in rows])
    except ValueError:
        raise BalcalError(f"{path} has lines that are not numbers, or not as many as its first line") from None
    names = [name for name in first if name != "label"]
    given = [row[at].strip() for row in rows]
    if set(given) <= set(names) and len(set(names)) == len(names) and not _in_order(names):
        labels = np.array([names.index(name) for name in given])
    else:
        try:
            labels = np.array([int(name) for name in given])
        except ValueError:
            strange = next(name for name in given if not name.lstrip("-").isdigit())
            raise BalcalError(
                f"{path} has the label `{strange}`, which is no class index and no column's name"
            ) from None
    return {UNNAMED: table, "labels": labels, "class names": None if _in_order(names) or len(names) < 2 else names}


def _in_order(names: list[str]) -> bool:
    """Whether columns are called 0, 1, 2, ...: that are no names."""
    return names == [str(k) for k in range(len(names))]


def read_source(source: str, labels: str | None = None, kind: str | None = None) -> Arrays:
    """Test predictions of a finished run, or those in a file."""
    if not Path(source).is_dir():
        return read_arrays(source, labels, kind)
    run = Run.at(Path(source))
    with run.in_use():
        _, test = predictions_of(run, run.recipe.method, pick_device())
    return Arrays(read(None, test.log_probs, test.labels), "test")
