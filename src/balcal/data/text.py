"""Text and tables in the form that images have, bytes (N, H, W, C): every task, figure and report works on them.

A text is its UTF-8 bytes, padded with zeros to a square of 12 x 12. A column of a table is scaled to 0 to 255 by its
range in the training part.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, Parts

SIDE = 12
"""a text has at most so many bytes, squared"""


def as_bytes(texts: Sequence[str]) -> Tensor:
    """Texts as bytes (N, 12, 12, 1).

    >>> as_texts(as_bytes(["naïve", ""]))
    ['naïve', '']
    """
    rows = np.zeros((len(texts), SIDE * SIDE), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        content = text.encode()
        if len(content) > len(row) or b"\0" in content:
            raise BalcalError(
                f"a text may have {len(row)} bytes, none of them 0, and this one has {len(content)}: cut it"
            )
        row[: len(content)] = np.frombuffer(content, np.uint8)
    return torch.from_numpy(rows.reshape(-1, SIDE, SIDE, 1))


def as_texts(images: Tensor) -> list[str]:
    """The texts of bytes, in any shape (N, ...)."""
    rows = images.detach().cpu().round().to(torch.uint8).flatten(1).numpy()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def clinc(folder: Path) -> Parts:
    """CLINC150: its training and validation requests together, and its test requests."""
    found, intents = _requests(folder), intents_of(folder)
    number = {intent: k for k, intent in enumerate(intents)}
    train, test = (
        ImageSet(as_bytes([text for text, _ in rows]), torch.tensor([number[intent] for _, intent in rows]))
        for rows in ([*found["train"], *found["val"]], found["test"])
    )
    return train, test


def clinc_out_of_scope(folder: Path) -> Parts:
    """The requests that belong to none of the intents: none to train on, 1,000 to test."""
    texts = [text for text, _ in _requests(folder)["oos_test"]]
    nothing = ImageSet(as_bytes([]), torch.zeros(0, dtype=torch.long))
    return nothing, ImageSet(as_bytes(texts), torch.zeros(len(texts), dtype=torch.long))


def intents_of(folder: Path) -> list[str]:
    """The names of the classes, sorted."""
    return sorted({intent for _, intent in _requests(folder)["train"]})


@cache
def _requests(folder: Path) -> dict[str, Any]:
    with gzip.open(folder / "data_full.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


@cache
def breast_cancer() -> Parts:
    """scikit-learn's 569 tumours with 30 measurements each; every third is in the test part."""
    from sklearn.datasets import load_breast_cancer

    table, labels = load_breast_cancer(return_X_y=True)
    test = np.arange(len(table)) % 3 == 2
    low, high = table[~test].min(0), table[~test].max(0)
    scaled = ((table - low) / (high - low) * 255).round().clip(0, 255).astype(np.uint8)
    rows = torch.from_numpy(np.pad(scaled, ((0, 0), (0, 6))).reshape(-1, 6, 6, 1))
    target = torch.from_numpy(labels.astype(np.int64))
    kept = torch.from_numpy(test)
    return ImageSet(rows[~kept], target[~kept]), ImageSet(rows[kept], target[kept])
