"""Images in memory: a set of them, the splits of a data set, and the record that describes a data set (`Dataset`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.corruptions import CORRUPTIONS
from balcal.data.locate import StoredFiles
from balcal.runtime.labels import check_labels
from balcal.runtime.randomness import generator


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes, (N, H, W, C), and their labels (N,).

    A large set stays in its file, which is mapped into memory. Then `rows` (N,) says which images of the file are in
    the set. Taking some of them copies no pixel, and only what `pick` returns goes to another device.
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
        """All of them at once. Of a large set this is a copy."""
        return self.store if self.rows is None else self.store[self.rows]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.store.shape[1:])

    def pick(self, rows: Tensor) -> Tensor:
        """The images of some rows, on the device of the labels."""
        if self.rows is None:
            return self.store.index_select(0, rows)
        return self.store.index_select(0, self.rows[rows.cpu()]).to(self.labels.device)

    def take(self, rows: Tensor) -> ImageSet:
        """The set of some rows."""
        if self.rows is None:
            return ImageSet(self.store[rows], self.labels[rows])
        return ImageSet(self.store, self.labels[rows], self.rows[rows])

    def to(self, device: torch.device) -> ImageSet:
        if self.rows is None:
            return ImageSet(self.store.to(device), self.labels.to(device))
        return ImageSet(self.store, self.labels.to(device), self.rows)


Parts = tuple[ImageSet, ImageSet]
"""a data set as it is published: the training images and the test images"""


@dataclass(frozen=True, eq=False)
class Splits:
    """One data set in its roles. `val` chooses the epoch, `calibrate` fits post-hoc maps, `test` is only evaluated on.

    `calibrate` may be `val` itself.
    """

    train: ImageSet
    val: ImageSet
    calibrate: ImageSet
    test: ImageSet


def check_split(part: ImageSet, num_classes: int, where: str) -> None:
    """Refuse a part without images, or with labels out of range."""
    if not len(part):
        raise BalcalError(f"{where} is empty")
    check_labels(part.labels, num_classes, where)


def split_off(whole: ImageSet, val_size: int, num_classes: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """(the rest, `val_size` held-out images), stratified by class. Depends only on the seed and the labels."""
    if not 0 < val_size < len(whole):
        raise BalcalError(
            f"cannot hold out {val_size} of {len(whole)} images: task.val_size must leave both splits some images"
        )
    order = _interleaved(whole, num_classes, seed)
    return whole.take(order[val_size:].sort().values), whole.take(order[:val_size].sort().values)


def keep(part: ImageSet, size: int, num_classes: int, seed: int) -> ImageSet:
    """`size` of the images, stratified by class. A larger size includes the images of a smaller one."""
    if not 0 < size <= len(part):
        raise BalcalError(f"cannot train on {size} of {len(part)} images: that is task.train_size")
    return part.take(_interleaved(part, num_classes, seed)[:size].sort().values)


def _interleaved(whole: ImageSet, num_classes: int, seed: int) -> Tensor:
    """The rows in random order, the classes taking turns."""
    shuffled = torch.randperm(len(whole), generator=generator(seed, "split"))
    labels = whole.labels[shuffled]
    rank_in_class = torch.zeros(len(whole), dtype=torch.long)
    for k in range(num_classes):
        members = labels == k
        rank_in_class[members] = torch.arange(int(members.sum()))
    return shuffled[torch.argsort(rank_in_class, stable=True)]


@dataclass(frozen=True)
class Dataset:
    """A row of the catalog: how to load a data set, and what is needed to use it."""

    name: str
    classes: tuple[str, ...]
    load: Callable[[], Parts]
    """`StoredFiles` look for their files and may fetch them"""
    mean: tuple[float, ...]
    """of the training pixels, from 0 to 1, by channel"""
    std: tuple[float, ...]
    sizes: tuple[int, int]
    """training images, test images"""
    side: int
    licence: str
    source: str
    augment: str = "none"
    """the paper's augmentation of training images"""
    ood: tuple[str, ...] = ()
    """out-of-distribution data sets; the paper's first"""
    shift: tuple[str, ...] = CORRUPTIONS
    """corruptions of its test images, for evaluation under shift"""
    votes: Callable[[], Tensor] | None = None
    """people's labels of the test images, (N, K) shares"""
    names: Callable[[], tuple[str, ...]] | None = None
    """names of the classes, if only the files have them"""
    wrong_labels: tuple[float, str] | None = None
    """share of the test labels that are known to be wrong, and who says so"""

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def stored(self) -> tuple[StoredFiles[Any], ...]:
        """The files that have to be on disk: none, for data inside a package."""
        found: tuple[StoredFiles[Any], ...] = getattr(self.load, "stored", ())
        return found

    @property
    def title(self) -> str:
        """What to call the form that is on this machine, where it is not the published one; else empty."""
        found = (stored.find() for stored in self.stored)
        return ", ".join(each.form.title for each in found if each and each.form.title)

    def soft_labels(self) -> Tensor:
        """The share of people who saw each class in each test image: (N, K)."""
        if self.votes is None:
            raise BalcalError(f"nobody has asked people what they see in the test images of `{self.name}`")
        return self.votes()
