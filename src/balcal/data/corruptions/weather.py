"""Snow, frost, fog, brightness and spatter.

Frost needs plates of ice. The published photographs have no licence to ship them, so five plates are made here, with
the photographs' mean and deviation of each channel and about their correlation of near pixels. As there, two of the
five are the same.

Spatter is drops of water, whose rims shine, or mud.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray
from scipy import fft, ndimage

from balcal.data.corruptions.blur import apply_matrix, motion_blurred, smooth, zoom_matrix
from balcal.data.corruptions.noise import Bytes, Draws, Floats, colour, grey
from balcal.runtime.randomness import stream

Colour = tuple[int, int, int]
PLATE_SIZE = (400, 600)
DIRECTIONS = 9
"""of ice needles"""
WHITE = ((201, 205, 214), (21, 22, 23), 0.55)
TINTS: tuple[tuple[Colour, Colour, float], ...] = (
    ((78, 149, 166), (27, 16, 15), 0.70),
    WHITE,
    WHITE,
    ((138, 153, 166), (29, 29, 30), 0.45),
    ((112, 123, 135), (44, 43, 42), 0.55),
)
"""of plates: mean and deviation of red, green and blue; share of clouds, the rest is crystals"""
FARTHEST = 20
"""distances from the rim of a drop count up to here"""


def snow(images: Bytes, c: tuple[float, ...], draws: Draws) -> Floats:
    """Flakes are the peaks of enlarged noise, blurred along a line. They are added twice, the second time turned by 180
    degrees.

    Constants: mean and deviation of the noise, its enlargement, the threshold, radius and sigma of the motion, share of
    the image that keeps its colours (the rest turns towards white).
    """
    mean, deviation, zoom, threshold, radius, sigma, keep = c
    height, width = images.shape[1:3]
    layer = mean + deviation * draws.normal(height, width, 1)
    if zoom != 1:
        layer = apply_matrix(zoom_matrix(height, width, (zoom,)), layer)
    layer = np.where(layer < threshold, 0, np.clip(layer, 0, 1) * 255).astype(np.uint8)
    flakes = motion_blurred(layer, radius, sigma, draws.between(-135, -45))
    plain = images.astype(np.float32)
    out: Floats = keep * plain + (1 - keep) * np.maximum(plain, grey(plain) * 1.5 + 127.5)
    out += flakes
    out += flakes[:, ::-1, ::-1]
    return out


def fog(images: Bytes, c: tuple[float, float], draws: Draws) -> Floats:
    """The image plus clouds, scaled so that nothing is brighter than before. Constants: thickness, decay of detail."""
    thick, decay = c
    height, width = images.shape[1:3]
    clouds = plasma(1 << (max(height, width) - 1).bit_length(), decay, draws)[:, :height, :width, None]
    brightest = images.max((1, 2, 3), keepdims=True).astype(np.float32)
    clouds = images + np.float32(255 * thick) * clouds
    return np.asarray(clouds * (brightest / np.maximum(brightest + 255 * thick, 1)), np.float32)


def plasma(side: int, decay: float, draws: Draws) -> Floats:
    """Clouds by the diamond-square algorithm, (n, side, side) from 0 to 1, that wrap around. `side` is a power of two.

    A new point is the mean of its four neighbours plus noise, which shrinks with the square of `decay` from one step to
    the next finer one (the published code multiplies its amplitude by itself).
    """
    noise = draws.between(-1, 1, side, side)
    clouds = np.zeros((draws.count, side, side), np.float32)
    step, amplitude = side, 100.0
    while step >= 2:
        half = step // 2
        corners = clouds[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        squares = (slice(None), slice(half, None, step), slice(half, None, step))
        clouds[squares] = (pairs + np.roll(pairs, -1, 2)) / 4 + amplitude**2 * noise[squares]
        middles = clouds[squares]
        for axis, points in ((1, (slice(None), slice(0, None, step), slice(half, None, step))),
                             (2, (slice(None), slice(half, None, step), slice(0, None, step)))):  # fmt: skip
            around = middles + np.roll(middles, 1, axis) + corners + np.roll(corners, -1, 3 - axis)
            clouds[points] = around / 4 + amplitude**2 * noise[points]
        step, amplitude = half, amplitude / decay
    clouds -= clouds.min((1, 2), keepdims=True)
    clouds /= clouds.max((1, 2), keepdims=True)
    return clouds


def brightness(images: Bytes, more: float, draws: Draws) -> Floats:
    """More of V in HSV, at the same hue and saturation: all channels grow by one factor, and black becomes grey."""
    value = images.max(-1, keepdims=True).astype(np.float32)
    brighter = np.minimum(value + np.float32(255 * more), 255)
    return np.asarray(np.where(value > 0, images * (brighter / np.maximum(value, 1)), brighter), np.float32)


def frost(images: Bytes, c: tuple[float, float, float], draws: Draws) -> Floats:
    """The image plus a random crop of a plate of ice. Constants: both weights, and the scale of the plate."""
    weight, ice, scale = c
    plate = plates(scale)
    height, width, channels = images.shape[1:]
    which = draws.below(len(plate))
    corner = draws.uniform(2) * np.array(plate.shape[1:3], np.float32)
    rows, columns = (
        (corner[:, axis, None].astype(np.intp) + np.arange(side)) % plate.shape[axis + 1]
        for axis, side in enumerate((height, width))
    )
    cut = plate[which[:, None, None], rows[:, :, None], columns[:, None, :]]
    cut = cut if channels == 3 else grey(cut)
    cut *= ice
    cut += np.float32(weight) * images
    return cut


@lru_cache(maxsize=3)
def plates(scale: float) -> Floats:
    """Five plates of ice (5, H, W, 3) that wrap around. Smaller ones are sampled, as published, not averaged."""
    made = {tint: _sampled(_plate(*tint), scale) for tint in TINTS}
    return np.stack([made[tint] for tint in TINTS])


def _sampled(plate: Floats, scale: float) -> Floats:
    if scale == 1:
        return plate
    rows, columns = ((np.arange(round(side * scale)) + 0.5) / scale - 0.5 for side in PLATE_SIZE)
    at = np.meshgrid(rows, columns, indexing="ij")
    channels = [ndimage.map_coordinates(plate[..., k], at, order=1, mode="grid-wrap") for k in range(3)]
    return np.stack(channels, -1).astype(np.float32)


@lru_cache(maxsize=len(TINTS))
def _plate(mean: Colour, deviation: Colour, cloudy: float) -> Floats:
    rng = Generator(Philox(key=stream("frost", *mean)))
    y, x = _frequencies()
    falling = np.asarray(np.maximum(np.hypot(y, x), 1 / min(PLATE_SIZE)) ** -1.5, np.float32)
    ice = cloudy**0.5 * _normed(_field(rng, falling)) + (1 - cloudy) ** 0.5 * _normed(_crystals(rng))
    ice = _normed(np.clip(_normed(ice), -2.5, 3))
    return np.asarray(np.clip(np.array(mean) + ice[..., None] * np.array(deviation), 0, 255), np.float32)


def _crystals(rng: Generator) -> Floats:
    """Needles in patches. Those of a patch have one direction, and bright edges separate the patches."""
    y, x = _frequencies()
    patches = np.stack([_field(rng, _bell(y * 9, x * 9)) for _ in range(DIRECTIONS)])
    order = np.partition(patches, -2, 0)
    which, edge = patches.argmax(0), np.exp(-(order[-1] - order[-2]) / (0.06 * patches.std()))
    needles = np.zeros(PLATE_SIZE, np.float32)
    for k in range(DIRECTIONS):
        angle = np.pi * (k + rng.uniform(-0.3, 0.3)) / DIRECTIONS
        along, across = y * np.sin(angle) + x * np.cos(angle), y * np.cos(angle) - x * np.sin(angle)
        needles += np.where(which == k, _normed(_field(rng, _bell(along * 14, across * 0.9))), 0)
    return np.asarray(np.maximum(needles, -1) + 0.8 * edge, np.float32)


def _frequencies() -> tuple[Floats, Floats]:
    """Cycles a pixel, down (H, 1) and to the right (1, W / 2 + 1)."""
    down, right = fft.fftfreq(PLATE_SIZE[0])[:, None], fft.rfftfreq(PLATE_SIZE[1])[None, :]
    return down.astype(np.float32), right.astype(np.float32)


def _bell(y: Floats, x: Floats) -> Floats:
    """The frequency response of a Gaussian blur of width 1; scaled frequencies give other widths."""
    return np.asarray(np.exp(-2 * np.pi**2 * (y**2 + x**2)), np.float32)


def _field(rng: Generator, strength: Floats) -> Floats:
    """Random waves with this strength of each frequency."""
    waves = rng.standard_normal((2, *strength.shape), dtype=np.float32)
    out: Floats = fft.irfft2((waves[0] + 1j * waves[1]) * strength, s=PLATE_SIZE)
    return out


def _normed(field: Floats) -> Floats:
    return np.asarray((field - field.mean()) / field.std(), np.float32)


def spatter(images: Bytes, c: tuple[float, ...], draws: Draws) -> Floats:
    """Liquid is where smoothed noise is high.

    Constants: mean and deviation of the noise, its smoothing, the threshold; the strength of water, or the smoothing of
    mud; 0 for water, 1 for mud.
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
    """To the nearest rim of the same image: other images are too far away, and so is the plane of rims in front."""
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


WEATHER = {f.__name__: f for f in (snow, frost, fog, brightness, spatter)}
