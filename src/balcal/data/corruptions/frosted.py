"""Five plates of ice, made and not photographed: the published photographs have no licence that would let us ship them.

They are made after the photographs' figures (mean and deviation of each channel, how the brightness of near pixels
goes together), one plate for each of the five that are in use; two of the five are the same picture there, too.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator, Philox
from scipy import fft, ndimage

from balcal.data.corruptions.draws import Floats
from balcal.randomness import stream

SIZE = (400, 600)
DIRECTIONS = 9
Colour = tuple[int, int, int]
WHITE = ((201, 205, 214), (21, 22, 23), 0.55)
TINTS: tuple[tuple[Colour, Colour, float], ...] = (
    ((78, 149, 166), (27, 16, 15), 0.70),
    WHITE,
    WHITE,
    ((138, 153, 166), (29, 29, 30), 0.45),
    ((112, 123, 135), (44, 43, 42), 0.55),
)
"""mean and deviation of red, green and blue; share of clouds, the rest is crystals"""


@lru_cache(maxsize=3)
def plates(scale: float) -> Floats:
    """(5, H, W, 3), grey levels; each wraps around. Smaller ones are sampled, as published, not averaged."""
    made = {tint: _sampled(_plate(*tint), scale) for tint in TINTS}
    return np.stack([made[tint] for tint in TINTS])


def _sampled(plate: Floats, scale: float) -> Floats:
    if scale == 1:
        return plate
    rows, columns = ((np.arange(round(side * scale)) + 0.5) / scale - 0.5 for side in SIZE)
    at = np.meshgrid(rows, columns, indexing="ij")
    channels = [ndimage.map_coordinates(plate[..., k], at, order=1, mode="grid-wrap") for k in range(3)]
    return np.stack(channels, -1).astype(np.float32)


@lru_cache(maxsize=len(TINTS))
def _plate(mean: Colour, deviation: Colour, cloudy: float) -> Floats:
    rng = Generator(Philox(key=stream("frost", *mean)))
    y, x = _frequencies()
    falling = np.asarray(np.maximum(np.hypot(y, x), 1 / min(SIZE)) ** -1.5, np.float32)
    ice = cloudy**0.5 * _normed(_field(rng, falling)) + (1 - cloudy) ** 0.5 * _normed(_crystals(rng))
    ice = _normed(np.clip(_normed(ice), -2.5, 3))
    return np.asarray(np.clip(np.array(mean) + ice[..., None] * np.array(deviation), 0, 255), np.float32)


def _crystals(rng: Generator) -> Floats:
    """Needles, in patches; those of a patch lie in one direction, and bright edges part the patches."""
    y, x = _frequencies()
    patches = np.stack([_field(rng, _bell(y * 9, x * 9)) for _ in range(DIRECTIONS)])
    order = np.partition(patches, -2, 0)
    which, edge = patches.argmax(0), np.exp(-(order[-1] - order[-2]) / (0.06 * patches.std()))
    needles = np.zeros(SIZE, np.float32)
    for k in range(DIRECTIONS):
        angle = np.pi * (k + rng.uniform(-0.3, 0.3)) / DIRECTIONS
        along, across = y * np.sin(angle) + x * np.cos(angle), y * np.cos(angle) - x * np.sin(angle)
        needles += np.where(which == k, _normed(_field(rng, _bell(along * 14, across * 0.9))), 0)
    return np.asarray(np.maximum(needles, -1) + 0.8 * edge, np.float32)


def _frequencies() -> tuple[Floats, Floats]:
    """Cycles a pixel, down (H, 1) and to the right (1, W / 2 + 1)."""
    down, right = fft.fftfreq(SIZE[0])[:, None], fft.rfftfreq(SIZE[1])[None, :]
    return down.astype(np.float32), right.astype(np.float32)


def _bell(y: Floats, x: Floats) -> Floats:
    """What smoothing by a Gaussian leaves of each frequency; its width goes with the frequencies."""
    return np.asarray(np.exp(-2 * np.pi**2 * (y**2 + x**2)), np.float32)


def _field(rng: Generator, strength: Floats) -> Floats:
    """Chance with so much of each frequency."""
    waves = rng.standard_normal((2, *strength.shape), dtype=np.float32)
    out: Floats = fft.irfft2((waves[0] + 1j * waves[1]) * strength, s=SIZE)
    return out


def _normed(field: Floats) -> Floats:
    return np.asarray((field - field.mean()) / field.std(), np.float32)
