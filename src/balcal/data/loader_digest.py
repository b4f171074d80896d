"""Which data a loader has, in sixteen letters: so that a training is not resumed on other data than it was begun on."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from balcal.randomness import own_randomness

LOOKED_AT = 256
"""samples of a data set that is not in memory, evenly spaced"""


def loader_digest(loader: Iterable[Any]) -> str:
    """Changes with the data, their number and their labels.

    Tensors in memory and lists of batches are read in full. Of another data set, 256 samples are: their labels, and
    their images where two looks give the same (augmented ones do not). Of a stream nothing can be known but its kind.
    """
    content = hashlib.sha256(type(loader).__name__.encode())
    dataset = getattr(loader, "dataset", None)
    with _undisturbed():
        if isinstance(loader, Sequence):
            for batch in loader:
                _add(content, batch)
        elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            _add_dataset(content, dataset)
    return content.hexdigest()[:16]


def _add_dataset(content: Any, dataset: Any) -> None:
    rows = range(len(dataset))
    while isinstance(dataset, Subset):
        rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset  # type: ignore[assignment]
    _add(content, torch.tensor(list(rows), dtype=torch.long))
    if isinstance(dataset, TensorDataset):
        _add(content, dataset.tensors)
        return
    for name in ("targets", "labels"):
        known = getattr(dataset, name, None)
        if isinstance(known, list | np.ndarray | Tensor):
            _add(content, known)
    for row in rows[:: max(1, len(rows) // LOOKED_AT)]:
        first, again = dataset[row], dataset[row]
        if not isinstance(first, Sequence) or _digest(first[0]) == _digest(again[0]):
            _add(content, first)
        else:
            _add(content, first[1:])


def _digest(value: Any) -> str:
    content = hashlib.sha256()
    _add(content, value)
    return content.hexdigest()


def _add(content: Any, value: Any) -> None:
    """Numbers with their shape; of what is no number, only its kind."""
    if isinstance(value, list | tuple) and any(isinstance(each, list | tuple | Tensor | np.ndarray) for each in value):
        for each in value:
            _add(content, each)
        return
    array = value.detach().cpu() if isinstance(value, Tensor) else value
    if isinstance(array, Tensor) and array.dtype == torch.bfloat16:
        array = array.float()
    array = np.asarray(array)
    content.update(f"{array.dtype} {array.shape}".encode())
    if array.dtype != object:
        content.update(np.ascontiguousarray(array).tobytes())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Looking at samples draws no random number that training would have drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with own_randomness():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
