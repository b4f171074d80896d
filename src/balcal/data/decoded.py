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
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.decoding import fill
from balcal.data.images import ImageSet
from balcal.data.places import CACHE, cache, unfinished

FEW = 2000
"""images that are decoded anew at every start: that takes seconds, and leaves nothing on disk"""
AT_ONCE = 4000
"""images that a process decodes before it ends; starting one takes a fifth of a second"""
SPARE = 1 << 28
"""bytes that must stay free on the disk"""


def image_files(name: str, files: Sequence[Path], labels: Sequence[int], side: int) -> ImageSet:
    """Image files as a set of images of `side` x `side` pixels, in their order."""
    numbers = torch.tensor(labels, dtype=torch.long)
    if len(files) <= FEW:
        array = np.empty((len(files), side, side, 3), np.uint8)
        fill(array, 0, files)
        return ImageSet(torch.from_numpy(array), numbers)
    path = cache() / "decoded" / f"{name}-{side}-{_stamp(files)}.npy"
    if not path.exists():
        _decode(files, side, path)
    return ImageSet(_mapped(path), numbers, torch.arange(len(files)))


def _mapped(path: Path) -> Tensor:
    # Copy on write: torch wants memory that it may write to, and nothing may ever reach the file.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _stamp(files: Sequence[Path]) -> str:
    """Changes when a file is added, removed, renamed or altered."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(f"{path.parent.name}/{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
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
        print(f"decoding {len(files):,} images, once, into {path} ({size / 1e9:.2f} GB)", file=sys.stderr, flush=True)
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
        os.replace(beside, path)


def _run(job: str) -> str | None:
    """What went wrong in a process of its own, if anything did."""
    command = [sys.executable, "-m", "balcal.data.decoding"]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
