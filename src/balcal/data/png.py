"""Whether a PNG file has all of its pixels: Pillow accepts one whose rows end early, and leaves the rest black."""

from __future__ import annotations

import struct
import zlib

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
