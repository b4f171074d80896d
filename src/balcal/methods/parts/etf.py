"""The simplex equiangular tight frame (ETF), the adapters before it, and the largest confidence that beta allows."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from balcal.core import BalcalError


def simplex_etf(features: int, num_classes: int, rng: Generator | None = None) -> Tensor:
    """M (D, K) = sqrt(K / (K-1)) Q V^T: K unit columns that sum to zero, every pair at cosine -1/(K-1).

    V is an orthonormal basis of the plane where coordinates sum to zero, Q a random orthonormal frame (Gaussian, QR,
    signs fixed: every orientation is equally likely). K vectors of this kind need only K-1 dimensions.

    >>> simplex_etf(1, 2).abs()
    tensor([[1., 1.]])
    """
    if num_classes < 2:
        raise BalcalError(f"a classifier needs at least 2 classes, not {num_classes}")
    if features < num_classes - 1:
        raise BalcalError(
            f"{num_classes} equiangular directions need at least {num_classes - 1} dimensions, there are {features}: "
            "use an adapter, which widens the feature, or a wider backbone"
        )
    draw = torch.randn(features, num_classes - 1, dtype=torch.float64, generator=rng)
    q, r = torch.linalg.qr(draw)
    frame: Tensor = (
        math.sqrt(num_classes / (num_classes - 1)) * (q * r.diagonal().sign()) @ _zero_sum_basis(num_classes).T
    )
    return frame.float()


def _zero_sum_basis(num_classes: int) -> Tensor:
    """V (K, K-1), Helmert's: column j is (1, ..., 1, -j, 0, ..., 0) with j ones, at unit length."""
    j = torch.arange(1, num_classes, dtype=torch.float64)
    rows = torch.arange(num_classes, dtype=torch.float64)[:, None]
    columns = torch.where(rows < j, 1.0, torch.where(rows == j, -j, 0.0))
    return columns / (j * (j + 1)).sqrt()


def adapted_width(features: int, num_classes: int) -> int:
    """D': the feature's own width where the frame fits into it, else K."""
    return features if features >= num_classes - 1 else num_classes


class Adapter(nn.Module):
    """From the backbone's features to the ETF classifier's."""

    @property
    def linear_path(self) -> nn.Module | None:
        """P in A(z) = P z + (the rest), where it is a layer of its own"""
        return None

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        raise NotImplementedError


class VectorAdapter(Adapter):
    """A(z) = P z + W2 relu(norm(W1 z)): a residual bottleneck on the pooled vector, signed output.

    P is the identity when the width does not change. The norm is a LayerNorm: the same in training and in use, for one
    sample and for many, in one process and in several.
    """

    def __init__(self, features: int, width: int, bottleneck: int | None = None) -> None:
        super().__init__()
        bottleneck = bottleneck or max(1, features // 2)
        self.skip = nn.Identity() if width == features else nn.Linear(features, width, bias=False)
        self.branch = nn.Sequential(
            nn.Linear(features, bottleneck), nn.LayerNorm(bottleneck), nn.ReLU(), nn.Linear(bottleneck, width)
        )

    @property
    def linear_path(self) -> nn.Module:
        return self.skip

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        adapted: Tensor = self.skip(features) + self.branch(features)
        return adapted


class ConvAdapter(Adapter):
    """The released code's residual convolution on the last feature map, pooled; signed output (no last ReLU)."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        bottleneck = max(1, features // 2)
        self.branch = nn.Sequential(
            nn.BatchNorm2d(features),
            nn.ReLU(),
            nn.Conv2d(features, bottleneck, 3, padding=1, bias=False),
            nn.BatchNorm2d(bottleneck),
            nn.ReLU(),
            nn.Conv2d(bottleneck, features, 3, padding=1, bias=False),
        )
        self.norm = nn.BatchNorm2d(features)
        self.widen = nn.Identity() if width == features else nn.Linear(features, width, bias=False)

    @property
    def linear_path(self) -> nn.Module:
        return self.widen

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        if feature_map is None or feature_map.ndim != 4:
            raise BalcalError(
                "adapter=conv needs a backbone whose forward_features gives a map (N, C, H, W): use adapter=vector"
            )
        adapted: Tensor = self.widen(self.norm(feature_map + self.branch(feature_map)).mean((2, 3)))
        return adapted


class NoAdapter(Adapter):
    """The feature as it is."""

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Tensor:
        return features


def largest_confidence(beta: float, num_classes: int) -> float:
    """Of a unit feature along one column: its logit is beta there and -beta/(K-1) for the other classes.

    >>> round(largest_confidence(1, 10), 4), round(largest_confidence(10, 10), 4)
    (0.2524, 0.9999)
    """
    others = num_classes - 1
    return 1 / (1 + others * math.exp(-beta * num_classes / others))
