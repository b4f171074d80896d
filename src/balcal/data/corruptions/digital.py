"""Contrast, elastic transform, pixelation, JPEG, saturation; and rotation, the paper's shift of SVHN."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from balcal.data.corruptions.blur import smooth
from balcal.data.corruptions.noise import Bytes, Draws, Floats, colour

Points = NDArray[np.float64]


def contrast(images: Bytes, keep: float, draws: Draws) -> Floats:
    """Distances to the mean colour of the image shrink. Sums of bytes are exact in any order."""
    pixels = images.shape[1] * images.shape[2]
    mean = (images.sum((1, 2), keepdims=True, dtype=np.int64) / pixels).astype(np.float32)
    return np.asarray(np.float32(keep) * images + np.float32(1 - keep) * mean, np.float32)


def saturate(images: Bytes, c: tuple[float, float], draws: Draws) -> Floats:
    """S of HSV times a factor and some more, at the same hue and value.

    A channel's distance to the largest one grows as S does. Pixels without a hue count as red, as is usual in HSV. An
    image of one channel has no colours to saturate and stays what it is.
    """
    if images.shape[-1] == 1:
        return images.astype(np.float32)
    factor, more = c
    value = images.max(-1, keepdims=True).astype(np.float32)
    gap = value - images
    spread = gap.max(-1, keepdims=True)
    saturation = spread / np.maximum(value, 1)
    wanted = np.clip(saturation * np.float32(factor) + np.float32(more), 0, 1) * value
    share = np.where(spread > 0, gap / np.maximum(spread, 1), np.array([0, 1, 1], np.float32))
    return np.asarray(value - share * wanted, np.float32)


def elastic_transform(images: Bytes, c: tuple[float, float, float], draws: Draws) -> Floats:
    """A random affine map of the whole image, then a smooth random displacement of every pixel.

    Constants: strength and smoothing of the displacement; how far the three points that fix the affine map may move.
    """
    strength, sigma, shift = c
    n, height, width, _ = images.shape
    y, x = np.mgrid[:height, :width].astype(np.float64)
    middle, arm = np.array([height, width]) // 2, min(height, width) // 3
    corners = middle + arm * np.array([[1, 1], [1, -1], [-1, -1]])
    there = corners + draws.between(-shift, shift, 3, 2).astype(np.float64)
    back = np.linalg.solve(np.concatenate([there, np.ones((n, 3, 1))], 2), np.broadcast_to(corners, (n, 3, 2)))
    rows, columns = (
        back[:, 0, k, None, None] * y + back[:, 1, k, None, None] * x + back[:, 2, k, None, None] for k in (0, 1)
    )
    out = sampled(images.astype(np.float32), rows, columns, "mirror")
    if strength:
        down, right = (
            strength * smooth(draws.between(-1, 1, height, width), sigma, "reflect", truncate=3) for _ in range(2)
        )
        out = sampled(out, y + down, x + right, "reflect")
    return out


def sampled(images: Floats, rows: Points, columns: Points, edge: str) -> Floats:
    """Linear interpolation of (n, H, W, C) at (n, H, W) positions.

    Beyond the edge: `mirror` is abc|ba.., `reflect` abc|cba.., as scipy names them.
    """
    n, height, width, channels = images.shape
    pixels = images.reshape(-1, channels)
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None]
    y = [_folded(top.astype(np.intp) + k, height, edge) * width for k in (0, 1)]
    x = [_folded(left.astype(np.intp) + k, width, edge) for k in (0, 1)]
    y = [line + (np.arange(n) * (height * width))[:, None, None] for line in y]
    above = pixels[y[0] + x[0]] * (1 - right) + pixels[y[0] + x[1]] * right
    below = pixels[y[1] + x[0]] * (1 - right) + pixels[y[1] + x[1]] * right
    return np.asarray(above * (1 - down) + below * down, np.float32)


def _folded(indices: NDArray[np.intp], size: int, edge: str) -> NDArray[np.intp]:
    """Indices beyond the edge, reflected back inside.

    >>> _folded(np.arange(-2, 5), 3, "mirror"), _folded(np.arange(-2, 5), 3, "reflect")
    (array([2, 1, 0, 1, 2, 1, 0]), array([1, 0, 0, 1, 2, 2, 1]))
    """
    last = 2 * (size - 1) if edge == "mirror" else 2 * size - 1
    period = last if edge == "mirror" else last + 1
    indices = indices % period
    return np.minimum(indices, last - indices)


def pixelate(images: Bytes, share: float, draws: Draws) -> Bytes:
    """Shrink and enlarge, by Pillow's box filter."""
    height, width = images.shape[1:3]
    planes = images.transpose(0, 3, 1, 2)
    for rows, columns in ((int(height * share), int(width * share)), (height, width)):
        planes = _boxed(_boxed(planes, columns).swapaxes(2, 3), rows).swapaxes(2, 3)
    return planes.transpose(0, 2, 3, 1)


def _boxed(lines: Bytes, length: int) -> Bytes:
    """Resize lines (..., L). Pillow works line by line, so the lines of all images go as one picture."""
    picture = Image.fromarray(np.ascontiguousarray(lines).reshape(-1, lines.shape[-1]))
    resized = np.asarray(picture.resize((length, picture.height), Image.Resampling.BOX))
    return resized.reshape(*lines.shape[:-1], length)


def jpeg_compression(images: Bytes, quality: int, draws: Draws) -> Bytes:
    """By Pillow. Its decoder is called directly, because recognising the file takes longer than decoding it."""
    out = np.empty_like(images)
    mode = "L" if images.shape[-1] == 1 else "RGB"
    for i, image in enumerate(images):
        file, picture = BytesIO(), Image.fromarray(image[..., 0] if mode == "L" else image)
        picture.save(file, "JPEG", quality=quality)
        again = Image.frombytes(mode, picture.size, file.getvalue(), "jpeg", mode, "")
        out[i] = np.asarray(again).reshape(image.shape)
    return out


@lru_cache(maxsize=16)
def _turned(height: int, width: int, degrees: float) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The source of each pixel of the rotated image, (H * W,), and whether that lies outside."""
    y, x = np.mgrid[:height, :width].reshape(2, -1) - (np.array([[height], [width]]) - 1) / 2
    turn = np.deg2rad(degrees)
    rows = np.rint(np.cos(turn) * y + np.sin(turn) * x + (height - 1) / 2).astype(np.intp)
    columns = np.rint(np.cos(turn) * x - np.sin(turn) * y + (width - 1) / 2).astype(np.intp)
    outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
    return np.where(outside, 0, rows * width + columns), outside


def rotation(images: Bytes, degrees: float, draws: Draws) -> Bytes:
    """Counter-clockwise about the centre, nearest pixel.

    Corners get the mean colour: the paper's code turns normalised images and fills with zero.
    """
    n, height, width, channels = images.shape
    source, outside = _turned(height, width, degrees)
    out = images.reshape(n, -1, channels)[:, source]
    out[:, outside] = np.rint(colour(125, 123, 114, channels)).astype(np.uint8)
    return out.reshape(images.shape)


DIGITAL = {f.__name__: f for f in (contrast, elastic_transform, pixelate, jpeg_compression, saturate, rotation)}
