"""Decode image files to bytes. Also a program, so that several processes can decode without loading torch.

What cannot be read correctly is refused. Pillow alone would clip 16-bit grey to white, round floats to 0 and 1, leave
missing rows of a PNG black, wait for a named pipe, and start Ghostscript for a PostScript file of any name.
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

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
"""what a file may be, whatever its name; no others are tried"""
BYTES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
"""Pillow's names for pixels of at most eight bits a channel"""
BITS, PHOTOMETRIC, SAMPLES = 258, 262, 339
"""tags of TIFF: bits of each sample, whether 0 is black, and whether samples are unsigned"""
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""of PNG, by colour type: grey, colours, palette, grey and alpha, colours and alpha"""
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""of an interlaced PNG: first column, first row, and the steps to the next ones"""
BYTES_AT_ONCE = 1 << 20
"""bytes of pixels to decompress at once"""


@contextmanager
def open_image(path: Path | str) -> Iterator[Image.Image]:
    """The image in a file, its pixels not read yet. Whatever is wrong with it is a ValueError that names the file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is no regular file")
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except UnidentifiedImageError:
        raise ValueError(f"the image {path} cannot be read: it is no whole {', '.join(FORMATS)} file") from None
    except Exception as error:  # damaged files fail in many ways
        raise ValueError(f"the image {path} cannot be read: {str(error) or type(error).__name__}") from None


def decode_image(path: Path | str, side: int) -> NDArray[np.uint8]:
    """The largest centred square of an image file, resized to (side, side, 3)."""
    with open_image(path) as found:
        _check(found, path)
        image = _to_rgb(found)
        if image.size != (side, side):
            image = ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)
        return np.asarray(image)


def read_mosaic(path: Path, side: int, mode: str = "L") -> NDArray[np.uint8]:
    """The tiles of one picture in row-major order: (N, side, side), with a fourth axis for colours."""
    with open_image(path) as mosaic:
        pixels = np.asarray(mosaic.convert(mode))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    if (rows * side, columns * side) != pixels.shape[:2]:
        raise ValueError(f"{path} of {pixels.shape[1]} x {pixels.shape[0]} pixels is not made of tiles of {side}")
    tiles = pixels.reshape(rows, side, columns, side, *pixels.shape[2:]).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(rows * columns, side, side, *pixels.shape[2:]))


def _check(image: Image.Image, path: Path | str) -> None:
    """Refuse what Pillow accepts: missing pixels, and signed ones."""
    if image.format == "PNG":
        check_png(Path(path).read_bytes())
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        if set(tags.get(SAMPLES, (1,))) != {1}:
            raise ValueError("its pixels are signed or floating-point numbers: save it with 8 or 16 bits, unsigned")
        boxes = [tile[1] for tile in image.tile]  # type: ignore[attr-defined]
        if sum((right - left) * (low - top) for left, top, right, low in boxes) < image.width * image.height:
            raise ValueError("it is cut off: some of its rows are missing")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Red, green and blue of eight bits each, on white where the image is transparent."""
    transparent = image.has_transparency_data
    if image.mode in BYTES:
        if not transparent:
            return image.convert("RGB")
        front = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", front.size, "white"), front).convert("RGB")
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        sixteen = sixteen and tags.get(BITS) == (16,) and tags.get(PHOTOMETRIC) == 1
    if not sixteen or transparent:
        raise ValueError(f"pixels of its kind ({image.mode}) have no agreed range: save it with 8 bits a channel")
    upper = np.asarray(image).astype(np.int64) >> 8  # the upper byte, as of 16-bit colours
    return Image.fromarray(upper.astype(np.uint8)).convert("RGB")


def check_png(content: bytes) -> None:
    """Refuse a PNG file with a damaged chunk, or with fewer bytes of pixels than it announces.

    Pillow accepts a file whose rows end early, and leaves the rest black.
    """
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
    """The number of bytes that the next part of a stream decompresses to, without holding them all."""
    found = 0
    while found <= most:
        found += (fresh := len(stream.decompress(body, BYTES_AT_ONCE)))
        body = stream.unconsumed_tail
        if not fresh and not body:
            break
    return found


def _bytes_of_pixels(header: bytes) -> int:
    """The size of decompressed pixels. Each row begins with a byte that says how it is filtered.

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


def decode_into(array: NDArray[np.uint8], first: int, files: Sequence[Path | str]) -> None:
    """Write the images of the files to the rows of the array, from `first` on."""
    for row, path in enumerate(files, first):
        array[row] = decode_image(path, array.shape[1])


def main() -> None:
    """Do the job on stdin: decode these files into those rows of an array file."""
    job = json.load(sys.stdin)
    array = np.load(job["array"], mmap_mode="r+", allow_pickle=False)
    try:
        decode_into(array, job["first"], job["files"])
    except ValueError as error:
        sys.exit(str(error))
    array.flush()


if __name__ == "__main__":
    main()
