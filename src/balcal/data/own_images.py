"""The user's own images as a data set: `folder:PATH` with one subfolder per class, `npz:PATH` with arrays.

Without a test part a fifth of the images, stratified by class and always the same ones, becomes the test part.
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

from balcal.backbones import encoders
from balcal.core import BalcalError
from balcal.data.dataset import Dataset, ImageSet, Parts, check_split, split_off
from balcal.data.decoding import open_image
from balcal.data.image_folders import labelled_files, labelled_images, subfolders
from balcal.data.locate import MALFORMED
from balcal.recipe import Plan, Task

PREFIXES = ("folder:", "npz:")
TEST_SHARE = 0.2
SPLIT_SEED = 0
USUAL_SIDE = 64
"""pixels, where the images themselves do not agree on a size"""
MOST_CLASSES = 1_000_000
"""without names; a larger label is no class index"""
IMAGES_FOR_STATISTICS = 10_000
"""for the mean and the standard deviation of the channels"""
ARRAYS = (("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels"))
"""names of arrays in a file with a test part"""
VAL_SHARE = 0.15
"""of the training images, held out for validation"""
FEW, LARGE = 5_000, 96
"""training images, and pixels per side: a network from scratch learns little from so few that are so large"""


def is_own_images(name: str) -> bool:
    """Whether this is the name of the user's own images, not of a data set of the catalog."""
    return name.startswith(PREFIXES)


def full_name(name: str) -> str:
    """The name with an absolute path, so that it does not depend on the working directory."""
    kind, _, path = name.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute()}"


def own_images(name: str) -> Dataset:
    """The data set `folder:PATH`, `folder:PATH@SIDE` or `npz:PATH`. Read once, and again when files come and go."""
    kind, _, written = full_name(name).partition(":")
    path, side = Path(written), None
    if kind == "folder" and not path.is_dir() and (sized := re.fullmatch(r"(.+)@(\d+)", written)):
        path, side = Path(sized[1]), int(sized[2])
    if not path.exists():
        raise BalcalError(f"there is no {path}, so there are no images for `{name}`")
    try:
        return _read(full_name(name), path, side, _stamp(path))
    except MALFORMED as error:
        raise BalcalError(f"`{name}` cannot be read: {str(error) or type(error).__name__}") from None


def _stamp(path: Path) -> tuple[Any, ...]:
    """The modification times of the folders, which change when files come and go."""
    inside = [*(p for p in path.glob("*/") if p.is_dir()), *path.glob("*/*/")] if path.is_dir() else []
    return tuple((str(each), each.stat().st_mtime_ns) for each in sorted([path, *inside]))


@lru_cache(maxsize=4)
def _read(name: str, path: Path, side: int | None, stamp: tuple[Any, ...]) -> Dataset:
    (train, test), classes = folder_parts(path, side) if name.startswith("folder:") else array_parts(path)
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
        source=str(path),
    )


def statistics(train: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from some evenly spaced images if there are many."""
    rows = torch.arange(len(train))[:: max(1, len(train) // IMAGES_FOR_STATISTICS)]
    pixels = train.pick(rows).flatten(0, 2).double() / 255
    spread = pixels.std(0).clamp(min=1 / 255)  # a constant channel has no deviation
    return _rounded(pixels.mean(0)), _rounded(spread)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(v), 4) for v in values)


def folder_parts(folder: Path, side: int | None) -> tuple[Parts, tuple[str, ...]]:
    """From `train` and `test` (or `val`), each with a subfolder per class; or from subfolders per class alone."""
    test_folder = next((folder / t for t in ("test", "val", "valid") if (folder / t).is_dir()), None)
    divided = (folder / "train").is_dir() and test_folder is not None
    train_folder = folder / "train" if divided else folder
    classes = subfolders(train_folder)
    labelled = labelled_files(train_folder)
    if len(classes) < 2 or not labelled:
        raise BalcalError(f"{train_folder} should have a subfolder of images for each of at least two classes")
    side = side or common_side([next((p for p, c in labelled if c == name), None) for name in classes])
    train = labelled_images(f"folder-{folder.name}-train", labelled, classes, side)
    if not (divided and test_folder):
        return _split(train, len(classes)), tuple(classes)
    held_out = labelled_files(test_folder)
    if not held_out:
        raise BalcalError(f"{test_folder} is empty")
    if unknown := sorted({name for _, name in held_out} - set(classes)):
        raise BalcalError(f"{test_folder} has the class `{unknown[0]}`, which {train_folder} has not")
    return (train, labelled_images(f"folder-{folder.name}-test", held_out, classes, side)), tuple(classes)


def common_side(some: list[Path | None]) -> int:
    """The side of the images, if the first ones of all classes are squares of one size; else 64."""
    sizes = set()
    for path in filter(None, some):
        with open_image(path) as image:
            sizes.add(image.size)
    width, height = sizes.pop() if len(sizes) == 1 else (0, -1)
    return width if width == height else USUAL_SIDE


def array_parts(path: Path) -> tuple[Parts, tuple[str, ...]]:
    """From a file of `numpy.savez`: images and labels, with a test part or without."""
    if not path.is_file():  # opening a named pipe would block
        raise BalcalError(f"{path} is no regular file: save images and labels there with numpy.savez")
    with open(path, "rb") as raw:
        file = np.load(raw, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise BalcalError(f"{path} is a single array: save images and labels together with numpy.savez")
        found = file.files
        names = next((names for names in (*ARRAYS, ("images", "labels")) if set(names) <= set(found)), None)
        if names is None:
            raise BalcalError(
                f"{path} should have the arrays {', '.join(ARRAYS[0])} or images, labels; it has {', '.join(found)}"
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
    if top >= MOST_CLASSES:
        raise BalcalError(
            f"label {top} would mean {top + 1:,} classes: number the classes from 0, or name them in `classes`"
        )
    return tuple(str(k) for k in range(top + 1))


def _split(whole: ImageSet, num_classes: int) -> Parts:
    return split_off(whole, round(TEST_SHARE * len(whole)), num_classes, SPLIT_SEED)


def few_and_large(dataset: Dataset) -> bool:
    """Whether a folder without a size in its name has few images, whose shorter side has many pixels."""
    kind, _, path = dataset.name.partition(":")
    if kind != "folder" or dataset.sizes[0] > FEW or not Path(path).is_dir():
        return False
    inside = Path(path) / "train"
    first = labelled_files(inside if inside.is_dir() else Path(path))[:: max(1, dataset.sizes[0] // 20)]
    sides = []
    for file, _ in first:
        with open_image(file) as image:
            sides.append(min(image.size))
    return sorted(sides)[len(sides) // 2] >= LARGE


def encoder_hint(task: Task) -> str:
    """What to tell the user about a pretrained encoder; empty, if there is nothing to tell."""
    if not is_own_images(task.dataset) or encoders.installed() or not few_and_large(own_images(task.dataset)):
        return ""
    return (
        "few and large images: a pretrained encoder would learn more from them than this network from scratch: "
        f"{encoders.INSTALL} (or --set task.backbone=timm:NAME@pretrained with timm)"
    )


def own_task(dataset: Dataset, scratch: bool = False) -> Task:
    """The task for a user's own images: a moderate network and a plan that suits most; `--set` changes any of it.

    Few and large images go through a frozen, pretrained encoder, if one is installed, unless `scratch` is asked for.
    """
    count = dataset.sizes[0]
    if not scratch and encoders.installed() and few_and_large(dataset):
        return Task(
            dataset.name,
            dataset=f"{dataset.name}@{encoders.SIDE}",
            backbone=encoders.ENCODER,
            plan=Plan(epochs=30, batch_size=min(64, max(2, count // 8)), optimiser="adam", lr=1e-3, schedule="cosine"),
            val_size=max(1, round(VAL_SHARE * count)),
            pixels="half",
            about=f"{count:,} + {dataset.sizes[1]:,} images from {dataset.source}, on a frozen pretrained encoder",
        )
    return Task(
        dataset.name,
        dataset=dataset.name,
        backbone="wrn-16-2",
        plan=Plan(epochs=30, batch_size=min(64, max(2, count // 8)), optimiser="adam", lr=1e-3, schedule="cosine"),
        val_size=max(1, round(VAL_SHARE * count)),
        augment="flip",
        about=f"{count:,} + {dataset.sizes[1]:,} images from {dataset.source}",
    )
