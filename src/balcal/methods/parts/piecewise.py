"""A map of single probabilities made of straight pieces, for isotonic regression and for histograms."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from balcal.methods.parts.fitted_map import FittedMap, keep_top

TIE = 1e-9


class Piecewise(FittedMap):
    """For p in (edge_{i-1}, edge_i] the table says height_i + slope_i * (p - left_i); then rows are made to sum to 1.

    With one row of pieces they serve all classes, and the order of the classes is kept: 1e-9 * p is added, and the
    largest stays the largest. With K rows each class has its own.

    A frequency of exactly 0 or 1 would make the NLL infinite, and no finite set proves it. So values are kept between
    `floor` and 1 - `floor`; the floor is half a sample among all that a row of pieces was fitted on.
    """

    varying: ClassVar[tuple[str, ...]] = ("edges", "left", "height", "slope")
    edges: Tensor
    left: Tensor
    height: Tensor
    slope: Tensor
    floor: Tensor

    def __init__(self, edges: Tensor, left: Tensor, height: Tensor, slope: Tensor, floor: float) -> None:
        super().__init__(
            edges=edges, left=left, height=height, slope=slope, floor=torch.tensor(floor, dtype=torch.float64)
        )

    @classmethod
    def identity(cls, rows: int, pieces: int = 1) -> Piecewise:
        """Every piece lies on the diagonal."""
        edges = torch.arange(1, pieces, dtype=torch.float64) / pieces
        zero = torch.zeros(rows, pieces)
        return cls(edges.repeat(rows, 1), zero, zero, zero + 1, 0.0)

    @property
    def pooled(self) -> bool:
        return len(self.edges) == 1

    def table(self, probs: Tensor) -> Tensor:
        """(N, K) -> (N, K), as fitted: not yet kept off 0 and 1, rows not yet summing to one."""
        p = probs.reshape(1, -1) if self.pooled else probs.T.contiguous()
        piece = torch.searchsorted(self.edges.to(p), p)
        left, height, slope = (t.to(p).gather(1, piece) for t in (self.left, self.height, self.slope))
        q = height + slope * (p - left)
        return q.reshape(probs.shape) if self.pooled else q.T

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        calibrated = super().of_log_probs(log_probs)
        return keep_top(calibrated, log_probs) if self.pooled else calibrated

    def calibrated(self, scores: Tensor) -> Tensor:
        p = scores.softmax(-1)
        floor = self.floor.to(p).clamp(min=torch.finfo(p.dtype).tiny)
        q = torch.minimum(torch.maximum(self.table(p), floor), 1 - floor)
        q = q + TIE * p if self.pooled else q
        return (q / q.sum(-1, keepdim=True)).log()
