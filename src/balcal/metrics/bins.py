"""Bins of the top label: three sums per bin, from which ECE and its relatives follow.

`bin_table` and `equal_mass` sum over a whole set of predictions. `BinSums` does so batch by batch and process by
process. It is an `Accumulator` with `update`, `merge` and `compute`, as others in this package: they keep sums, so
memory does not grow, and every split into batches or processes gives the same figures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from balcal.core import BalcalError
from balcal.metrics.inputs import Rows, TopLabels, read
from balcal.metrics.metric import by_name
from balcal.runtime.devices import sum_dtype
from balcal.runtime.values import check_whole

Floats = NDArray[np.float64]
MOST_BINS = 10_000


def check_bins(bins: int, most: int = MOST_BINS) -> int:
    """The number of bins, if it is a whole number of at least one."""
    if check_whole(bins, "the number of bins", -math.inf, most) < 1:
        raise BalcalError(f"there must be at least one bin, not {bins}")
    return int(bins)


def bin_of(conf: Tensor, bins: int, dtype: torch.dtype | None = None) -> Tensor:
    """The bin of each confidence, by comparing with the edges k / bins: a rounded product never decides.

    Edges are rounded to the precision of the data, so that 0.2 lies on the edge 0.2 in float32 too.

    >>> bin_of(torch.tensor([0.0, 0.2, 0.20001, 1.0]), 5)
    tensor([0, 0, 1, 4])
    """
    check_bins(bins)
    edges = torch.arange(1, bins, device=conf.device).to(dtype or conf.dtype) / bins
    return torch.bucketize(conf.contiguous(), edges.to(conf.dtype))


def uniform_bin_of(top: TopLabels, bins: int) -> Tensor:
    """The bin of each sample, by uniform edges."""
    return bin_of(top.conf, bins, top.dtype)


def equal_mass_bin_of(top: TopLabels, bins: int) -> Tensor:
    """Bins (lo, hi] between the order statistics of rank N/bins, 2N/bins, ...; equal confidences stay together."""
    check_bins(bins)
    n = len(top)
    if top.weights is None:
        ranks = torch.tensor([-(-k * n // bins) - 1 for k in range(1, bins)], dtype=torch.long).clamp(min=0)
        edges = torch.from_numpy(np.sort(top.conf.numpy()))[ranks]
    else:  # the confidence at which the running weight reaches k / bins of the whole
        order = np.argsort(top.conf.numpy(), kind="stable")
        running = np.cumsum(top.weights.numpy()[order])
        wanted = running[-1] * np.arange(1, bins) / bins * (1 - 1e-13)
        edges = top.conf[order][np.searchsorted(running, wanted).clip(max=n - 1)]
    return torch.bucketize(top.conf, edges)


@dataclass(frozen=True, eq=False)
class BinTable:
    """Per bin: the number of samples, the sum of their confidences, the number right. Empty bins weigh nothing.

    With weights, a sample counts as often as its weight says.
    """

    count: Floats
    conf: Floats
    right: Floats

    @property
    def samples(self) -> float:
        return float(self.count.sum())

    @property
    def gaps(self) -> Floats:
        """(sum of confidence - number right) / N: positive where the model is over-confident; |gaps| add up to ECE."""
        return (self.conf - self.right) / self.samples

    @property
    def mean_gaps(self) -> Floats:
        """confidence - accuracy inside each bin; 0 where it is empty."""
        return (self.conf - self.right) / self._divisor

    @property
    def _divisor(self) -> Floats:
        return np.where(self.count > 0, self.count, 1.0)

    def ece(self) -> float:
        return float(np.abs(self.gaps).sum())

    def over(self) -> float:
        return float(self.gaps.clip(min=0).sum())

    def under(self) -> float:
        return float((-self.gaps).clip(min=0).sum())

    def mce(self) -> float:
        return float(np.abs(self.mean_gaps).max())

    def rmsce(self) -> float:
        return math.sqrt(float(self.count @ self.mean_gaps**2) / self.samples)

    def debiased_ece(self, sizes: Floats | None = None) -> float:
        """ECE less what noise adds to it: a bin's gap m has the standard error s, and E|N(m, s)| > |m|.

        `sizes`: the number of samples behind each bin's mean, if it is not `count`.
        """
        acc = (self.right / self._divisor).clip(0, 1)
        s = np.sqrt(acc * (1 - acc) / (self._divisor if sizes is None else np.where(sizes > 0, sizes, 1.0)))
        m = np.abs(self.mean_gaps)
        z = np.divide(m, s, out=np.full_like(m, np.inf), where=s > 0)
        folded = s * math.sqrt(2 / math.pi) * np.exp(-(z**2) / 2) + m * (1 - 2 * ndtr(-z))
        return max(0.0, float(self.count @ (2 * m - folded)) / self.samples)

    def figures(self) -> dict[str, float]:
        return {
            "accuracy": float(self.right.sum()) / self.samples,
            "mean_confidence": float(self.conf.sum()) / self.samples,
            "ece": self.ece(),
            "mce": self.mce(),
            "rmsce": self.rmsce(),
            "debiased_ece": self.debiased_ece(),
            "over_confidence": self.over(),
            "under_confidence": self.under(),
        }


def bin_table(top: TopLabels, bins: int) -> BinTable:
    """Over uniform bins."""
    sums = BinSums(bins)
    sums.add(top.conf, top.right, top.dtype, top.weights)
    return sums.table()


def equal_mass(top: TopLabels, bins: int) -> BinTable:
    """Over bins that hold equally many samples."""
    where = equal_mass_bin_of(top, bins)
    right = top.right.double()
    mass = top.mass
    count, conf, hits = (
        torch.bincount(where, weights, bins).numpy() for weights in (mass, top.conf * mass, right * mass)
    )
    return BinTable(count, conf, hits)


def bin_sizes(top: TopLabels, bins: int) -> Floats:
    """The effective number of samples of each uniform bin: (sum w)^2 / sum w^2, 0 where it is empty."""
    where, mass = uniform_bin_of(top, bins), top.mass / top.mass.max()
    one, two = (torch.bincount(where, power, bins).numpy() for power in (mass, mass.square()))
    sizes: Floats = np.divide(one**2, two, out=np.zeros_like(one), where=two > 0)
    return sizes


class Accumulator(ABC):
    """Sums of float64 tensors, by name."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        """the whole state: adding the sums of two accumulators merges their samples"""

    @by_name
    def update(self, *, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> None:
        """Count a batch: all of it, or nothing if its numbers are refused. A weight of 2 counts as two samples."""
        rows = read(probs, log_probs, labels, sample_weight, all_zero=True)
        if len(rows):
            self.add_rows(rows)

    @abstractmethod
    def add_rows(self, rows: Rows) -> None: ...

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The figures of everything counted so far."""

    def merge(self, other: Accumulator) -> None:
        """Add what another accumulator has counted."""
        mine = {name: tensor.shape for name, tensor in self.sums.items()}
        if type(other) is not type(self) or mine != {name: tensor.shape for name, tensor in other.sums.items()}:
            raise BalcalError(f"cannot merge a {type(other).__name__} into a {type(self).__name__} of other settings")
        for name, tensor in other.sums.items():
            self.sums[name] = self.sums[name] + tensor.to(self.sums[name].device)

    def checked_count(self, name: str = "count") -> float:
        count = float(self.sums[name].sum())
        if count == 0:
            raise BalcalError("there are no samples to measure: update first")
        return count


def zeros(*shape: int, device: torch.device | None = None) -> Tensor:
    return torch.zeros(shape, dtype=sum_dtype(device or torch.device("cpu")), device=device)


class BinSums(Accumulator):
    """ECE, MCE, RMSCE, debiased ECE, their parts, accuracy and mean confidence, from 3 x 15 numbers.

    >>> meter = BinSums(bins=2)
    >>> meter.update(probs=[[0.5, 0.5], [0.6, 0.4]], labels=[0, 1])
    >>> meter.update(probs=[[0.8, 0.2], [0.1, 0.9]], labels=[0, 1])
    >>> round(meter.compute()["ece"], 6)
    0.2
    """

    @by_name
    def __init__(self, bins: int = 15, device: torch.device | None = None) -> None:
        super().__init__()
        self.bins = check_bins(bins)
        self.sums = {name: zeros(self.bins, device=device) for name in ("count", "conf", "right")}

    def add_rows(self, rows: Rows) -> None:
        top = rows.top()
        self.add(top.conf, top.right, top.dtype, top.weights)

    def add(self, conf: Tensor, right: Tensor, dtype: torch.dtype | None = None, weights: Tensor | None = None) -> None:
        """Count a batch without checking it, and without waiting for a GPU."""
        where, kind = bin_of(conf, self.bins, dtype), self.sums["count"].dtype
        for name, values in (("count", torch.ones_like(conf)), ("conf", conf), ("right", right)):
            counted = values.to(kind) if weights is None else values.to(kind) * weights.to(kind)
            self.sums[name].index_add_(0, where, counted)

    def table(self) -> BinTable:
        self.checked_count()
        return BinTable(*(self.sums[name].cpu().double().numpy() for name in ("count", "conf", "right")))

    def compute(self) -> dict[str, float]:
        return self.table().figures()
