"""Whether a PNG file has all of its pixels: Pillow accepts one whose rows end early, and leaves the rest black.

Image files to bytes. Also a program, so that several processes can decode without any of them loading torch.

What cannot be read rightly is refused: Pillow alone would clip 16-bit grey to white, round floats to 0 and 1, leave
missing rows black, wait for a named pipe, and start Ghostscript for a PostScript file of any name.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""by colour type: grey, colours, palette, grey and alpha, colours and alpha"""
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""of an interlaced image: first column, first row, and the steps to the next ones"""
AT_ONCE = 1 << 20


def check_png(content: bytes) -> None:
    """Raise a ValueError if a chunk that matters is damaged, or if there are fewer bytes of pixels than announced."""
    at, wanted, found = 8, -1, 0
    stream = zlib.decompressobj()
    try:
        while at < len(content) and found != wanted:
            size, kind = struct.unpack_from(">I4s", content, at)
            body = content[at + 8 : at + 8 + size]
            if kind in (b"IHDR", b"PLTE", b"IDAT"):
                (crc,) = struct.unpack_from(">I", content, at + 8 + size)
                if zlib.crc32(body, zlib.crc32(kind)) != crc:
                    raise ValueError("it is damaged: a checksum in it does not fit")
            if kind == b"IHDR":
                wanted = _bytes_of_pixels(body)
            if kind == b"IDAT":
                found = min(wanted, found + _inflated(stream, body, wanted - found))
            at += 12 + size
    except (struct.error, zlib.error, KeyError):
        raise ValueError("it is cut off or damaged") from None
    if found < wanted:
        raise ValueError(f"it is cut off: {wanted - found:,} of {wanted:,} bytes of its pixels are missing")


def _inflated(stream: zlib._Decompress, body: bytes, most: int) -> int:
    """How many bytes the next part of a stream becomes, never holding more than a few of them."""
    found = 0
    while found <= most:
        found += (fresh := len(stream.decompress(body, AT_ONCE)))
        body = stream.unconsumed_tail
        if not fresh and not body:
            break
    return found


def _bytes_of_pixels(header: bytes) -> int:
    """Each row begins with a byte that says how it is filtered.

    >>> _bytes_of_pixels(struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0))
    20
    """
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    bits = depth * CHANNELS[colour]
    total = 0
    for left, top, right, down in PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // right), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
"""what a file may be, whatever it is called; no others are tried"""
BYTES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
"""Pillow's names for pixels of at most eight bits a channel"""
BITS, PHOTOMETRIC, SAMPLES = 258, 262, 339
"""tags of TIFF: bits of each sample, whether 0 is black, and whether samples are unsigned"""


@contextmanager
def opened(path: Path | str) -> Iterator[Image.Image]:
    """The image in a file, its pixels not read yet; whatever is wrong with it is a ValueError that names the file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is no regular file")
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except UnidentifiedImageError:
        raise ValueError(f"the image {path} cannot be read: it is no whole {', '.join(FORMATS)} file") from None
    except Exception as error:  # damaged files fail in many ways
        raise ValueError(f"the image {path} cannot be read: {str(error) or type(error).__name__}") from None


def picture(path: Path | str, side: int) -> NDArray[np.uint8]:
    """(side, side, 3): the largest centred square, resized if it is not of that size already."""
    with opened(path) as found:
        _check(found, path)
        image = _in_colour(found)
        if image.size != (side, side):
            image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
        return np.asarray(image)


def _check(image: Image.Image, path: Path | str) -> None:
    """What Pillow lets pass: pixels that are not in the file, and signed ones."""
    if image.format == "PNG":
        check_png(Path(path).read_bytes())
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        if set(tags.get(SAMPLES, (1,))) != {1}:
            raise ValueError("its pixels are signed or floating-point numbers: save it with 8 or 16 bits, unsigned")
        boxes = [tile[1] for tile in image.tile]  # type: ignore[attr-defined]
        if sum((right - left) * (low - top) for left, top, right, low in boxes) < image.width * image.height:
            raise ValueError("it is cut off: some of its rows are missing")


def _in_colour(image: Image.Image) -> Image.Image:
    """Red, green and blue of eight bits each; what is transparent is put on white."""
    see_through = image.has_transparency_data
    if image.mode in BYTES:
        if not see_through:
            return image.convert("RGB")
        front = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", front.size, "white"), front).convert("RGB")
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        sixteen = sixteen and tags.get(BITS) == (16,) and tags.get(PHOTOMETRIC) == 1
    if not sixteen or see_through:
        raise ValueError(f"pixels of its kind ({image.mode}) have no agreed range: save it with 8 bits a channel")
    upper = np.asarray(image).astype(np.int64) >> 8  # the upper byte, as of 16-bit colours
    return Image.fromarray(upper.astype(np.uint8)).convert("RGB")


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
