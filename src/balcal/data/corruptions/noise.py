"""Noise. Everything is in grey levels 0 to 255, where the published formulas have 0 to 1."""

from __future__ import annotations

from balcal.data.corruptions.draws import Bytes, Draws, Floats


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
