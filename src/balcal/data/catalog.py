"""One row per data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from balcal.data.images import ImageSet, read_mosaic

EMBEDDED = Path(__file__).parent / "embedded"


@dataclass(frozen=True)
class Dataset:
    """A training part and a test part, and what one must know to use them."""

    name: str
    classes: tuple[str, ...]
    load: Callable[[], tuple[ImageSet, ImageSet]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    source: str

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        return len(self.mean)


@cache
def fashion() -> tuple[ImageSet, ImageSet]:
    """12,000 images of Fashion-MNIST that travel with the package."""
    with np.load(EMBEDDED / "fashion-labels.npz") as labels:
        parts = [(part, torch.from_numpy(labels[part].astype(np.int64))) for part in ("train", "test")]
    train, test = (
        ImageSet(torch.from_numpy(read_mosaic(EMBEDDED / f"fashion-{part}.webp", len(y), 28))[..., None], y)
        for part, y in parts
    )
    return train, test


@cache
def digits() -> tuple[ImageSet, ImageSet]:
    """scikit-learn's 1,797 digits of 8 x 8 pixels; the last 500, by other writers, are the test part."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy((bunch.images * (255 / 16)).round().astype(np.uint8))[..., None]
    whole = ImageSet(images, torch.from_numpy(bunch.target.astype(np.int64)))
    rows = torch.arange(len(whole))
    return whole.take(rows[:-500]), whole.take(rows[-500:])


DATASETS = {
    d.name: d
    for d in (
        Dataset(
            "fashion",
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
            fashion,
            mean=(0.2843,),
            std=(0.3516,),
            licence="MIT, (c) 2017 Zalando SE",
            source="10,000 + 2,000 images of Fashion-MNIST, inside the package",
        ),
        Dataset(
            "digits",
            tuple(str(k) for k in range(10)),
            digits,
            mean=(0.305,),
            std=(0.376,),
            licence="BSD-3-Clause",
            source="scikit-learn's digits",
        ),
    )
}
