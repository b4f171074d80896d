"""Image files to bytes. Also a program, so that several processes can decode without any of them loading torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff")


def picture(path: Path | str, side: int) -> NDArray[np.uint8]:
    """(side, side, 3): the largest centred square, resized if it is not of that size already."""
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the image {path} cannot be read: {error}") from None
    if image.size != (side, side):
        image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
    return np.asarray(image)


def fill(array: NDArray[np.uint8], first: int, files: Sequence[Path | str]) -> None:
    """Rows of the array, from `first` on, become the files' images."""
    for row, path in enumerate(files, first):
        array[row] = picture(path, array.shape[1])


def main() -> None:
    """A job on stdin: fill these rows of that array file with these images."""
    job = json.load(sys.stdin)
    array = np.load(job["array"], mmap_mode="r+", allow_pickle=False)
    try:
        fill(array, job["first"], job["files"])
    except ValueError as error:
        sys.exit(str(error))
    array.flush()


if __name__ == "__main__":
    main()
