"""Anybody's own images: `folder:PATH` with one subfolder per class, `npz:PATH` with arrays.

Without a test part a fifth of the images, as many of each class, is set apart for judging, always the same ones.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.dataset import Dataset, ImageSet, Parts, check_split, split_off
from balcal.data.decoding import opened
from balcal.data.image_folders import by_folder, part, subfolders
from balcal.data.locate import MALFORMED

PREFIXES = ("folder:", "npz:")
TEST_SHARE = 0.2
SPLIT_SEED = 0
USUAL_SIDE = 64
"""pixels, where the images themselves do not agree on a size"""
MOST = 1_000_000
"""classes without a name; beyond it, a label is not a number of a class but of something else"""
ENOUGH = 10_000
"""images to take the mean and the deviation of colours from"""


def is_foreign(name: str) -> bool:
    return name.startswith(PREFIXES)


def full_name(name: str) -> str:
    """With the whole path, so that the same images have the same name wherever one stands."""
    kind, _, path = name.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute()}"


def foreign(name: str) -> Dataset:
    kind, _, path = full_name(name).partition(":")
    place, side = Path(path), None
    if kind == "folder" and not place.is_dir() and (sized := re.fullmatch(r"(.+)@(\d+)", path)):
        place, side = Path(sized[1]), int(sized[2])
    if not place.exists():
        raise BalcalError(f"there is no {place}, so there are no images for `{name}`")
    try:
        return _read(full_name(name), place, side, _stamp(place))
    except MALFORMED as error:
        raise BalcalError(f"`{name}` cannot be read: {str(error) or type(error).__name__}") from None


def _stamp(place: Path) -> tuple[Any, ...]:
    """Notices files that come and go, by the times of their folders."""
    inside = [place, *(p for p in place.glob("*/") if p.is_dir()), *place.glob("*/*/")] if place.is_dir() else [place]
    return tuple((str(path), path.stat().st_mtime_ns) for path in sorted(inside))


@lru_cache(maxsize=4)
def _read(name: str, place: Path, side: int | None, stamp: tuple[Any, ...]) -> Dataset:
    (train, test), classes = folder_parts(place, side) if name.startswith("folder:") else array_parts(place)
    mean, std = statistics(train)
    return Dataset(
        name,
        classes,
        lambda: (train, test),
        mean=mean,
        std=std,
        sizes=(len(train), len(test)),
        side=train.shape[1],
        licence="yours",
        source=str(place),
    )


def statistics(train: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel; of many images, those of evenly spaced ones."""
    rows = torch.arange(len(train))[:: max(1, len(train) // ENOUGH)]
    pixels = train.pick(rows).flatten(0, 2).double() / 255
    spread = pixels.std(0).clamp(min=1 / 255)  # a channel that says nothing
    return _rounded(pixels.mean(0)), _rounded(spread)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(v), 4) for v in values)


def folder_parts(place: Path, side: int | None) -> tuple[Parts, tuple[str, ...]]:
    """`train` with `test` or `val` inside, each with a subfolder per class; or the subfolders of the classes."""
    test_place = next((place / t for t in ("test", "val", "valid") if (place / t).is_dir()), None)
    divided = (place / "train").is_dir() and test_place is not None
    root = place / "train" if divided else place
    classes = subfolders(root)
    labelled = by_folder(root)
    if len(classes) < 2 or not labelled:
        raise BalcalError(f"{root} should have a subfolder of images for each of at least two classes")
    side = side or common_side([next((p for p, c in labelled if c == name), None) for name in classes])
    train = part(f"folder-{place.name}-train", labelled, classes, side)
    if not (divided and test_place):
        return _split(train, len(classes)), tuple(classes)
    held_out = by_folder(test_place)
    strange = sorted({name for _, name in held_out} - set(classes))
    if strange or not held_out:
        raise BalcalError(
            f"{test_place} has the class `{strange[0]}`, which {root} has not" if strange else f"{test_place} is empty"
        )
    return (train, part(f"folder-{place.name}-test", held_out, classes, side)), tuple(classes)


def common_side(some: list[Path | None]) -> int:
    """The side of the images if the first ones of all classes are squares of one size."""
    sizes = set()
    for path in filter(None, some):
        with opened(path) as image:
            sizes.add(image.size)
    width, height = sizes.pop() if len(sizes) == 1 else (0, -1)
    return width if width == height else USUAL_SIDE


NAMES = (("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels"))


def array_parts(path: Path) -> tuple[Parts, tuple[str, ...]]:
    if not path.is_file():  # a named pipe would be waited for
        raise BalcalError(f"{path} is no regular file: save images and labels there with numpy.savez")
    with open(path, "rb") as raw:
        file = np.load(raw, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise BalcalError(f"{path} is a single array: save images and labels together with numpy.savez")
        found = file.files
        names = next((names for names in (*NAMES, ("images", "labels")) if set(names) <= set(found)), None)
        if names is None:
            raise BalcalError(
                f"{path} should have the arrays {', '.join(NAMES[0])} or images, labels; it has {', '.join(found)}"
            )
        classes = tuple(str(c) for c in file["classes"]) if "classes" in found else ()
        parts = [_arrays(file[x], file[y], x) for x, y in zip(names[::2], names[1::2], strict=True)]
    classes = classes or _numbers(*parts)
    for name, each in zip(names[::2], parts, strict=True):
        check_split(each, len(classes), f"`{name}`")
    return (parts[0], parts[1]) if len(parts) == 2 else _split(parts[0], len(classes)), classes


def _arrays(images: NDArray[Any], labels: NDArray[Any], name: str) -> ImageSet:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise BalcalError(
            f"`{name}` should be bytes (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1 or 3, "
            f"not {images.dtype} {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.ndim == 0 or labels.size != len(labels):
        raise BalcalError(f"the labels of `{name}` should be class indices (N,), not {labels.dtype} {labels.shape}")
    if labels.size and labels.max() > np.iinfo(np.int64).max:
        raise BalcalError(f"label {labels.max()} of `{name}` is no class index: number the classes from 0")
    numbers = torch.from_numpy(labels.reshape(-1).astype(np.int64))
    return ImageSet(torch.from_numpy(np.ascontiguousarray(images)), numbers)


def _numbers(*parts: ImageSet) -> tuple[str, ...]:
    top = max((int(p.labels.max()) for p in parts if len(p)), default=0)
    if top >= MOST:
        raise BalcalError(
            f"label {top} would mean {top + 1:,} classes: number the classes from 0, or name them in `classes`"
        )
    return tuple(str(k) for k in range(top + 1))


def _split(whole: ImageSet, num_classes: int) -> Parts:
    return split_off(whole, round(TEST_SHARE * len(whole)), num_classes, SPLIT_SEED)
