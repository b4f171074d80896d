"""Who may use which images for what. Roles are named, hashed and written down; the test role only judges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.data.images import ImageSet, Splits

AT_ONCE = 10_000
"""images to look at in one go: a large set is never in memory as a whole"""
USES = {
    "train": "fits the weights, and gamma where it is solved on training batches",
    "select": "chooses the epoch",
    "calibrate": "fits what is applied after training",
    "test": "judges; nothing is fitted or chosen on it",
}


def roles(splits: Splits) -> dict[str, ImageSet]:
    return {"train": splits.train, "select": splits.val, "calibrate": splits.calibrate, "test": splits.test}


def digest(part: ImageSet) -> str:
    """Sixteen letters that change with any pixel or label."""
    content = hashlib.sha256(str(part.shape).encode())
    for piece in _pieces(part):
        content.update(np.ascontiguousarray(piece).data)
    content.update(part.labels.cpu().long().contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def shared_images(first: ImageSet, second: ImageSet) -> int:
    """How many images of the second set are in the first, pixel for pixel, whatever their labels.

    >>> import torch
    >>> images = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    >>> shared_images(ImageSet(images[:3], torch.zeros(3)), ImageSet(images[2:], torch.zeros(2)))
    1
    """
    if first.shape[1:] != second.shape[1:]:
        return 0
    seen = set(_marks(first))
    return sum(mark in seen for mark in _marks(second))


def _marks(part: ImageSet) -> Iterator[bytes]:
    """One for each image. Sixteen bytes, because a million images themselves would not fit into memory."""
    for piece in _pieces(part):
        yield from (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in piece)


def _pieces(part: ImageSet) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(part), AT_ONCE):
        rows = torch.arange(first, min(first + AT_ONCE, len(part)), device=part.labels.device)
        yield part.pick(rows).cpu().numpy()


def manifest(splits: Splits) -> dict[str, Any]:
    """Size, digest and use of each role, and how many images two roles have in common."""
    parts = roles(splits)
    described = {
        name: {"samples": len(part), "digest": digest(part), "use": USES[name]} for name, part in parts.items()
    }
    for name in ("train", "select", "calibrate"):
        if described[name]["digest"] == described["test"]["digest"]:
            raise BalcalError(
                f"the {name} role holds the very same images as the test role: nothing may be fitted or chosen on them"
            )
    pairs = [("train", "select"), ("train", "test"), ("select", "test")]
    if splits.calibrate is not splits.val:
        pairs += [("train", "calibrate"), ("select", "calibrate"), ("calibrate", "test")]
    shared = {f"{b} in {a}": shared_images(parts[a], parts[b]) for a, b in pairs}
    return {"roles": described, "shared": shared}


def overlap_sentences(written: dict[str, Any]) -> list[str]:
    """One sentence for each pair of roles that have images in common.

    >>> overlap_sentences({"roles": {"test": {"samples": 10}}, "shared": {"test in train": 2, "test in select": 0}})
    ['2 of the 10 test images are in the train role too, pixel for pixel']
    """
    told = []
    for pair, count in written["shared"].items():
        second, _, first = pair.partition(" in ")
        if count:
            size = written["roles"][second]["samples"]
            told.append(f"{count} of the {size:,} {second} images are in the {first} role too, pixel for pixel")
    return told
