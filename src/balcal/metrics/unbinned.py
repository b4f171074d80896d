"""Calibration of the top label without bins: smooth ECE and the Kolmogorov-Smirnov error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.fft import dct, idct
from scipy.optimize import brentq

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, Floats, zeros
from balcal.metrics.inputs import Rows, TopLabels, read
from balcal.metrics.metric import Metric, by_name
from balcal.runtime.values import check_number

CELLS = 8192
"""cells of the grid on which residuals are smoothed: far narrower than any kernel that noisy data asks for"""


@by_name
def smooth_ece(
    *, probs: Any = None, log_probs: Any = None, labels: Any, sigma: float | None = None, sample_weight: Any = None
) -> float:
    """ECE with a kernel in place of bins, of a width that it finds itself. Lower is better.

    The residuals conf - right are smoothed by a Gaussian of width sigma, reflected at 0 and 1 so that nothing is lost.
    smECE(sigma) is the integral of the absolute value of the result. It falls as sigma grows, and is taken where it
    equals sigma. Where all residuals have one sign, no smoothing can cancel them: the value is the mean gap.

    >>> round(smooth_ece(probs=[[1.0, 0.0]] * 4, labels=[0, 0, 0, 1]), 6)  # always sure, right in three of four
    0.25
    """
    return smooth_error(residual_grid(read(probs, log_probs, labels, sample_weight).top()), sigma)


@by_name
def ks(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Kolmogorov-Smirnov calibration error: the largest |sum of conf - right| up to any confidence, over N. Lower is
    better.

    It never falls below the gap between mean confidence and accuracy.

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(ks(probs=p, labels=[0, 1, 0, 1]), 6)  # running sums -0.5, 0.1, -0.1, -0.2
    0.125
    """
    return ks_of(read(probs, log_probs, labels, sample_weight).top())


@by_name
def kuiper(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Kuiper calibration error: the largest |sum of conf - right| between any two confidences, over N. Lower is better.

    It sees over-confidence in one range of confidence and under-confidence in another, where `ks` sees the larger.

    >>> p = [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    >>> round(kuiper(probs=p, labels=[0, 1, 0, 1]), 6)  # running sums -0.5, 0.1, -0.1, -0.2: from -0.5 to 0.1
    0.15
    """
    return kuiper_of(read(probs, log_probs, labels, sample_weight).top())


def residual_grid(top: TopLabels) -> Floats:
    """Residuals conf - right, divided by N, on a grid. Each is shared between its two neighbours, so that position and
    amount are kept."""
    at = (top.conf * CELLS - 0.5).clamp(0, CELLS - 1)
    low = at.floor().clamp(max=CELLS - 2)
    share, first, gap = at - low, low.long(), top.gap / len(top)
    if top.weights is not None:
        gap = top.gap * top.weights / top.total
    grid = torch.bincount(first, gap * (1 - share), CELLS) + torch.bincount(first + 1, gap * share, CELLS)
    return np.asarray(grid.numpy(), dtype=np.float64)


def smooth_error(grid: Floats, sigma: float | None = None) -> float:
    """The integral of |smoothed residuals|, at a given width, or at the width that equals it.

    A Gaussian reflected at both ends is heat spreading in a closed rod: each cosine mode k decays by
    exp(-(pi k sigma)^2 / 2), and the mean, mode 0, stays.
    """
    modes = dct(grid, norm="ortho")
    rates = (math.pi * np.arange(len(grid))) ** 2 / 2

    def error(width: float) -> float:
        return float(np.abs(idct(modes * np.exp(-rates * width**2), norm="ortho")).sum())

    if sigma is not None:
        if not check_number(sigma, "the width sigma of smooth ECE", most=1e6) > 0:
            raise BalcalError(f"the width sigma of smooth ECE must be above 0, not {sigma}")
        return error(sigma)
    narrow = 1 / len(grid)
    if error(narrow) <= narrow:
        return error(narrow)
    return float(brentq(lambda width: error(width) - width, narrow, 1.5, xtol=1e-9))


def sorted_top(top: TopLabels) -> tuple[Floats, Floats]:
    """(confidences in ascending order, right answers of the samples up to each): ties spread evenly over their group,
    so that the order of the samples does not matter."""
    values = np.sort(top.conf.numpy())
    right = np.searchsorted(np.sort(top.conf[top.right].numpy()), values, "right").astype(np.float64)
    last = np.append(values[1:] != values[:-1], True)
    if not last.all():
        ends = np.flatnonzero(last)
        right = np.interp(np.arange(1, len(values) + 1), np.append(0, ends + 1), np.append(0, right[ends]))
    return values, right


def ks_error(conf: Floats, right: Floats) -> float:
    """From what `sorted_top` returns. Inside a group of ties the running sum is straight, so its ends decide."""
    return float(np.abs(np.cumsum(conf) - right).max()) / len(conf)


def weighted_groups(top: TopLabels) -> tuple[Floats, Floats, Floats]:
    """(distinct confidences in ascending order, the weight of each, the weight of its right answers)."""
    values, group = np.unique(top.conf.numpy(), return_inverse=True)
    mass = top.mass.numpy()
    whole, right = (np.bincount(group, each).astype(np.float64) for each in (mass, mass * top.right.numpy()))
    return values, whole, right


def ks_of(top: TopLabels) -> float:
    if top.weights is None:
        return ks_error(*sorted_top(top))
    conf, mass, right = weighted_groups(top)
    return float(np.abs(np.cumsum(conf * mass - right)).max()) / top.total


def kuiper_of(top: TopLabels) -> float:
    conf, mass, right = weighted_groups(top)
    walk = np.cumsum(conf * mass - right)
    return float(walk.max().clip(min=0) - walk.min().clip(max=0)) / top.total


class SmoothSums(Accumulator):
    """Smooth ECE from a grid of sums: constant memory, though there are no bins.

    >>> meter = SmoothSums()
    >>> meter.update(probs=[[1.0, 0.0]] * 4, labels=[0, 0, 0, 1])
    >>> round(meter.compute()["smooth_ece"], 6)
    0.25
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums = {"residual": zeros(CELLS), "count": zeros(1)}

    def add_rows(self, rows: Rows) -> None:
        self.sums["residual"] += torch.from_numpy(residual_grid(rows.top())) * rows.total
        self.sums["count"] += rows.total

    def compute(self) -> dict[str, float]:
        return {"smooth_ece": smooth_error((self.sums["residual"] / self.checked_count()).numpy())}


METRICS = {
    "smooth_ece": Metric(
        smooth_ece,
        "lower",
        "fraction",
        "integral of |1/N sum_i K_s(t, conf_i) (conf_i - right_i)| dt, at the s that equals it",
        "Blasiok, Nakkiran, ICLR 2024",
        {"of": "top label", "kernel": "reflected Gaussian", "grid": CELLS},
    ),
    "ks": Metric(
        ks,
        "lower",
        "fraction",
        "max_c |1/N sum_{conf_i <= c} (conf_i - right_i)|",
        "Gupta et al., ICLR 2021",
        {"of": "top label", "ties": "counted together"},
    ),
    "kuiper": Metric(
        kuiper,
        "lower",
        "fraction",
        "max_{a < b} |1/N sum_{a < conf_i <= b} (conf_i - right_i)|",
        "Kuiper 1960; Arrieta-Ibarra et al., JMLR 2022",
        {"of": "top label", "ties": "counted together"},
    ),
}
