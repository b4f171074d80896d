"""Images of one channel: what the three channels of others look like in grey."""

from __future__ import annotations

import numpy as np

from balcal.data.corruptions.draws import Floats

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
