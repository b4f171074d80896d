"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in the authors' two formats and as mosaics, and people's labels of CIFAR-10.

A mosaic is one picture of tiles, a hundred to a row, image i in tile i; `labels.npz` beside it has the labels.

A pickle is a program. `unpickle` runs only those that build arrays, lists, dicts and strings.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, Parts
from balcal.data.decoding import read_mosaic
from balcal.data.locate import StoredFiles

PIXELS = 3 * 32 * 32


def image_set(images: NDArray[np.uint8], labels: Any) -> ImageSet:
    numbers = np.asarray(labels, np.int64)
    return ImageSet(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(numbers))


def _from_planes(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, 3072), each image as its red, green and blue plane, to (N, 32, 32, 3)."""
    if planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != PIXELS:
        raise ValueError(f"images should be bytes (N, {PIXELS}), not {planes.dtype} {planes.shape}")
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _pickles(paths: Iterable[Path], key: bytes) -> ImageSet:
    images, labels = [], []
    for path in paths:
        with open(path, "rb") as file:
            batch = unpickle(file)
        images.append(_from_planes(batch[b"data"]))
        labels += batch[key]
    return image_set(np.concatenate(images), labels)


def _records(paths: Iterable[Path], label_bytes: int) -> ImageSet:
    """Labels then pixels, record after record; with two labels the second is the finer one."""
    raw = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    size = label_bytes + PIXELS
    if len(raw) % size:
        raise ValueError(f"{len(raw):,} bytes are no whole number of records of {size:,}: it is cut off")
    records = raw.reshape(-1, size)
    return image_set(_from_planes(records[:, label_bytes:]), records[:, label_bytes - 1])


def batches_py(folder: Path) -> Parts:
    train = _pickles([folder / f"data_batch_{i}" for i in range(1, 6)], b"labels")
    return train, _pickles([folder / "test_batch"], b"labels")


def batches_bin(folder: Path) -> Parts:
    train = _records([folder / f"data_batch_{i}.bin" for i in range(1, 6)], 1)
    return train, _records([folder / "test_batch.bin"], 1)


def cifar100_py(folder: Path) -> Parts:
    return _pickles([folder / "train"], b"fine_labels"), _pickles([folder / "test"], b"fine_labels")


def cifar100_bin(folder: Path) -> Parts:
    return _records([folder / "train.bin"], 2), _records([folder / "test.bin"], 2)


def mosaics(folder: Path) -> Parts:
    with np.load(folder / "labels.npz", allow_pickle=False) as labels:
        parts = [(part, labels[part]) for part in ("train", "test")]
    train, test = (image_set(_tiles(folder, part)[: len(y)], y) for part, y in parts)
    return train, test


def textures(folder: Path) -> Parts:
    """A set for evaluation only: its training part is empty."""
    with np.load(folder / "labels.npz", allow_pickle=False) as labels:
        test = image_set(read_mosaic(folder / "textures.webp", 32, "RGB")[: len(labels["texture"])], labels["texture"])
    return test.take(torch.arange(0)), test


def _tiles(folder: Path, part: str) -> NDArray[np.uint8]:
    paths = [p for p in sorted(folder.glob(f"{part}*")) if p.suffix in (".webp", ".png", ".jpg")]
    return np.concatenate([read_mosaic(path, 32, "RGB") for path in paths])


def read_votes(folder: Path) -> NDArray[np.float64]:
    """(N, K): the share of people who saw each class."""
    if (folder / "cifar10h.npz").exists():
        with np.load(folder / "cifar10h.npz", allow_pickle=False) as arrays:
            counts = arrays["counts"]
    else:
        counts = np.load(folder / "cifar10h-counts.npy", allow_pickle=False)
    shares: NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
    return shares


def read_noisy(folder: Path) -> dict[str, NDArray[np.int64]]:
    """Noisy training labels by name: aggre, worse, random1, random2, random3."""
    if (folder / "cifar10n.npz").exists():
        with np.load(folder / "cifar10n.npz", allow_pickle=False) as arrays:
            found = dict(arrays)
    else:
        with zipfile.ZipFile(folder / "CIFAR-10_human.pt") as saved:  # a file of torch.save is a zip around a pickle
            name = next(n for n in saved.namelist() if n.endswith("/data.pkl"))
            with saved.open(name) as file:
                found = unpickle(file)
    texts = {k.decode() if isinstance(k, bytes) else k: v for k, v in found.items()}
    return {name.replace("_label", ""): np.asarray(v, np.int64) for name, v in texts.items()}


@dataclass(frozen=True)
class Relabelled:
    """CIFAR-10 with noisy training labels by people; the test part keeps the true ones."""

    images: StoredFiles[Parts]
    labels: StoredFiles[dict[str, NDArray[np.int64]]]
    name: str

    @property
    def stored(self) -> tuple[StoredFiles[Any], ...]:
        return self.images, self.labels

    def __call__(self) -> Parts:
        train, test = self.images()
        noisy = torch.from_numpy(self.labels()[self.name])
        if len(noisy) != len(train) or (noisy == train.labels).double().mean() < 0.5:
            raise BalcalError(
                f"the labels of {self.labels.name} are not for the images of {self.images.name}: {len(noisy):,} labels "
                f"for {len(train):,} images, or most of them wrong; both must be in the original order"
            )
        return ImageSet(train.store, noisy, train.rows), test


def soft_labels(votes: StoredFiles[NDArray[np.float64]]) -> Tensor:
    return torch.from_numpy(votes())


def _empty_array(kind: Any, shape: Any, dtype: Any) -> NDArray[Any]:
    return np.ndarray((0,), np.uint8)  # its content follows in the pickle; asking for more now could fill the memory


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as text in {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of the above
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encoded,  # how Python 3 writes bytes for Python 2
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for `{module}.{name}`, which data has no use for: it may be malicious"
            ) from None


def unpickle(file: IO[bytes]) -> Any:
    """The object in the pickle, with strings of Python 2 as bytes.

    >>> import io
    >>> unpickle(io.BytesIO(pickle.dumps({"labels": [1, 2]})))
    {'labels': [1, 2]}
    """
    try:
        return _SafeUnpickler(file, encoding="bytes").load()
    except (AttributeError, MemoryError, OverflowError) as error:
        raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__})") from None
