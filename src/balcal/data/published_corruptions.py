"""Corrupted test sets as published (Hendrycks, Dietterich 2019): CIFAR-10-C, CIFAR-100-C, Tiny-ImageNet-C.

Severities run from 1 to 5. Of CIFAR the images are in the order of the test part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from balcal.core import BalcalError
from balcal.data.corruptions import CORRUPTIONS, EXTRA, SEVERITIES
from balcal.data.dataset import ImageSet
from balcal.data.download import Download
from balcal.data.image_folders import labelled_files, labelled_images, subfolders
from balcal.data.locate import MALFORMED, Form, StoredFiles


@dataclass(frozen=True)
class Shift:
    """A test set under published corruptions."""

    name: str
    of: str
    """the data set whose test images these are"""
    stored: StoredFiles[Path]
    read: Callable[[Path, str, int], ImageSet]
    licence: str
    source: str
    extra: tuple[str, ...] = EXTRA
    """corruptions beyond the fifteen"""

    def load(self, corruption: str, severity: int) -> ImageSet:
        """The test images under one corruption."""
        known = (*CORRUPTIONS, *self.extra)
        if corruption not in known or severity not in SEVERITIES:
            raise BalcalError(
                f"{self.name} has no {corruption!r} of severity {severity}: severities are 1 to 5, corruptions "
                f"{', '.join(known)}"
            )
        folder = self.stored()
        try:
            return self.read(folder, corruption, severity)
        except MALFORMED as error:
            raise BalcalError(f"{folder} cannot be read as {self.name}: {str(error) or type(error).__name__}") from None


def arrays(folder: Path, corruption: str, severity: int) -> ImageSet:
    """From one array with the five severities one after the other. Only one of them is read."""
    images = np.load(folder / f"{corruption}.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    count, rest = divmod(len(images), len(SEVERITIES))
    if rest or len(labels) != len(images):
        raise ValueError(f"{corruption}.npy has {len(images):,} images and labels.npy {len(labels):,} labels")
    rows = slice(count * (severity - 1), count * severity)
    return ImageSet(torch.from_numpy(np.array(images[rows])), torch.from_numpy(labels[rows].astype(np.int64)))


def folders(folder: Path, corruption: str, severity: int) -> ImageSet:
    """From image files in CORRUPTION/SEVERITY/CLASS."""
    root = folder / corruption / str(severity)
    return labelled_images(f"tiny-imagenet-c-{corruption}-{severity}", labelled_files(root), subfolders(root), 64)


def _the_folder(folder: Path) -> Path:
    return folder


def _shift(name: str, of: str, folder: str, url: str, checksum: str, *, files: tuple[str, ...] = ()) -> Shift:
    download = Download(f"{folder}.tar", (url,), checksum)
    form = Form(folder, tuple((file, "") for file in files), _the_folder, (download,))
    read = arrays if "labels.npy" in files else folders
    extra = EXTRA if read is arrays else ()
    record = url.partition("/files/")[0]
    return Shift(name, of, StoredFiles(name, (form,)), read, "CC BY 4.0", record, extra)


ARRAYS = ("labels.npy", *(f"{corruption}.npy" for corruption in CORRUPTIONS))
ZENODO = "https://zenodo.org/records"
SHIFTS = {
    s.name: s
    for s in (
        _shift(
            "cifar10-c",
            "cifar10",
            "CIFAR-10-C",
            f"{ZENODO}/2535967/files/CIFAR-10-C.tar",
            "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
            files=ARRAYS,
        ),
        _shift(
            "cifar100-c",
            "cifar100",
            "CIFAR-100-C",
            f"{ZENODO}/3555552/files/CIFAR-100-C.tar",
            "md5:11f0ed0f1191edbf9fa23466ae6021d3",
            files=ARRAYS,
        ),
        _shift(
            "tiny-imagenet-c",
            "tiny-imagenet",
            "Tiny-ImageNet-C",
            f"{ZENODO}/8206060/files/Tiny-ImageNet-C.tar",
            "md5:f9c9a9dbdc11469f0b850190f7ad8be1",
            files=CORRUPTIONS,
        ),
    )
}
