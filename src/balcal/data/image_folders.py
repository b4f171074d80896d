"""Arrays on disk under a seal: an .npy file like any other, and behind its end the SHA-256 of all before it.

Folders of image files, decoded once: into memory if they are few, else into one file that is mapped into memory.

ImageNet and Tiny-ImageNet: folders of image files by synset, decoded once into a mapped file.

Both are judged on their validation images, because the labels of their test images were never published.
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
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, Parts
from balcal.data.decoding import SUFFIXES, fill
from balcal.data.download import CACHE, cache, unfinished
from balcal.runtime.files import sweep_abandoned
from balcal.runtime.names import plain

SEAL = hashlib.sha256().digest_size
BYTES_AT_ONCE = 1 << 20
"""bytes"""


def seal(path: Path) -> None:
    """Put the seal behind the end of a file."""
    with open(path, "r+b") as file:
        file.write(_digest(file, os.fstat(file.fileno()).st_size))


def whole(path: Path, shape: tuple[int, ...], mode: Literal["r", "c"]) -> NDArray[np.uint8] | None:
    """The bytes in the file, mapped into memory; none if there is no such file, or it is not what was sealed.

    All of it is read, at some 1.5 GB a second where the disk can: a second for Tiny-ImageNet, minutes for ImageNet.
    """
    try:
        with open(path, "rb") as file:
            digest = _digest(file, os.fstat(file.fileno()).st_size - SEAL)
            if file.read() != digest:
                return None
        found: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == np.uint8 else None


def _digest(file: IO[bytes], size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (part := file.read(min(size, BYTES_AT_ONCE))):
        digest.update(part)
        size -= len(part)
    return digest.digest()


FEW = 2000
"""images that are decoded anew at every start: that takes seconds, and leaves nothing on disk"""
AT_ONCE = 4000
"""images that a process decodes before it ends; starting one takes a fifth of a second"""
READ = 500
"""images of which the content, too, goes into the stamp of a set"""
SPARE = 1 << 28
"""bytes that must stay free on the disk"""


def image_files(name: str, files: Sequence[Path], labels: Sequence[int], side: int) -> ImageSet:
    """Image files as a set of images of `side` x `side` pixels, in their order."""
    numbers = torch.tensor(labels, dtype=torch.long)
    shape = (len(files), side, side, 3)
    if len(files) <= FEW:
        array = np.empty(shape, np.uint8)
        fill(array, 0, files)
        return ImageSet(torch.from_numpy(array), numbers)
    path = cache() / "decoded" / f"{name}-{side}-{_stamp(files)}.npy"
    sweep_abandoned(path.parent)
    # Copy on write: torch wants memory that it may write to, and nothing may ever reach the file.
    found = whole(path, shape, "c")
    if found is None:
        if path.exists():
            print(f"{plain(path)} is damaged: its images are decoded again", file=sys.stderr, flush=True)
            path.unlink(missing_ok=True)  # it may be what fills the disk
        _decode(files, side, path)
        found = np.load(path, mmap_mode="c", allow_pickle=False)
    return ImageSet(torch.from_numpy(found), numbers, torch.arange(len(files)))


def _stamp(files: Sequence[Path]) -> str:
    """Changes when a file is added, removed, renamed or altered, and from one folder to another.

    Reading a million files would take as long as decoding them. So of all it takes path, size and times, of which the
    last (of the inode) cannot be set by hand; and of some the content, for disks on which all times are equal.
    """
    digest = hashlib.sha256()
    for path in files:
        told = path.stat()
        digest.update(
            f"{path.absolute()}\0{told.st_size} {told.st_mtime_ns} {told.st_ctime_ns}\n".encode(
                "utf-8", "surrogateescape"
            )
        )
    for path in files[:: max(1, len(files) // READ)]:
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _decode(files: Sequence[Path], side: int, path: Path) -> None:
    """By as many processes as there are cores; the file appears when all of it is there."""
    shape = (len(files), side, side, 3)
    size = int(np.prod(shape))
    with unfinished(path) as beside:
        free = shutil.disk_usage(path.parent).free
        if size + SPARE > free:
            raise BalcalError(
                f"{len(files):,} images of {side} x {side} pixels take {size / 1e9:.1f} GB and {path.parent} has "
                f"{free / 1e9:.1f} GB left: make room, or name a folder on another disk in {CACHE}"
            )
        told = f"decoding {len(files):,} images, once, into {plain(path)} ({size / 1e9:.2f} GB)"
        print(told, file=sys.stderr, flush=True)
        np.lib.format.open_memmap(beside, mode="w+", dtype=np.uint8, shape=shape).flush()
        jobs = [
            {"array": str(beside), "first": first, "files": [str(f) for f in files[first : first + AT_ONCE]]}
            for first in range(0, len(files), AT_ONCE)
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2) as workers:
            wrong = next(filter(None, workers.map(_run, map(json.dumps, jobs))), None)
            if wrong:
                workers.shutdown(cancel_futures=True)
                raise BalcalError(wrong)
        seal(beside)  # which is looked at whenever the file is opened: there is no need to wait for the disk
        os.replace(beside, path)


def _run(job: str) -> str | None:
    """What went wrong in a process of its own, if anything did."""
    command = [sys.executable, "-m", "balcal.data.decoding"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    told = done.stderr.strip().splitlines()
    return told[-1] if told else f"a process that decodes images ended early ({done.returncode}): is the memory full?"


Labelled = list[tuple[Path, str]]
"""image files with the name of their class"""


def pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def by_folder(folder: Path) -> Labelled:
    """One subfolder for each class; the images in it, or in its `images`."""
    found = []
    for name in subfolders(folder):
        inside = folder / name / "images"
        found += [(path, name) for path in pictures(inside if inside.is_dir() else folder / name)]
    return found


def part(name: str, labelled: Labelled, classes: list[str], side: int) -> ImageSet:
    number = {synset: k for k, synset in enumerate(classes)}
    return image_files(name, [path for path, _ in labelled], [number[synset] for _, synset in labelled], side)


def tiny(folder: Path) -> Parts:
    classes = tiny_classes(folder)
    train = part("tiny-imagenet-train", by_folder(folder / "train"), classes, 64)
    if subfolders(folder / "val") == ["images"]:
        told = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
        held_out = [(folder / "val" / "images" / line[0], line[1]) for line in told]
    else:
        held_out = by_folder(folder / "val")  # as many scripts rearrange it
    return train, part("tiny-imagenet-val", held_out, classes, 64)


def tiny_classes(folder: Path) -> list[str]:
    return sorted((folder / "wnids.txt").read_text().split())


def tiny_names(folder: Path) -> list[str]:
    words = dict(line.split("\t", 1) for line in (folder / "words.txt").read_text().splitlines())
    return [words[synset].split(",")[0] for synset in tiny_classes(folder)]


def imagenet(folder: Path, side: int = 224) -> Parts:
    labelled = by_folder(folder / "train")
    classes = subfolders(folder / "train")
    held_out = by_folder(folder / "val")
    if not held_out:
        synsets = _flat_synsets(folder)
        held_out = [(path, synsets[path.stem]) for path in pictures(folder / "val")]
    return part("imagenet-train", labelled, classes, side), part("imagenet-val", held_out, classes, side)


SYNSET_LISTS = ("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt")


def _flat_synsets(folder: Path) -> Mapping[str, str]:
    """Of validation images in one heap, by file name: Kaggle's table, or one synset a line in the order of the files,
    or a file name and a synset a line."""
    for place in (folder, folder / "val", folder.parent, *folder.parents[:3]):
        for name in SYNSET_LISTS:
            if (place / name).is_file():
                return _synsets(place / name, folder)
    raise ValueError(
        f"the images of {folder / 'val'} are not in folders by synset, and none of {', '.join(SYNSET_LISTS)} is there"
    )


def _synsets(table: Path, folder: Path) -> Mapping[str, str]:
    with open(table, newline="") as file:
        if table.suffix == ".csv":
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        lines = [line.split() for line in file if line.strip()]
    if all(len(line) == 1 for line in lines):
        lines = [[path.name, line[0]] for path, line in zip(pictures(folder / "val"), lines, strict=True)]
    return {Path(name).stem: synset for name, synset in lines}
