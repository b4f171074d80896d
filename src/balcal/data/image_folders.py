"""Folders of image files, among them ImageNet and Tiny-ImageNet, and their cache.

A few images are decoded into memory at every start. Many are decoded once, by several processes, into one .npy file
that is mapped into memory. Its seal, the SHA-256 of its bytes, follows behind the array and is checked at each opening.

ImageNet and Tiny-ImageNet are evaluated on their validation images: the labels of their test images are not published.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, Parts
from balcal.data.decoding import SUFFIXES, decode_into
from balcal.data.download import CACHE, cache, unfinished
from balcal.runtime.files import sweep_abandoned
from balcal.runtime.names import plain

Labelled = list[tuple[Path, str]]
"""image files with the name of their class"""
SYNSET_LISTS = ("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt")
FEW = 2000
"""images that are decoded anew at every start: that takes seconds, and leaves nothing on disk"""
FILES_PER_PROCESS = 4000
"""images that a process decodes before it ends; starting one takes a fifth of a second"""
FILES_DIGESTED = 500
"""images whose content is part of the stamp of a set"""
SPARE = 1 << 28
"""bytes that must stay free on the disk"""
SEAL = hashlib.sha256().digest_size
BYTES_AT_ONCE = 1 << 20
"""bytes to digest at once"""


def tiny_imagenet(folder: Path) -> Parts:
    classes = tiny_classes(folder)
    train = labelled_images("tiny-imagenet-train", labelled_files(folder / "train"), classes, 64)
    if subfolders(folder / "val") == ["images"]:
        lines = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
        held_out = [(folder / "val" / "images" / line[0], line[1]) for line in lines]
    else:
        held_out = labelled_files(folder / "val")  # as many scripts rearrange it
    return train, labelled_images("tiny-imagenet-val", held_out, classes, 64)


def tiny_classes(folder: Path) -> list[str]:
    """The synsets, in the order of the class indices."""
    return sorted((folder / "wnids.txt").read_text().split())


def tiny_names(folder: Path) -> list[str]:
    """A word for each class."""
    words = dict(line.split("\t", 1) for line in (folder / "words.txt").read_text().splitlines())
    return [words[synset].split(",")[0] for synset in tiny_classes(folder)]


def imagenet(folder: Path, side: int = 224) -> Parts:
    classes = subfolders(folder / "train")
    train, held_out = labelled_files(folder / "train"), labelled_files(folder / "val")
    if not held_out:
        synsets = _flat_synsets(folder)
        held_out = [(path, synsets[path.stem]) for path in image_files(folder / "val")]
    train_images = labelled_images("imagenet-train", train, classes, side)
    return train_images, labelled_images("imagenet-val", held_out, classes, side)


def _flat_synsets(folder: Path) -> Mapping[str, str]:
    """The synset of each validation image by file name, if the images are not in subfolders.

    A list beside them has it: Kaggle's table, or one synset a line in the order of the files, or a file name and a
    synset a line.
    """
    for near in (folder, folder / "val", folder.parent, *folder.parents[:3]):
        for name in SYNSET_LISTS:
            if (near / name).is_file():
                return _synsets(near / name, folder)
    raise ValueError(
        f"the images of {folder / 'val'} are not in folders by synset, and none of {', '.join(SYNSET_LISTS)} is there"
    )


def _synsets(table: Path, folder: Path) -> Mapping[str, str]:
    with open(table, newline="") as file:
        if table.suffix == ".csv":
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        lines = [line.split() for line in file if line.strip()]
    if all(len(line) == 1 for line in lines):
        lines = [[path.name, line[0]] for path, line in zip(image_files(folder / "val"), lines, strict=True)]
    return {Path(name).stem: synset for name, synset in lines}


def image_files(folder: Path) -> list[Path]:
    """In the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def labelled_files(folder: Path) -> Labelled:
    """The image files of a folder with one subfolder per class. Images lie in the subfolder, or in its `images`."""
    found = []
    for name in subfolders(folder):
        inside = folder / name / "images"
        found += [(path, name) for path in image_files(inside if inside.is_dir() else folder / name)]
    return found


def labelled_images(name: str, labelled: Labelled, classes: list[str], side: int) -> ImageSet:
    """The images of these files. `name` is part of the name of the cached file."""
    number = {synset: k for k, synset in enumerate(classes)}
    return images_from_files(name, [path for path, _ in labelled], [number[synset] for _, synset in labelled], side)


def images_from_files(name: str, files: Sequence[Path], labels: Sequence[int], side: int) -> ImageSet:
    """The images of these files, `side` x `side` pixels each: in memory, or mapped from the cache."""
    numbers = torch.tensor(labels, dtype=torch.long)
    shape = (len(files), side, side, 3)
    if len(files) <= FEW:
        array = np.empty(shape, np.uint8)
        decode_into(array, 0, files)
        return ImageSet(torch.from_numpy(array), numbers)
    path = cache() / "decoded" / f"{name}-{side}-{_stamp(files)}.npy"
    sweep_abandoned(path.parent)
    found = read_sealed(path, shape)
    if found is None:
        if path.exists():
            print(f"{plain(path)} is damaged: its images are decoded again", file=sys.stderr, flush=True)
            path.unlink(missing_ok=True)  # it may be what fills the disk
        _decode(files, side, path)
        found = _mapped(path)
    return ImageSet(torch.from_numpy(found), numbers, torch.arange(len(files)))


def _stamp(files: Sequence[Path]) -> str:
    """Sixteen hexadecimal digits that change when a file is added, removed, renamed, moved or altered.

    Reading a million files would take as long as decoding them. So the digest takes path, size and times of each, of
    which the last (of the inode) cannot be set by hand. It takes the content of some, for disks that keep no times.
    """
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        line = f"{path.absolute()}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    for path in files[:: max(1, len(files) // FILES_DIGESTED)]:
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _decode(files: Sequence[Path], side: int, path: Path) -> None:
    """Decode into a new file, with one process per core. The file appears when it is complete."""
    shape = (len(files), side, side, 3)
    size = int(np.prod(shape))
    with unfinished(path) as beside:
        free = shutil.disk_usage(path.parent).free
        if size + SPARE > free:
            raise BalcalError(
                f"{len(files):,} images of {side} x {side} pixels take {size / 1e9:.1f} GB and {path.parent} has "
                f"{free / 1e9:.1f} GB left: make room, or name a folder on another disk in {CACHE}"
            )
        message = f"decoding {len(files):,} images, once, into {plain(path)} ({size / 1e9:.2f} GB)"
        print(message, file=sys.stderr, flush=True)
        np.lib.format.open_memmap(beside, mode="w+", dtype=np.uint8, shape=shape).flush()
        jobs = [
            {"array": str(beside), "first": first, "files": [str(f) for f in files[first : first + FILES_PER_PROCESS]]}
            for first in range(0, len(files), FILES_PER_PROCESS)
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as workers:
            wrong = next(filter(None, workers.map(_run, map(json.dumps, jobs))), None)
            if wrong:
                workers.shutdown(cancel_futures=True)
                raise BalcalError(wrong)
        seal(beside)  # checked whenever the file is opened, so there is no need to wait for the disk
        os.replace(beside, path)


def _run(job: str) -> str | None:
    """Decode a part of the files in another process. Returns what went wrong, if anything did."""
    command = [sys.executable, "-m", "balcal.data.decoding"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"a process that decodes images ended early ({done.returncode}): is the memory full?"


def seal(path: Path) -> None:
    """Append the seal to a file."""
    with open(path, "r+b") as file:
        file.write(_digest(file, os.fstat(file.fileno()).st_size))


def read_sealed(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The array in a file, mapped into memory. None if there is no such file, or if its seal does not fit.

    All of it is read, at about 1.5 GB a second: a second for Tiny-ImageNet, minutes for ImageNet.
    """
    try:
        with open(path, "rb") as file:
            digest = _digest(file, os.fstat(file.fileno()).st_size - SEAL)
            if file.read() != digest:
                return None
        found = _mapped(path)
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == np.uint8 else None


def _mapped(path: Path) -> NDArray[Any]:
    """Copy on write: torch wants memory that it may write to, and nothing may ever reach the file."""
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def _digest(file: IO[bytes], size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (part := file.read(min(size, BYTES_AT_ONCE))):
        digest.update(part)
        size -= len(part)
    return digest.digest()
