"""Folders of image files, decoded once: into memory if they are few, else into one file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from balcal.core import BalcalError
from balcal.data.decoding import fill
from balcal.data.images import ImageSet
from balcal.data.places import CACHE, cache, unfinished
from balcal.data.sealed import seal, whole
from balcal.naming import plain
from balcal.unfinished import sweep_abandoned

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
