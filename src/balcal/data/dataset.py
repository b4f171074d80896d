"""Sets of images held in memory, and their splits.

What a row of the catalog says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError, check_labels
from balcal.data.corruptions import CORRUPTIONS
from balcal.data.decoding import opened
from balcal.data.locate import Stored
from balcal.runtime.randomness import generator


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes, (N, H, W, C), and their labels (N,).

    A large set stays in its file, which is mapped into memory: then `rows` (N,) says which images of the file are in
    the set, taking some of them copies no pixel, and only what `pick` picks goes to another device.
    """

    store: Tensor
    labels: Tensor
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        if self.store.dtype != torch.uint8 or self.store.ndim != 4:
            raise BalcalError(f"images must be bytes (N, H, W, C), not {self.store.dtype} {tuple(self.store.shape)}")
        count = len(self.store if self.rows is None else self.rows)
        if count != len(self.labels):
            raise BalcalError(f"there are {count} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """All of them at once: of a large set, a copy."""
        return self.store if self.rows is None else self.store[self.rows]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.store.shape[1:])

    def pick(self, rows: Tensor) -> Tensor:
        """The images of some rows, where the labels are."""
        if self.rows is None:
            return self.store.index_select(0, rows)
        return self.store.index_select(0, self.rows[rows.cpu()]).to(self.labels.device)

    def take(self, rows: Tensor) -> ImageSet:
        if self.rows is None:
            return ImageSet(self.store[rows], self.labels[rows])
        return ImageSet(self.store, self.labels[rows], self.rows[rows])

    def to(self, device: torch.device) -> ImageSet:
        if self.rows is None:
            return ImageSet(self.store.to(device), self.labels.to(device))
        return ImageSet(self.store, self.labels.to(device), self.rows)


Parts = tuple[ImageSet, ImageSet]
"""what a data set comes in: for training and for judging"""


@dataclass(frozen=True, eq=False)
class Splits:
    """One data set in its roles: fitted on, chosen on, calibrated on, judged on.

    `calibrate` may be `val` itself: then the same images choose the epoch and fit what comes after training.
    """

    train: ImageSet
    val: ImageSet
    calibrate: ImageSet
    test: ImageSet


def check_split(part: ImageSet, num_classes: int, where: str) -> None:
    if not len(part):
        raise BalcalError(f"{where} is empty")
    check_labels(part.labels, num_classes, where)


def split_off(whole: ImageSet, val_size: int, num_classes: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Hold out `val_size` images, as evenly over the classes as they come. Depends on the seed and the labels alone."""
    if not 0 < val_size < len(whole):
        raise BalcalError(
            f"cannot hold out {val_size} of {len(whole)} images: task.val_size must leave both splits some images"
        )
    order = _dealt(whole, num_classes, seed)
    return whole.take(order[val_size:].sort().values), whole.take(order[:val_size].sort().values)


def keep(part: ImageSet, size: int, num_classes: int, seed: int) -> ImageSet:
    """So many of the images, as evenly over the classes as they come. A larger size has a smaller one's too."""
    if not 0 < size <= len(part):
        raise BalcalError(f"cannot train on {size} of {len(part)} images: that is task.train_size")
    return part.take(_dealt(part, num_classes, seed)[:size].sort().values)


def _dealt(whole: ImageSet, num_classes: int, seed: int) -> Tensor:
    """The rows in an order that deals out the classes in turn."""
    shuffled = torch.randperm(len(whole), generator=generator(seed, "split"))
    labels = whole.labels[shuffled]
    rank_in_class = torch.zeros(len(whole), dtype=torch.long)
    for k in range(num_classes):
        members = labels == k
        rank_in_class[members] = torch.arange(int(members.sum()))
    return shuffled[torch.argsort(rank_in_class, stable=True)]


def read_mosaic(path: Path, side: int, mode: str = "L") -> NDArray[np.uint8]:
    """Tiles in row-major order, cut out of one picture: (N, side, side), with a fourth axis for colours."""
    with opened(path) as picture:
        pixels = np.asarray(picture.convert(mode))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    if (rows * side, columns * side) != pixels.shape[:2]:
        raise ValueError(f"{path} of {pixels.shape[1]} x {pixels.shape[0]} pixels is not made of tiles of {side}")
    tiles = pixels.reshape(rows, side, columns, side, *pixels.shape[2:]).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(rows * columns, side, side, *pixels.shape[2:]))


@dataclass(frozen=True)
class Dataset:
    """A training part and a test part, and what one must know to use them."""

    name: str
    classes: tuple[str, ...]
    load: Callable[[], Parts]
    """a `Stored` one looks for its files and may fetch them"""
    mean: tuple[float, ...]
    """of the training pixels, from 0 to 1, by channel"""
    std: tuple[float, ...]
    sizes: tuple[int, int]
    """images for training, images for judging"""
    side: int
    licence: str
    source: str
    augment: str = "none"
    """what the paper does to training images"""
    ood: tuple[str, ...] = ()
    """data sets whose test images a network trained on this one has never seen the like of; the paper's first"""
    shift: tuple[str, ...] = CORRUPTIONS
    """what its test images are corrupted by, to see how a network fares"""
    votes: Callable[[], Tensor] | None = None
    """what people saw in the test images, (N, K) shares"""
    names: Callable[[], tuple[str, ...]] | None = None
    """words for the classes, if only the data itself has them"""

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def stored(self) -> tuple[Stored[Any], ...]:
        """What has to be on disk; nothing, for data inside a package."""
        found: tuple[Stored[Any], ...] = getattr(self.load, "stored", ())
        return found

    def soft_labels(self) -> Tensor:
        """For each test image, in order, what share of the people who were asked saw which class: (N, K)."""
        if self.votes is None:
            raise BalcalError(f"nobody has asked people what they see in the test images of `{self.name}`")
        return self.votes()
