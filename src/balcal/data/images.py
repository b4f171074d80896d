"""Sets of images held in memory, and their splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from balcal.core import BalcalError, check_labels
from balcal.randomness import generator


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes, (N, H, W, C), and their labels (N,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise BalcalError(f"images must be bytes (N, H, W, C), not {self.images.dtype} {tuple(self.images.shape)}")
        if len(self.images) != len(self.labels):
            raise BalcalError(f"there are {len(self.images)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> ImageSet:
        return ImageSet(self.images[rows], self.labels[rows])

    def to(self, device: torch.device) -> ImageSet:
        return ImageSet(self.images.to(device), self.labels.to(device))


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
    shuffled = torch.randperm(len(whole), generator=generator(seed, "split"))
    labels = whole.labels[shuffled]
    rank_in_class = torch.zeros(len(whole), dtype=torch.long)
    for k in range(num_classes):
        members = labels == k
        rank_in_class[members] = torch.arange(int(members.sum()))
    order = shuffled[torch.argsort(rank_in_class, stable=True)]  # deals the classes out in turn
    return whole.take(order[val_size:].sort().values), whole.take(order[:val_size].sort().values)


def read_mosaic(path: Path, count: int, side: int) -> NDArray[np.uint8]:
    """Grey tiles in row-major order, cut out of one picture: (count, side, side)."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("L"))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    tiles = pixels.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(rows * columns, side, side)
    return np.ascontiguousarray(tiles[:count])
