"""Solve mean confidence = delta times accuracy for gamma or beta: sums over an epoch, then one root.

For a fixed grid of candidates (gamma, or a factor on beta) each batch adds its confidence and its correct answers:
2 x 129 numbers whatever the data set's size. Sums of processes add up, and a half-finished epoch can be saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError, Record, Sums
from balcal.runtime.devices import sum_dtype

CELLS = 1 << 18
"""largest number of (candidate, sample, class) cells held at once"""

BOLDEST = 8.0
"""largest factor that an under-confident classifier's logits are multiplied by"""

Floats = NDArray[np.float64]
Grid = Callable[[int, Tensor], Tensor]
"""(points, a tensor of the kind and place that it should have) -> ascending candidates"""


def start_sums(points: int, device: torch.device) -> Sums:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=sum_dtype(device), device=device)

    return {"conf": zeros(points), "correct": zeros(points), "count": zeros()}


def shares(gamma: float) -> tuple[float, float]:
    """Of the learnable classifier and of the fixed one. Above 1 gamma is a factor on the first one's logits, and the
    other has no share: it would be subtracted.

    >>> shares(0.25), shares(3.0)
    ((0.25, 0.75), (3.0, 0.0))
    """
    return gamma, max(0.0, 1 - gamma)


def gamma_grid(points: int, like: Tensor) -> Tensor:
    return torch.linspace(0, 1, points, dtype=like.dtype, device=like.device)


def scale_grid(points: int, like: Tensor) -> Tensor:
    return torch.logspace(-2, 2, points, dtype=like.dtype, device=like.device)


def bold_grid(points: int, like: Tensor) -> Tensor:
    """Factors from 1 to BOLDEST."""
    return torch.logspace(0, math.log10(BOLDEST), points, dtype=like.dtype, device=like.device)


@torch.no_grad()
def add_gamma_probs(sums: Sums, standard: Tensor, etf: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
    """p = g p_standard + (1-g) p_etf, at every g of the grid.

    Where both heads pick the same class, that class wins at every g: confidence is a line and correctness a constant.
    Only the samples on which they disagree need the grid. (Accelerators take the grid for all: choosing rows would
    make them wait for the host.)
    """
    p_s, p_e = standard.softmax(-1), etf.softmax(-1)
    grid = gamma_grid(len(sums["conf"]), p_s)
    if labels.device.type == "cpu" and weights is None:
        top_s, class_s = p_s.max(-1)
        top_e, class_e = p_e.max(-1)
        agree = class_s == class_e
        line = torch.lerp(top_e[agree].double().sum(), top_s[agree].double().sum(), grid.double())
        sums["conf"] += line
        sums["correct"] += (class_s[agree] == labels[agree]).sum()
        sums["count"] += agree.sum()
        differ = ~agree
        p_s, p_e, labels = p_s[differ], p_e[differ], labels[differ]
    for rows in _chunks(len(grid), p_s):
        conf, pick = torch.lerp(p_e[rows], p_s[rows], grid[:, None, None]).max(-1)
        _add(sums, conf, pick, labels[rows], None if weights is None else weights[rows])


@torch.no_grad()
def add_gamma_logits(sums: Sums, standard: Tensor, etf: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
    """p = softmax(g z_standard + (1-g) z_etf), at every g of the grid.

    Where both heads pick the same class, that class wins at every g, as above; from one g to the next every term of the
    softmax then changes by a constant factor, so a large batch is walked through without computing exponentials anew.
    """
    grid = gamma_grid(len(sums["conf"]), standard)
    if labels.device.type == "cpu" and weights is None and len(grid) * standard.numel() > CELLS:
        pick = standard.argmax(-1)
        agree = pick == etf.argmax(-1)
        _walk(sums, standard[agree], etf[agree], pick[agree], labels[agree])
        standard, etf, labels = standard[~agree], etf[~agree], labels[~agree]
    for rows in _chunks(len(grid), standard):
        _add_softmax(sums, torch.lerp(etf[rows], standard[rows], grid[:, None, None]), labels[rows], weights, rows)


@torch.no_grad()
def add_scale(
    sums: Sums, logits: Tensor, labels: Tensor, make_grid: Grid = scale_grid, weights: Tensor | None = None
) -> None:
    """p = softmax(scale z), at every scale of the grid."""
    grid = make_grid(len(sums["conf"]), logits)
    for rows in _chunks(len(grid), logits):
        _add_softmax(sums, logits[rows] * grid[:, None, None], labels[rows], weights, rows)


def _walk(sums: Sums, standard: Tensor, etf: Tensor, pick: Tensor, labels: Tensor) -> None:
    """From g = 0 to 1 in even steps: terms exp(z_k - z_pick) start at the ETF head's, and each has its own factor."""
    points, slope, top = len(sums["conf"]), standard - etf, pick[:, None]
    terms = (etf - etf.gather(1, top)).exp_()
    factors = ((slope - slope.gather(1, top)) / (points - 1)).exp_()
    for j in range(points):
        sums["conf"][j] += terms.sum(1).reciprocal_().sum(dtype=sums["conf"].dtype)
        terms.mul_(factors)
    sums["correct"] += (pick == labels).sum()
    sums["count"] += len(labels)


def _chunks(points: int, table: Tensor) -> Iterator[slice]:
    step = max(1, CELLS // (points * table.shape[1]))
    return (slice(i, i + step) for i in range(0, len(table), step))


def _add_softmax(sums: Sums, logits: Tensor, labels: Tensor, weights: Tensor | None, rows: slice) -> None:
    top, pick = logits.max(-1)
    conf = (logits - top[..., None]).exp_().sum(-1).reciprocal_()
    _add(sums, conf, pick, labels, None if weights is None else weights[rows])


def _add(sums: Sums, conf: Tensor, pick: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
    """`conf` and `pick` are (candidates, samples)."""
    if weights is not None:
        of = weights.to(sums["conf"].dtype)
        sums["conf"] += conf.to(of.dtype) @ of
        sums["correct"] += (pick == labels).to(of.dtype) @ of
        sums["count"] += of.sum()
        return
    sums["conf"] += conf.sum(1, dtype=sums["conf"].dtype)
    sums["correct"] += (pick == labels).sum(1)
    sums["count"] += len(labels)


@dataclass(frozen=True)
class Curve:
    """Mean confidence and accuracy as functions of gamma (or a factor), known on a grid and linear in between."""

    grid: Floats
    conf: Floats
    acc: Floats

    @staticmethod
    def of(sums: Sums, grid: Tensor) -> Curve:
        count = float(sums["count"])
        if count == 0:
            raise BalcalError("nothing was counted in this epoch: there was no batch, or every sample has weight 0")
        conf, acc = (sums[name].cpu().double().numpy() / count for name in ("conf", "correct"))
        if not np.isfinite(conf).all():
            raise BalcalError("the network's outputs are not finite: lower the learning rate or clip gradients")
        return Curve(grid.cpu().double().numpy(), conf, acc)

    def gap(self, delta: float) -> Floats:
        """h = conf - delta acc: positive where the model is over-confident."""
        return self.conf - delta * self.acc

    def cautious(self, samples: float) -> Curve:
        """Accuracy by the rule of succession: (right + 1) / (samples + 2)."""
        return replace(self, acc=(self.acc + 1 / samples) / (1 + 2 / samples))


@dataclass(frozen=True)
class Solution:
    """The solution, confidence and accuracy there, and which rule chose it."""

    value: float
    conf: float
    acc: float
    gap: float
    branch: str

    def record(self, dial: str) -> Record:
        return {dial: self.value, "conf": self.conf, "acc": self.acc, "gap": self.gap, "branch": self.branch}


def solve_gamma(curve: Curve, delta: float, guard: float = 0.01) -> Solution:
    """Gamma for the next epoch.

    - root: the largest g below 1 where conf(g) = delta acc(g), and accuracy is within `guard` of the standard head's;
    - standard: no such g, and the standard head alone is not over-confident: g = 1;
    - closest: no such g, and it is over-confident: the g of least |gap| that keeps the accuracy.

    A bare argmin of |gap| would not do: an untrained ETF head has confidence = accuracy = 1/K, a fit of no use.

    >>> line = Curve(np.array([0, 0.5, 1]), conf=np.array([0.2, 0.6, 1.0]), acc=np.array([0.9, 0.9, 0.9]))
    >>> solve_gamma(line, delta=1.0).value
    0.875
    """
    h, acc_needed = curve.gap(delta), curve.acc[-1] - guard
    if h[-1] != 0:
        for g in _crossings(curve.grid, h)[::-1]:
            if np.interp(g, curve.grid, curve.acc) >= acc_needed:
                return _solution(curve, delta, float(g), "root")
    if h[-1] <= 0:
        return _solution(curve, delta, 1.0, "standard")
    edges = _crossings(curve.grid, curve.acc - acc_needed)  # where the guard begins to bite
    allowed = np.append(curve.grid[curve.acc >= acc_needed], edges)
    distance = np.abs(np.interp(allowed, curve.grid, h))
    return _solution(curve, delta, float(allowed[distance == distance.min()].max()), "closest")


def solve_freely(
    tempered: Curve, sharpened: Curve, delta: float, guard: float = 0.01, samples: float = math.inf
) -> Solution:
    """Gamma where it may exceed 1. An over-confident classifier is tempered by the other one, as above. An
    under-confident one is sharpened: from 1 on, gamma is a factor on its logits, and the other one has no share.

    Ten right of ten do not prove a confidence of 100 %: to `samples` one right and one wrong answer are added.

    >>> acc = np.array([0.9, 0.9, 0.9])
    >>> tempered = Curve(np.array([0, 0.5, 1]), np.array([0.2, 0.5, 0.7]), acc)
    >>> sharpened = Curve(np.array([1.0, 2.0, 4.0]), np.array([0.7, 0.8, 0.95]), acc)
    >>> found = solve_freely(tempered, sharpened, delta=1.0)
    >>> round(found.value, 3), found.branch
    (3.175, 'sharpened')
    >>> round(solve_freely(tempered, sharpened, delta=1.0, samples=10).value, 3)
    2.333
    """
    careful = tempered.cautious(samples)
    if careful.gap(delta)[-1] > 0:
        found = solve_gamma(careful, delta, guard)
        return _solution(tempered, delta, found.value, found.branch)
    found = solve_scale(sharpened.cautious(samples), delta)
    branch = {"root": "sharpened", "highest": "boldest", "lowest": "standard"}[found.branch]
    return _solution(sharpened, delta, found.value, branch)


def solve_scale(curve: Curve, delta: float) -> Solution:
    """The factor on beta: confidence grows with it and accuracy does not move, so there is at most one root."""
    h = curve.gap(delta)
    if h[0] >= 0:
        return _solution(curve, delta, float(curve.grid[0]), "lowest")
    if h[-1] <= 0:
        return _solution(curve, delta, float(curve.grid[-1]), "highest")
    i = int(np.argmax(h > 0)) - 1
    share = -h[i] / (h[i + 1] - h[i])
    scale = float(np.exp((1 - share) * np.log(curve.grid[i]) + share * np.log(curve.grid[i + 1])))
    return _solution(curve, delta, scale, "root")


def _crossings(x: Floats, y: Floats) -> Floats:
    """Where the broken line through (x, y) passes zero, in ascending order.

    >>> _crossings(np.array([0.0, 1.0, 2.0]), np.array([-1.0, 1.0, 0.0]))
    array([0.5, 2. ])
    """
    cells = np.flatnonzero(y[:-1] * y[1:] < 0)
    inside = x[cells] - y[cells] * (x[cells + 1] - x[cells]) / (y[cells + 1] - y[cells])
    return np.sort(np.append(inside, x[y == 0]))


def _solution(curve: Curve, delta: float, value: float, branch: str) -> Solution:
    conf, acc = (float(np.interp(value, curve.grid, y)) for y in (curve.conf, curve.acc))
    return Solution(value, conf, acc, conf - delta * acc, branch)
