"""Noise; and what all corruptions share: random numbers (`Draws`), and colours for images of one or three channels.

Everything is in grey levels 0 to 255, where the published formulas have 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""how much red, green and blue add to the brightness"""


class Draws:
    """Random numbers for a batch of images. Each image has a stream of its own, whatever batch it is in.

    Philox is a generator with a counter. The key stands for the purpose, the upper half of the counter for the image
    and the call. Setting the counter takes 3 microseconds, a generator for every image would take 40.

    >>> together = Draws(7, first=0, count=3).normal(4)
    >>> bool((together[2:] == Draws(7, first=2, count=1).normal(4)).all())
    True
    """

    def __init__(self, key: int, first: int, count: int) -> None:
        self.count = count
        self._first, self._call = first, 0
        self._bits = Philox(key=np.array([key, 0], np.uint64))
        self._generator = Generator(self._bits)

    def _each(self) -> Iterator[tuple[int, Generator]]:
        """The generator, set to the stream of one image after the other. Every call begins a new stream for each."""
        state = self._bits.state
        state["buffer_pos"], state["has_uint32"] = 4, 0  # nothing is left over from the image before
        for i in range(self.count):
            state["state"]["counter"] = np.array([0, 0, self._call, self._first + i], np.uint64)
            self._bits.state = state
            yield i, self._generator
        self._call += 1

    def normal(self, *shape: int) -> Floats:
        """(n, *shape), standard normal"""
        out = np.empty((self.count, math.prod(shape)), np.float32)
        for i, rng in self._each():
            rng.standard_normal(out=out[i], dtype=np.float32)
        return out.reshape(self.count, *shape)

    def uniform(self, *shape: int) -> Floats:
        """(n, *shape), uniform in [0, 1)"""
        out = np.empty((self.count, math.prod(shape)), np.float32)
        for i, rng in self._each():
            rng.random(out=out[i], dtype=np.float32)
        return out.reshape(self.count, *shape)

    def between(self, low: float, high: float, *shape: int) -> Floats:
        return np.float32(low) + np.float32(high - low) * self.uniform(*shape)

    def below(self, bound: int, *shape: int) -> NDArray[np.intp]:
        """(n, *shape), whole numbers in [0, bound)"""
        return (self.uniform(*shape) * np.float32(bound)).astype(np.intp)

    def poisson(self, means: NDArray[np.floating[Any]]) -> Floats:
        """One number for each of the means (n, ...)"""
        out = np.empty(means.shape, np.float32)
        for i, rng in self._each():
            out[i] = rng.poisson(means[i])
        return out


def grey(images: Floats) -> Floats:
    """The brightness (..., 1) of images (..., 1 or 3)."""
    return images if images.shape[-1] == 1 else (images * LUMA).sum(-1, keepdims=True)


def colour(red: int, green: int, blue: int, channels: int) -> Floats:
    """A colour for images of three channels, its brightness for images of one.

    >>> colour(255, 0, 0, 1)
    array([76.244995], dtype=float32)
    """
    rgb = np.array([red, green, blue], np.float32)
    return rgb if channels == 3 else grey(rgb)


def gaussian_noise(images: Bytes, scale: float, draws: Draws) -> Floats:
    noise = draws.normal(*images.shape[1:])
    noise *= 255 * scale
    noise += images
    return noise


def shot_noise(images: Bytes, photons: float, draws: Draws) -> Floats:
    """Poisson noise: white is `photons` photons on average."""
    counted = draws.poisson(images * (photons / 255))
    counted *= 255 / photons
    return counted


def impulse_noise(images: Bytes, share: float, draws: Draws) -> Bytes:
    """A share of the values becomes 0 or 255, with equal probability. Channels are independent."""
    u = draws.uniform(*images.shape[1:])
    out = images.copy()
    out[u < share / 2] = 0
    out[u >= 1 - share / 2] = 255
    return out


def speckle_noise(images: Bytes, scale: float, draws: Draws) -> Floats:
    noise = draws.normal(*images.shape[1:])
    noise *= scale
    noise += 1
    noise *= images
    return noise


NOISE = {f.__name__: f for f in (gaussian_noise, shot_noise, impulse_noise, speckle_noise)}
