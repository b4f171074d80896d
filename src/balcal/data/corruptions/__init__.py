"""Common corruptions of images, after Hendrycks and Dietterich (ICLR 2019): 15 kinds and 4 extra ones, 5 severities.

How ours compare with the published ones, and where they differ: docs/corruptions.md.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError
from balcal.data.corruptions.blur import BLUR
from balcal.data.corruptions.constants import CONSTANTS, constants_side
from balcal.data.corruptions.digital import DIGITAL
from balcal.data.corruptions.noise import NOISE, Bytes, Draws
from balcal.data.corruptions.weather import WEATHER
from balcal.runtime.names import unknown
from balcal.runtime.randomness import stream

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS = tuple(name for names in GROUPS.values() for name in names)
"""the fifteen of the published benchmark, in its order"""
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""the authors' validation corruptions, one for each group"""
ROTATION = "rotation"
"""by 10, 45, 90, 135 and 180 degrees: the shift of the SVHN experiments, not of the benchmark"""
SEVERITIES = (1, 2, 3, 4, 5)
VERSION = 1
"""goes up whenever any result changes; it is part of the name of stored predictions"""

VALUES_AT_ONCE = 1 << 19
"""values to work on at once, so that they stay in the processor's cache"""

Images = TypeVar("Images", Tensor, NDArray[np.uint8])
_FUNCTIONS: dict[str, Any] = NOISE | BLUR | WEATHER | DIGITAL


def corrupt(images: Images, name: str, severity: int, seed: int = 0, first: int = 0) -> Images:
    """Corrupt images (N, H, W, C), bytes of one or three channels. Arrays give an array, tensors a tensor.

    The result of an image depends on its pixels, its number (`first` is that of the first), the seed, the corruption
    and the severity; not on other images, nor on the number of threads.

    >>> images = np.full((3, 32, 32, 3), 128, np.uint8)
    >>> foggy = corrupt(images, "fog", severity=3)
    >>> bool((corrupt(images[2:], "fog", severity=3, first=2) == foggy[2:]).all())
    True
    """
    pixels = _checked(images, name, severity)
    constant = CONSTANTS[name][constants_side(*pixels.shape[1:3])][severity - 1]
    out = corrupt_with(pixels, name, constant, stream(seed, "corrupt", name, severity), first)
    return torch.from_numpy(out).to(images.device) if isinstance(images, Tensor) else out


def _checked(images: Tensor | Bytes, name: str, severity: int) -> Bytes:
    """The images as an array; an error if they cannot be corrupted."""
    if name not in CONSTANTS:
        raise BalcalError(unknown("corruption", name, CONSTANTS))
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise BalcalError(f"severity must be 1, 2, 3, 4 or 5, not {severity!r}")
    pixels = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise BalcalError(
            f"corruptions need bytes (N, H, W, C) with one or three channels, not {pixels.dtype} {pixels.shape}"
        )
    constants_side(*pixels.shape[1:3])
    return pixels


def corrupt_with(images: Bytes, name: str, constant: Any, key: int, first: int = 0) -> Bytes:
    """Corrupt with any constants of the kind that the corruption takes."""
    out = np.empty(images.shape, np.uint8)
    together = max(1, VALUES_AT_ONCE // max(1, images[0].size)) if len(images) else 1
    for start in range(0, len(images), together):
        part = np.ascontiguousarray(images[start : start + together])
        done = _FUNCTIONS[name](part, constant, Draws(key, first + start, len(part)))
        out[start : start + together] = done if done.dtype == np.uint8 else _to_bytes(done)
    return out


def _to_bytes(levels: NDArray[Any]) -> Bytes:
    """Fractions of a grey level are cut off, as published, but a rounding error below a whole level is not."""
    return np.clip(levels + np.float32(2**-10), 0, 255).astype(np.uint8)
