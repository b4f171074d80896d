"""Batches for the training loop. The position (epoch, step) decides everything about a batch: order, crops, flips.

A run in several processes has the same batches as a run in one. Each process takes its share of every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from balcal.core import BalcalError
from balcal.runtime.randomness import generator

if TYPE_CHECKING:
    from balcal.data.dataset import Dataset, ImageSet

Batch = tuple[Any, Any]
"""inputs, and labels; for a user's own loader see `data/loaders.py`"""
PIXELS_AT_ONCE = 1 << 19
"""pixels to prepare at once: making several small batches together costs less than one by one"""


class Batches(Protocol):
    """A source of (images, labels); `len` is the number of batches in an epoch."""

    checked: ClassVar[bool]
    """whether images and labels are known to be valid, so that the loop need not check them"""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]: ...
    def share(self, labels: Any) -> float:
        """The weight of this process's part of a batch: its size relative to an even part."""
        ...


@dataclass(frozen=True, eq=False)
class Pixels:
    """From bytes (N, H, W, C) to the network's input (N, C, H, W): augmented if asked, normalised."""

    scale: Tensor
    shift: Tensor
    augment: str = "none"
    pad: int = 4
    side: int | None = None
    """if set, images are resized to it last"""

    @staticmethod
    def of(
        dataset: Dataset,
        device: torch.device,
        augment: str = "none",
        side: int | None = None,
        by: str | None = None,
    ) -> Pixels:
        moments = (dataset.mean, dataset.std) if by is None else 2 * ([0.5] * dataset.channels,)
        mean, std = (torch.tensor(x, device=device) for x in moments)
        return Pixels(1 / (255 * std), mean / std, augment, side=side)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """`draws` (N, 3), uniform in [0, 1): for each image its vertical shift, its horizontal shift, its flip."""
        if self.augment != "none":
            images = self._augmented(images, draws.to(images.device))
        seen = (images * self.scale).sub_(self.shift).permute(0, 3, 1, 2)  # a view: channels last in memory
        if self.side is None or self.side == seen.shape[-1] == seen.shape[-2]:
            return seen
        size = (self.side, self.side)
        return torch.nn.functional.interpolate(seen, size, mode="bicubic", align_corners=False, antialias=True)

    def _augmented(self, images: Tensor, draws: Tensor) -> Tensor:
        n, height, width, _ = images.shape
        rows = torch.arange(height, device=images.device).expand(n, -1)
        columns = torch.arange(width, device=images.device).expand(n, -1)
        if "flip" in self.augment:
            columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
        if "crop" in self.augment:
            shift = (draws[:, :2] * (2 * self.pad + 1)).long()
            rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
            images = torch.nn.functional.pad(images, (0, 0, self.pad, self.pad, self.pad, self.pad))
        return images[torch.arange(n, device=images.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


@dataclass(frozen=True, eq=False)
class MemoryBatches:
    """Batches of an image set in memory: shuffled and augmented when there is a seed, in order and plain when not."""

    checked: ClassVar[bool] = True  # bytes cannot be NaN, and labels are checked when they are loaded
    data: ImageSet
    pixels: Pixels
    batch_size: int
    seed: int | None = None
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not len(self.data):
            raise BalcalError("a split is empty: there is nothing to make batches of")
        if self.seed is not None and min(self.batch_size, len(self.data)) < self.size:
            raise BalcalError(
                f"a batch of {self.batch_size} cannot be shared among {self.size} processes: make it larger"
            )

    def __len__(self) -> int:
        if self.seed is not None and len(self.data) >= self.batch_size:
            return len(self.data) // self.batch_size  # full batches only; each epoch leaves out a few other images
        return math.ceil(len(self.data) / self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        n, device = len(self.data), self.data.labels.device
        order, draws = torch.arange(n), torch.zeros(n, 3)
        if self.seed is not None:
            order = torch.randperm(n, generator=generator(self.seed, "order", epoch))
            draws = torch.rand(n, 3, generator=generator(self.seed, "augment", epoch))
        together = max(1, PIXELS_AT_ONCE // (self.batch_size * self.data.store[0].numel()))
        for first in range(start, len(self), together):
            steps = range(first, min(first + together, len(self)))
            mine = [slice(i * self.batch_size + self.rank, min((i + 1) * self.batch_size, n), self.size) for i in steps]
            rows, draw = (torch.cat([x[share] for share in mine]) for x in (order, draws))
            rows, sizes = rows.to(device), [len(range(n)[share]) for share in mine]
            images = self.pixels(self.data.pick(rows), draw)
            labels = self.data.labels.index_select(0, rows)
            yield from zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True)

    def share(self, labels: Tensor) -> float:
        return len(labels) * self.size / min(self.batch_size, len(self.data))
