"""Small networks for small images: seconds per epoch on a CPU."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn


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


BACKBONES = {
    "cnn-28": partial(SmallCnn, side=28, width=16, features=256),
    "cnn-8": partial(SmallCnn, side=8, width=16, features=64),
}
