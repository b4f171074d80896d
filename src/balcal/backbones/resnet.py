"""He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition. CVPR 2016.

ResNet-18 to 101 have four stages of 64 to 512 channels (times four out of a bottleneck). Their stem is the paper's in
`-imagenet`; small images get a 3 x 3 convolution and no pooling (`-cifar`, the bare name, and `-tiny`). In `-tiny` the
last map is pooled to 2 x 2, not 1 x 1, so that a ResNet-50 has 8192 features: that is the network which MbLS
configures, whose protocol the BalCAL paper follows on Tiny-ImageNet. The stride of a bottleneck is in its 3 x 3
convolution, as in later code, and not in the 1 x 1 before.

ResNet-8 to 110 (depth 6n + 2) are the paper's own for CIFAR: three stages of 16, 32, 64 channels, and where the shape
changes the identity, padded with zeros (option A), which has no weights. "ResNet-110" in the code of Mukhoti et al.
(NeurIPS 2020) is another network: bottlenecks 3, 4, 26, 3 over 64 to 512 channels.

Norms start at scale 1, the last ones of blocks too: starting those at 0 is of later papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from balcal.backbones.parts import STEMS, Described, Stem, by_stem, initialise, pooled

Shortcut = Callable[[int, int, int], nn.Module]


class Padded(nn.Module):
    """Option A: every stride-th pixel, and zeros for the channels that are new."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = after - before, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))


def projected(before: int, after: int, stride: int) -> nn.Module:
    """Option B: a 1 x 1 convolution and a norm."""
    return nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))


class Basic(nn.Module):
    """Two 3 x 3 convolutions."""

    growth = 1

    def __init__(self, before: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = None if before == width and stride == 1 else shortcut(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.shortcut is None else self.shortcut(x)
        return F.relu(skip + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Bottleneck(nn.Module):
    """1 x 1 to `width`, 3 x 3, 1 x 1 to four times as many."""

    growth = 4

    def __init__(self, before: int, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        after = self.growth * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(after)
        self.shortcut = None if before == after and stride == 1 else shortcut(before, after, stride)

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.shortcut is None else self.shortcut(x)
        x = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(skip + self.norm3(self.conv3(x)))


class ResNet(nn.Module):
    """A residual network with the norm after each convolution and relu after each sum."""

    def __init__(
        self,
        channels: int,
        block: type[Basic | Bottleneck],
        counts: Sequence[int],
        widths: Sequence[int],
        stem: Stem,
        shortcut: Shortcut = projected,
    ) -> None:
        """`widths`: of the stem, then of each stage; `counts`: the blocks in each stage."""
        super().__init__()
        if stem.large:
            conv = nn.Conv2d(channels, widths[0], 7, stride=2, padding=3, bias=False)
            pool: list[nn.Module] = [nn.MaxPool2d(3, stride=2, padding=1)]
        else:
            conv, pool = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), []
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(widths[0]), nn.ReLU(), *pool)
        before, body = widths[0], list[nn.Module]()
        for stage, (width, count) in enumerate(zip(widths[1:], counts, strict=True)):
            for number in range(count):
                body.append(block(before, width, 2 if stage and not number else 1, shortcut))
                before = block.growth * width
        self.body = nn.Sequential(*body)
        self.pool, self.map_channels, self.num_features = stem.pool, before, before * stem.pool**2
        initialise(self)

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *self.body]

    def forward_features(self, x: Tensor) -> Tensor:
        feature_map: Tensor = self.body(self.stem(x))
        return feature_map

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return pooled(x, self.pool)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


FOUR_STAGES: dict[int, tuple[type[Basic | Bottleneck], tuple[int, ...], str]] = {
    18: (Basic, (2, 2, 2, 2), "11.2 M"),
    34: (Basic, (3, 4, 6, 3), "21.3 M"),
    50: (Bottleneck, (3, 4, 6, 3), "23.5 M"),
    101: (Bottleneck, (3, 4, 23, 3), "42.5 M"),
}
THREE_STAGES = {8: "0.075 M", 20: "0.27 M", 56: "0.85 M", 110: "1.73 M"}


def four_stages(depth: int, stem: Stem) -> Callable[[int], nn.Module]:
    block, counts, _ = FOUR_STAGES[depth]
    return partial(ResNet, block=block, counts=counts, widths=(64, 64, 128, 256, 512), stem=stem)


def three_stages(depth: int, widen: int = 1, shortcut: Shortcut = Padded) -> Callable[[int], nn.Module]:
    """Depth 6n + 2: the stem, 3 stages of n blocks of two convolutions, the classifier."""
    widths = (16, 16 * widen, 32 * widen, 64 * widen)
    counts = 3 * [(depth - 2) // 6]
    return partial(ResNet, block=Basic, counts=counts, widths=widths, stem=STEMS["cifar"], shortcut=shortcut)


BACKBONES = {
    name: entry
    for depth, (_, _, size) in FOUR_STAGES.items()
    for name, entry in by_stem(f"resnet-{depth}", partial(four_stages, depth), size).items()
} | {
    f"resnet-{depth}": Described(three_stages(depth), f"32 px: He et al.'s for CIFAR, narrow; {size}")
    for depth, size in THREE_STAGES.items()
}
