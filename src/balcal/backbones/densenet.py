"""Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks. CVPR 2017.

DenseNet-BC-121: four dense blocks of 6, 12, 24, 16 layers, growth rate 32, halved between blocks. `-imagenet` is the
paper's. For small images (`-cifar`, the bare name, and `-tiny`) the stem is a single 3 x 3 convolution to twice the
growth rate, without a norm, as the paper's own networks for CIFAR begin and as the calibration papers from Mukhoti et
al. (NeurIPS 2020) on have it. Nobody has published one for Tiny-ImageNet: `-tiny` does as it does for ResNets.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.backbones.parts import Stem, by_stem, initialise, pooled

GROWTH = 32
LAYERS = (6, 12, 24, 16)


class Layer(nn.Module):
    """Norm, relu, 1 x 1 to four times the growth; norm, relu, 3 x 3: the new maps are put behind its input."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * GROWTH, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat((x, found), 1)


class Transition(nn.Module):
    """Half the channels, half the side."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, before // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """DenseNet-121: every layer sees all maps before it."""

    def __init__(self, channels: int, stem: Stem) -> None:
        super().__init__()
        width = 2 * GROWTH
        if stem.large:
            conv = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
            rest = [nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        else:
            conv, rest = nn.Conv2d(channels, width, 3, padding=1, bias=False), []
        self.stem = nn.Sequential(conv, *rest)
        body = list[nn.Module]()
        for number, count in enumerate(LAYERS):
            if number:
                body.append(Transition(width))
                width //= 2
            body += [Layer(width + GROWTH * layer) for layer in range(count)]
            width += GROWTH * count
        self.body = nn.Sequential(*body)
        self.norm = nn.BatchNorm2d(width)
        self.pool, self.map_channels, self.num_features = stem.pool, width, width * stem.pool**2
        initialise(self)

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *self.body, self.norm]

    def before_norm(self, x: Tensor) -> Tensor:
        feature_map: Tensor = self.body(self.stem(x))
        return feature_map

    def after_norm(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.after_norm(self.before_norm(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return pooled(x, self.pool)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


BACKBONES = by_stem("densenet-121", lambda stem: partial(DenseNet, stem=stem), "6.95 M")
