"""Blur: Gaussian, defocus, glass (local shuffling), motion, zoom."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse

from balcal.data.corruptions.noise import Bytes, Draws, Floats


def smooth(fields: NDArray[Any], sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Floats:
    """Gaussian blur of (n, H, W, ...) along H and W."""
    fields = fields.astype(np.float32, copy=False)
    if sigma < 1e-9:
        return fields
    rows = ndimage.gaussian_filter1d(fields, sigma, axis=1, mode=mode, truncate=truncate)
    out: Floats = ndimage.gaussian_filter1d(rows, sigma, axis=2, mode=mode, truncate=truncate)
    return out


def gaussian_blur(images: Bytes, sigma: float, draws: Draws) -> Floats:
    return smooth(images, sigma)


def disk(radius: float, alias_blur: float) -> NDArray[np.float64]:
    """A disk of pixels, its rim softened by a small Gaussian; without the zeros around it.

    >>> disk(1, 0.1).round(2).tolist()
    [[0.0, 0.2, 0.0], [0.2, 0.2, 0.2], [0.0, 0.2, 0.0]]
    """
    reach = max(8, math.ceil(radius))
    axis = np.arange(-reach, reach + 1)
    flat = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(float)
    taps = 1 if radius <= 8 else 2
    bell = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * alias_blur**2))
    for side in (0, 1):
        flat = ndimage.correlate1d(flat, bell / bell.sum(), axis=side, mode="mirror")
    rim = 0
    while flat[rim].max() < 1e-9 * flat.max():
        rim += 1
    flat = flat[rim : len(flat) - rim, rim : len(flat) - rim]
    return np.asarray(flat / flat.sum())


def defocus_blur(images: Bytes, c: tuple[float, float], draws: Draws) -> Floats:
    kernel = disk(*c)
    reach, (height, width) = len(kernel) // 2, images.shape[1:3]
    margin = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    padded = np.pad(images, margin, mode="reflect").astype(np.float32)
    out, part = np.zeros(images.shape, np.float32), np.empty(images.shape, np.float32)
    for y, x in zip(*np.nonzero(kernel > 1e-9), strict=True):
        out += np.multiply(padded[:, y : y + height, x : x + width], np.float32(kernel[y, x]), out=part)
    return out


def sources(height: int, width: int, reach: int, draws: Draws) -> NDArray[np.intp]:
    """For each pixel (n, H * W), the pixel whose value it has after one round of local shuffling.

    From the last pixel to the first, all but a margin take the present value of a random near pixel. (The published
    code means to swap the two, but assigns views of one array, so the near pixel keeps its value. The data sets were
    made so.) Pointers avoid the loop over pixels. A pixel whose source was written before it points there, any other
    pixel ends its chain, and doubling follows all chains at once.
    """
    step = draws.below(2 * reach, 2, height, width) - reach
    step[:, 0] *= width
    here = np.arange(height * width)
    area = np.zeros((height, width), bool)
    area[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    inside = area.ravel()
    source = here + np.where(inside, step.sum(1).reshape(draws.count, -1), 0)
    chained = inside & (source > here) & inside[source]
    link = np.where(chained, source, here)
    while True:
        further = np.take_along_axis(link, link, 1)
        if np.array_equal(further, link):
            return np.take_along_axis(source, link, 1)
        link = further


def glass_blur(images: Bytes, c: tuple[float, int, int], draws: Draws) -> Floats:
    sigma, reach, rounds = c
    n, height, width, channels = images.shape
    pixels = (smooth(images, sigma) + np.float32(1e-3)).astype(np.uint8).reshape(n, -1, channels)
    for _ in range(rounds):
        pixels = pixels[np.arange(n)[:, None], sources(height, width, reach, draws)]
    return smooth(pixels.reshape(images.shape), sigma)


def motion_path(angles: Floats, radius: float, sigma: float) -> tuple[NDArray[np.intp], Floats]:
    """The path of a motion blur as in ImageMagick: half a Gaussian that begins at the pixel, in whole pixels.

    Returns (n, taps, 2) steps down and to the right, and the weight (taps,) of each.
    """
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    keep = weights > 1e-6  # the rest together does not move a grey level by a thousandth
    turn = np.deg2rad(angles.astype(np.float64))[:, None, None]
    way = taps[keep][None, :, None] * np.concatenate([np.sin(turn), np.cos(turn)], 2)
    return np.ceil(way - 0.5).astype(np.intp), weights[keep].astype(np.float32)


def motion_blurred(images: NDArray[Any], radius: float, sigma: float, angles: Floats) -> Floats:
    """Motion blur of (n, H, W, C), rounded to whole grey levels. Images with the same path are blurred together."""
    way, weights = motion_path(angles, radius, sigma)
    ways, which = np.unique(way.reshape(len(images), -1), axis=0, return_inverse=True)
    height, width = images.shape[1:3]
    reach = int(np.abs(ways).max())
    padded = np.pad(images, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge").astype(np.float32)
    out = np.empty(images.shape, np.float32)
    order = np.argsort(which.ravel(), kind="stable")
    for members, one in zip(np.split(order, np.bincount(which.ravel()).cumsum()[:-1]), ways, strict=True):
        group = padded[members]
        total = np.zeros((len(members), *images.shape[1:]), np.float32)
        for (down, right), weight in zip(one.reshape(-1, 2), weights, strict=True):
            y, x = reach + down, reach + right
            total += weight * group[:, y : y + height, x : x + width]
        out[members] = total
    return np.rint(out, out=out)


def motion_blur(images: Bytes, c: tuple[float, float], draws: Draws) -> Floats:
    return motion_blurred(images, *c, draws.between(-45, 45))


def _zoomed(side: int, factor: float) -> Any:
    """Stretching the middle of a line to the whole line, as a matrix: scipy's zoom of the unit vectors."""
    kept = math.ceil(side / factor)
    top = (side - kept) // 2
    lines = ndimage.zoom(np.eye(side)[top : top + kept], (factor, 1), order=1)
    trim = (len(lines) - side) // 2
    return sparse.csr_matrix(np.where(lines > 1e-9, lines, 0)[trim : trim + side])


@lru_cache(maxsize=8)
def zoom_matrix(height: int, width: int, factors: tuple[float, ...]) -> Any:
    """The mean of an image enlarged by each factor, as one sparse matrix (H W, H W)."""
    total = sum(sparse.kron(_zoomed(height, f), _zoomed(width, f), format="csr") for f in factors)
    return (total / len(factors)).astype(np.float32).tocsr()


def apply_matrix(matrix: Any, images: NDArray[Any]) -> Floats:
    """The matrix times every channel of every image (n, H, W, C)."""
    n, height, width, channels = images.shape
    columns = images.transpose(1, 2, 0, 3).reshape(height * width, n * channels).astype(np.float32)
    out: Floats = (matrix @ columns).reshape(height, width, n, channels).transpose(2, 0, 1, 3)
    return out


def zoom_blur(images: Bytes, factors: tuple[float, ...], draws: Draws) -> Floats:
    """The image itself counts once more beside its enlargements, one of which is by 1."""
    return apply_matrix(zoom_matrix(*images.shape[1:3], (1.0, *factors)), images)


BLUR = {f.__name__: f for f in (defocus_blur, glass_blur, motion_blur, zoom_blur, gaussian_blur)}
