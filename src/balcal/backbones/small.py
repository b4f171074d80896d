"""Small networks for small images: seconds per epoch on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from balcal.backbones.parts import Described, initialise


class SmallCnn(nn.Module):
    """Two convolutions and a wide hidden layer: learns fast and overfits. No norm, no dropout."""

    def __init__(self, channels: int, side: int, width: int, features: int) -> None:
        super().__init__()
        self.num_features, self.map_channels = features, 2 * width
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * (side // 4) ** 2, features), nn.ReLU())

    def blocks(self) -> list[nn.Module]:
        return [self.stem, self.body, self.neck]

    def forward_features(self, x: Tensor) -> Tensor:
        feature_map: Tensor = self.body(self.stem(x))
        return feature_map

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        features: Tensor = self.neck(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


DEVIATIONS = (
    (3.2, 0.6, 0.6, 0.24),  # brightness: mean, vertical and horizontal step, checkerboard
    (0.9, 0.13, 0.13, 0.05),  # red against blue
    (0.45, 0.075, 0.075, 0.035),  # green against both
)
"""of 2 x 2 patches of natural images, normalised per channel (CIFAR-10, rounded; CIFAR-100 differs by a fifth)"""


def whitening() -> Tensor:
    """(24, 3, 2, 2): filters that make the numbers of a 2 x 2 colour patch uncorrelated and of unit size, and their
    negatives. Steps between neighbours are small in images: whitened, they are seen from the first epoch on."""
    steps = torch.tensor([[1.0, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]) / 2
    colours = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])
    colours = colours / colours.norm(dim=1, keepdim=True)
    filters = torch.einsum("ac,bp,ab->abcp", colours, steps, 1 / torch.tensor(DEVIATIONS)).reshape(12, 3, 2, 2)
    return torch.cat([filters, -filters])


class FastCnn(nn.Module):
    """Three stages of two convolutions, as in Jordan's airbench: most accuracy for a few minutes of CPU.

    The stem has no padding, so that maps of 32 px images have sides of 31, 15, 7 and 3 pixels. On colour images it
    starts with filters that whiten patches (`whitening`). Pooling comes before the norm: a quarter of the numbers is
    left to normalise. Features are the largest value of each channel.
    """

    def __init__(self, channels: int, stem: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.num_features = self.map_channels = widths[-1]
        first = nn.Conv2d(channels, stem, 2)
        self.stem = nn.Sequential(first, nn.ReLU())
        pairs = zip([stem, *widths], widths, strict=False)
        self.body = nn.Sequential(*(self._stage(before, after) for before, after in pairs))
        initialise(self)
        if first.weight.shape == (24, 3, 2, 2) and first.bias is not None:
            with torch.no_grad():
                first.weight.copy_(whitening())
                first.bias.zero_()

    @staticmethod
    def _stage(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        )

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *self.body]

    def forward_features(self, x: Tensor) -> Tensor:
        feature_map: Tensor = self.body(self.stem(x))
        return feature_map

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x.amax((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


BACKBONES = {
    "cnn-28": partial(SmallCnn, side=28, width=16, features=256),
    "cnn-8": partial(SmallCnn, side=8, width=16, features=64),
    "cnn-32": Described(
        partial(FastCnn, stem=24, widths=(64, 128, 256)), "32 px: 7 convolutions, maximum over places; 1.16 M"
    ),
}
