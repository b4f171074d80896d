"""ECE of the same predictions as other libraries compute it, and why their numbers differ.

Each convention is implemented from its definition and tested against the library itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.metrics.bins import Floats, bin_table, equal_mass
from balcal.metrics.bootstrap import noise_floor
from balcal.metrics.calibration import class_1_ece
from balcal.metrics.inputs import TopLabels, read
from balcal.metrics.metric import by_name

Line = tuple[str, str, float, str]
"""name, convention, value, why it differs"""
SAME = 5e-7
"""differences below this are rounding: some libraries add up in float32"""
_EQUAL_MASS = "another question: bins follow the data, so crowded confidences are looked at more closely"

_CLASS_1 = "another question: is this probability right, and not the answer; most papers on two classes ask it"


@dataclass(frozen=True)
class Finding:
    """ECE under one convention, as a fraction, and what makes it differ from ours."""

    name: str
    convention: str
    value: float
    difference: float
    why: str


@dataclass(frozen=True)
class Audit:
    """The same predictions under all conventions. The first finding is ours."""

    samples: int
    classes: int
    findings: tuple[Finding, ...]
    floor_mean: float
    floor_high: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "classes": self.classes,
            "floor_mean": self.floor_mean,
            "floor_high": self.floor_high,
            "findings": [vars(finding) for finding in self.findings],
        }


@by_name
def audit(*, probs: Any = None, log_probs: Any = None, labels: Any) -> Audit:
    """Recompute ECE under every convention.

    Two confidences of exactly 1, one right and one wrong, and two right ones just below. torchmetrics separates them:

    >>> p = [[1.0, 0.0], [1.0, 0.0], [0.96, 0.04], [0.96, 0.04]]
    >>> found = {f.name: round(f.value, 4) for f in audit(probs=p, labels=[0, 1, 0, 0]).findings}
    >>> found["balcal"], found["torchmetrics"], found["netcal"]
    (0.23, 0.27, 0.23)
    """
    rows = read(probs, log_probs, labels)
    top = rows.top()
    conf, right = top.conf.numpy(), top.right.numpy().astype(np.float64)
    ours = bin_table(top, 15).ece()
    lines = [("balcal", "15 bins (lo, hi], 0 in the first and 1 in the last", ours, "the reference of this table")]
    lines.append(_guo(conf, right, ours))
    lines.append(_torchmetrics(top, ours))
    lines.append(_netcal(conf, right, ours, rows.num_classes, len(np.unique(rows.labels.cpu().numpy()))))
    for bins in (10, 20):
        value = bin_table(top, bins).ece()
        lines.append((f"{bins} bins", f"{bins} bins (lo, hi]", value, _why_bins(top, bins, value, ours)))
    lines.append(
        ("adaptive", "15 bins of equal mass, edges at order statistics", equal_mass(top, 15).ece(), _EQUAL_MASS)
    )
    lines.append(_paper_adaptive(conf, right, equal_mass(top, 15).ece()))
    if rows.num_classes == 2:
        value = class_1_ece(rows, 15)
        lines.append(("class 1", "binary_ece: 15 bins (lo, hi] of the probability of class 1", value, _CLASS_1))
    floor = noise_floor(top)
    return Audit(
        len(top),
        rows.num_classes,
        tuple(Finding(name, how, value, value - ours, why) for name, how, value, why in lines),
        float(floor.mean()),
        float(np.quantile(floor, 0.975)),
    )


def binned_ece(
    conf: Floats, right: Floats, inside: Callable[[float, float], NDArray[np.bool_]], edges: Floats
) -> float:
    """Sum of |gap| over bins given by a test of membership; what is in no bin is left out."""
    gaps = [(conf - right)[inside(lo, hi)].sum() for lo, hi in pairwise(edges)]
    return float(np.abs(gaps).sum() / len(conf))


def _guo(conf: Floats, right: Floats, ours: float) -> Line:
    edges = np.linspace(0, 1, 16, dtype=np.float32).astype(np.float64)
    value = binned_ece(conf, right, lambda lo, hi: (conf > lo) & (conf <= hi), edges)
    why = "the same bins" if abs(value - ours) < SAME else "confidences within rounding of an edge change their bin"
    return "Guo et al.", "temperature_scaling's ECELoss: 15 bins (lo, hi], 0 in none", value, why


def _torchmetrics(top: TopLabels, ours: float) -> Line:
    conf, right = top.conf.numpy(), top.right.numpy().astype(np.float64)
    edges = torch.linspace(0, 1, 16, dtype=top.dtype).double().numpy()
    value = binned_ece(conf, right, lambda lo, hi: (conf >= lo) & (conf < hi), edges)
    ones = conf == 1.0
    value += abs(float((conf - right)[ones].sum())) / len(conf)
    last = (conf >= edges[-2]) & ~ones
    why = "no confidence is exactly 1 and none lies on an edge, so the bins are the same"
    if ones.any():
        gaps = [float((conf - right)[group].sum()) / len(conf) * 100 for group in (ones, last)]
        cancel = gaps[0] * gaps[1] < 0
        why = (
            f"{int(ones.sum()):,} confidences equal 1 and get a hidden 16th bin ({gaps[0]:+.2f} %, their neighbours "
            f"{gaps[1]:+.2f} %): " + ("the two no longer cancel" if cancel else "same sign, so nothing is lost")
        )
    elif abs(value - ours) >= SAME:
        why = f"{_on_edges(conf):,} confidences lie on an edge and fall to the bin above it"
    return "torchmetrics", "bins [lo, hi) and an extra one for exactly 1; so does the paper's code", value, why


def _netcal(conf: Floats, right: Floats, ours: float, classes: int, seen: int) -> Line:
    edges = np.linspace(0, 1, 16)
    value = binned_ece(conf, right, lambda lo, hi: (conf >= lo) & ((conf < hi) | (hi == 1.0)), edges)
    why = "no confidence lies on an inner edge, so the bins are the same"
    if abs(value - ours) >= SAME:
        why = f"{_on_edges(conf):,} confidences lie on an edge and fall to the bin above it"
    if seen <= 2:
        does = "refuses this input" if classes > 2 else "measures the probability of class 1 instead of the top label"
        why = f"netcal itself {does}: with {seen} distinct labels it assumes a binary problem; top label shown"
    return "netcal", "bins [lo, hi), the last one closed", value, why


def _on_edges(conf: Floats) -> int:
    steps = np.arange(1, 15) / 15
    near = np.isin(conf, steps) | np.isin(conf, steps.astype(np.float32).astype(np.float64))
    return int(near.sum())


def _why_bins(top: TopLabels, bins: int, value: float, ours: float) -> str:
    table = bin_table(top, bins)
    busiest = table.count.max() / table.samples
    change = "other samples share a bin, and " + ("more" if value < ours else "less") + " of their gaps cancels"
    if abs(value - ours) < SAME:
        change = "nowhere do gaps of opposite sign meet in a bin, so their number does not matter"
    return f"{change}; {busiest:.0%} of the samples share the fullest bin"


def _paper_adaptive(conf: Floats, right: Floats, adaptive: float) -> Line:
    n = len(conf)
    edges = np.interp(np.linspace(0, n, 16), np.arange(n), np.sort(conf))
    value = binned_ece(conf, right, lambda lo, hi: (conf > lo) & (conf <= hi), edges)
    lost = int((conf <= edges[0]).sum())
    change = f"{(value - adaptive) * 100:+.4f} % against the line above"
    why = f"{change}: interpolated edges, and the smallest confidence ({lost:,} x) is in no bin"
    return "adaptive, paper", "the paper's code: equal mass, interpolated edges, (lo, hi]", value, why
