"""Who may use which images for what. Roles are named, hashed and written down; the test role only judges."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from balcal.core import BalcalError
from balcal.data.images import ImageSet, Splits

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
    content = hashlib.sha256(str(tuple(part.images.shape)).encode())
    content.update(part.images.cpu().contiguous().numpy().tobytes())
    content.update(part.labels.cpu().long().contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def shared_images(first: ImageSet, second: ImageSet) -> int:
    """How many images of the second set are in the first, pixel for pixel, whatever their labels.

    >>> import torch
    >>> images = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    >>> shared_images(ImageSet(images[:3], torch.zeros(3)), ImageSet(images[2:], torch.zeros(2)))
    1
    """
    if first.images.shape[1:] != second.images.shape[1:]:
        return 0
    seen = {row.tobytes() for row in _rows(first)}
    return sum(row.tobytes() in seen for row in _rows(second))


def _rows(part: ImageSet) -> Any:
    return np.asarray(part.images.cpu().contiguous().numpy())


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
