"""Snow, frost, fog, brightness and spatter."""

from __future__ import annotations

import numpy as np

from balcal.data.corruptions.blur import moved, through, zoom_matrix
from balcal.data.corruptions.colours import grey
from balcal.data.corruptions.draws import Bytes, Draws, Floats
from balcal.data.corruptions.frosted import plates
from balcal.data.corruptions.spattered import spatter


def snow(images: Bytes, c: tuple[float, ...], draws: Draws) -> Floats:
    """Flakes are the peaks of enlarged noise, blown along a line; they fall twice, then turned by 180 degrees.

    Mean and deviation of the noise, its enlargement, the threshold, radius and sigma of the motion, share of the image
    that keeps its colours (the rest turns towards white).
    """
    mean, deviation, zoom, threshold, radius, sigma, keep = c
    height, width = images.shape[1:3]
    layer = mean + deviation * draws.normal(height, width, 1)
    if zoom != 1:
        layer = through(zoom_matrix(height, width, (zoom,)), layer)
    layer = np.where(layer < threshold, 0, np.clip(layer, 0, 1) * 255).astype(np.uint8)
    flakes = moved(layer, radius, sigma, draws.between(-135, -45))
    plain = images.astype(np.float32)
    out: Floats = keep * plain + (1 - keep) * np.maximum(plain, grey(plain) * 1.5 + 127.5)
    out += flakes
    out += flakes[:, ::-1, ::-1]
    return out


def frost(images: Bytes, c: tuple[float, float, float], draws: Draws) -> Floats:
    """The image and a random cut of a plate of ice, each with its weight."""
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


def plasma(side: int, decay: float, draws: Draws) -> Floats:
    """Clouds by diamond and square, (n, side, side) from 0 to 1; `side` is a power of two, and clouds wrap around.

    A new point is the mean of its four neighbours and some chance, which shrinks with the square of `decay` from one
    step to the next finer one (the published code multiplies its amplitude by itself).
    """
    chance = draws.between(-1, 1, side, side)
    clouds = np.zeros((draws.count, side, side), np.float32)
    step, amplitude = side, 100.0
    while step >= 2:
        half = step // 2
        corners = clouds[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        squares = (slice(None), slice(half, None, step), slice(half, None, step))
        clouds[squares] = (pairs + np.roll(pairs, -1, 2)) / 4 + amplitude**2 * chance[squares]
        middles = clouds[squares]
        for axis, points in ((1, (slice(None), slice(0, None, step), slice(half, None, step))),
                             (2, (slice(None), slice(half, None, step), slice(0, None, step)))):  # fmt: skip
            around = middles + np.roll(middles, 1, axis) + corners + np.roll(corners, -1, 3 - axis)
            clouds[points] = around / 4 + amplitude**2 * chance[points]
        step, amplitude = half, amplitude / decay
    clouds -= clouds.min((1, 2), keepdims=True)
    clouds /= clouds.max((1, 2), keepdims=True)
    return clouds


def fog(images: Bytes, c: tuple[float, float], draws: Draws) -> Floats:
    """Thickness, and how fast the clouds' detail fades; the brightest value of an image stays what it was."""
    thick, decay = c
    height, width = images.shape[1:3]
    clouds = plasma(1 << (max(height, width) - 1).bit_length(), decay, draws)[:, :height, :width, None]
    brightest = images.max((1, 2, 3), keepdims=True).astype(np.float32)
    clouds = images + np.float32(255 * thick) * clouds
    return np.asarray(clouds * (brightest / np.maximum(brightest + 255 * thick, 1)), np.float32)


def brightness(images: Bytes, more: float, draws: Draws) -> Floats:
    """More of V in HSV, at the same hue and saturation: all channels grow by one factor, and black becomes grey."""
    value = images.max(-1, keepdims=True).astype(np.float32)
    brighter = np.minimum(value + np.float32(255 * more), 255)
    return np.asarray(np.where(value > 0, images * (brighter / np.maximum(value, 1)), brighter), np.float32)


WEATHER = {f.__name__: f for f in (snow, frost, fog, brightness, spatter)}
