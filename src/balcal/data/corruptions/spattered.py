"""Spatter: drops of water that break the light at their rims, or mud."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from balcal.data.corruptions.blur import smooth
from balcal.data.corruptions.colours import colour
from balcal.data.corruptions.draws import Bytes, Draws, Floats

FARTHEST = 20
"""distances from a rim count up to here"""


def spatter(images: Bytes, c: tuple[float, ...], draws: Draws) -> Floats:
    """Liquid is where smoothed noise is high.

    Mean and deviation of the noise, its smoothing, the threshold; then strength of water, or smoothing of mud; which.
    """
    mean, deviation, sigma, threshold, strength, mud = c
    height, width, channels = images.shape[1:]
    liquid = smooth(mean + deviation * draws.normal(height, width), sigma)
    if mud:
        cover = smooth((liquid > threshold).astype(np.float32), strength)[..., None]
        cover[cover < 0.8] = 0
        return images * (1 - cover) + cover * colour(63, 42, 20, channels)
    depth = np.where(liquid < threshold, 0, np.clip(liquid, 0, 1) * 255).astype(np.uint8)
    shine = depth * _relief(depth)
    shine /= np.maximum(shine.max((1, 2), keepdims=True), 1)
    return images + np.float32(strength) * shine[..., None] * colour(175, 238, 238, channels)


def _relief(depth: Bytes) -> Floats:
    """Light from one corner on a surface that rises with the distance from the rims, (n, H, W)."""
    far = np.minimum(_distance(edges(depth, 50, 150)), FARTHEST)
    height = _equalised(_mean_of_nine(far).astype(np.uint8))
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)[None]
    lit = ndimage.correlate(height.astype(np.float32), slope, mode="mirror")
    return np.rint(_mean_of_nine(np.clip(lit, 0, 255)))


def _mean_of_nine(fields: NDArray[Any]) -> Floats:
    fields = fields.astype(np.float32)
    rows = ndimage.correlate1d(fields, [1, 1, 1], axis=1, mode="mirror")
    return np.asarray(ndimage.correlate1d(rows, [1, 1, 1], axis=2, mode="mirror") / np.float32(9), np.float32)


def edges(images: Bytes, low: float, high: float) -> NDArray[np.bool_]:
    """Canny's edges of (n, H, W): ridges of the gradient above `low` that touch one above `high`."""
    fields = images.astype(np.float32)
    down, right = (_slope(fields, axis) for axis in (1, 2))
    size = np.abs(down) + np.abs(right)
    around = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    height, width = size.shape[1:]

    def at(y: int, x: int) -> Floats:
        return around[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(right)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(right)
    rising = (down < 0) != (right < 0)
    ridge = np.where(
        flat,
        (size > at(0, -1)) & (size >= at(0, 1)),
        np.where(
            steep,
            (size > at(-1, 0)) & (size >= at(1, 0)),
            np.where(rising, (size > at(-1, 1)) & (size > at(1, -1)), (size > at(-1, -1)) & (size > at(1, 1))),
        ),
    )
    ridge &= size > low
    touching = np.zeros((3, 3, 3), bool)
    touching[1] = True  # pieces do not reach from one image into the next
    pieces, count = ndimage.label(ridge, touching)
    strong = np.zeros(count + 1, bool)
    strong[pieces[ridge & (size > high)]] = True
    strong[0] = False
    return np.asarray(strong[pieces])


def _slope(fields: Floats, axis: int) -> Floats:
    """Sobel's derivative."""
    out = ndimage.correlate1d(fields, [-1, 0, 1], axis=axis, mode="nearest")
    return np.asarray(ndimage.correlate1d(out, [1, 2, 1], axis=3 - axis, mode="nearest"), np.float32)


def _distance(rims: NDArray[np.bool_]) -> NDArray[np.float64]:
    """To the nearest rim of the same image: other images lie too far away, and so does the plane of rims in front."""
    with_rims = np.concatenate([np.ones_like(rims[:1]), rims])
    out: NDArray[np.float64] = ndimage.distance_transform_edt(~with_rims, sampling=(1000, 1, 1))[1:]
    return out


def _equalised(images: Bytes) -> Bytes:
    """Every image's grey levels spread so that all are used about as often."""
    n, pixels = len(images), images[0].size
    rows = np.arange(n)[:, None]
    counts = np.bincount((images.reshape(n, -1) + 256 * rows).ravel(), minlength=256 * n).reshape(n, 256)
    lowest = (counts > 0).argmax(1)[:, None]
    rest = pixels - counts[rows, lowest]
    levels = np.rint((counts.cumsum(1) - counts[rows, lowest]) * (255 / np.maximum(rest, 1)).astype(np.float32))
    levels = np.where(rest > 0, np.clip(levels, 0, 255), lowest)  # one level only: it stays
    return np.asarray(levels.astype(np.uint8)[rows[:, :, None], images])
