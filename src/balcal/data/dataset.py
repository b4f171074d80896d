"""What a row of the catalog says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from balcal.core import BalcalError
from balcal.data.corruptions import CORRUPTIONS
from balcal.data.images import Parts
from balcal.data.stored import Stored


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

    @property
    def title(self) -> str:
        """What to call the form that is on this machine, where it is not the published one; else empty."""
        found = (stored.find() for stored in self.stored)
        return ", ".join(each.form.title for each in found if each and each.form.title)

    def soft_labels(self) -> Tensor:
        """For each test image, in order, what share of the people who were asked saw which class: (N, K)."""
        if self.votes is None:
            raise BalcalError(f"nobody has asked people what they see in the test images of `{self.name}`")
        return self.votes()
