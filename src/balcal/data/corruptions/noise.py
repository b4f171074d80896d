"""Random numbers for a batch of images: each image has a stream of its own, whatever batch it is in.

Images of one channel: what the three channels of others look like in grey.

Noise. Everything is in grey levels 0 to 255, where the published formulas have 0 to 1.
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


class Draws:
    """Philox counts: the key says what for, the upper half of the counter says which image and which turn.

    Setting the counter takes 3 microseconds, a generator for every image would take 40.

    >>> together = Draws(7, first=0, count=3).normal(4)
    >>> bool((together[2:] == Draws(7, first=2, count=1).normal(4)).all())
    True
    """

    def __init__(self, key: int, first: int, count: int) -> None:
        self.count = count
        self._first, self._turn = first, 0
        self._bits = Philox(key=np.array([key, 0], np.uint64))
        self._generator = Generator(self._bits)

    def _each(self) -> Iterator[tuple[int, Generator]]:
        """The generator, set to where the numbers of image after image begin; every call is another turn."""
        state = self._bits.state
        state["buffer_pos"], state["has_uint32"] = 4, 0  # nothing is left over from the image before
        for i in range(self.count):
            state["state"]["counter"] = np.array([0, 0, self._turn, self._first + i], np.uint64)
            self._bits.state = state
            yield i, self._generator
        self._turn += 1

    def normal(self, *shape: int) -> Floats:
        """(n, *shape), mean zero, deviation one"""
        out = np.empty((self.count, math.prod(shape)), np.float32)
        for i, rng in self._each():
            rng.standard_normal(out=out[i], dtype=np.float32)
        return out.reshape(self.count, *shape)

    def uniform(self, *shape: int) -> Floats:
        """(n, *shape), from 0 to below 1"""
        out = np.empty((self.count, math.prod(shape)), np.float32)
        for i, rng in self._each():
            rng.random(out=out[i], dtype=np.float32)
        return out.reshape(self.count, *shape)

    def between(self, low: float, high: float, *shape: int) -> Floats:
        return np.float32(low) + np.float32(high - low) * self.uniform(*shape)

    def below(self, bound: int, *shape: int) -> NDArray[np.intp]:
        """(n, *shape), whole numbers from 0 to below the bound"""
        return (self.uniform(*shape) * np.float32(bound)).astype(np.intp)

    def poisson(self, means: NDArray[np.floating[Any]]) -> Floats:
        """As many as there are means (n, ...)"""
        out = np.empty(means.shape, np.float32)
        for i, rng in self._each():
            out[i] = rng.poisson(means[i])
        return out


LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def grey(images: Floats) -> Floats:
    """(..., 1) of (..., 1 or 3): as bright as the colours look."""
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
    """Light comes in photons: white is that many, on average."""
    counted = draws.poisson(images * (photons / 255))
    counted *= 255 / photons
    return counted


def impulse_noise(images: Bytes, share: float, draws: Draws) -> Bytes:
    """That share of the values (not of the pixels: channels are struck apart) becomes 0 or 255, as likely as not."""
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
