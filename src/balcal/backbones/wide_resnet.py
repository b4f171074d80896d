"""Zagoruyko, Komodakis: Wide Residual Networks. BMVC 2016.

WRN-d-k: depth d = 6n + 4, three stages of n blocks with 16k, 32k, 64k channels, norm and relu before each convolution.

WRN-26-10 is no such network: 26 is not 6n + 4. The name comes from the code of Mukhoti et al. (Calibrating Deep Neural
Networks using Focal Loss, NeurIPS 2020), which DualFocal builds on and whose protocol the BalCAL paper follows for it:
He et al.'s network for CIFAR, d = 6n + 2, with ten times the channels. So n is 4, as in WRN-28-10, and the
convolutions are the same; but norms come after them, also after the stem and the 1 x 1 convolutions of shortcuts. (28
counts all convolutions, those three too; 26 counts the others and the classifier.) 36,481,434 parameters with ten
classes, WRN-28-10 has 36,479,194.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from balcal.backbones.parts import Described, initialise
from balcal.backbones.resnet import projected, three_stages


class Block(nn.Module):
    """Pre-activation: norm, relu, conv, twice; the shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = skip + self.conv2(F.relu(self.norm2(self.conv1(active))))
        return out


class WideResNet(nn.Module):
    """A residual network with few, wide layers; norm and relu before each convolution."""

    def __init__(self, channels: int, depth: int, widen: int) -> None:
        super().__init__()
        count, rest = divmod(depth - 4, 6)
        if rest or count < 1:
            raise ValueError(f"the depth of a wide ResNet is 6n + 4, not {depth}")
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
        self.num_features = widths[-1]
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.groups = nn.ModuleList(
            nn.Sequential(Block(before, after, stride), *(Block(after, after, 1) for _ in range(count - 1)))
            for before, after, stride in zip(widths, widths[1:], (1, 2, 2), strict=False)
        )
        self.norm = nn.BatchNorm2d(self.num_features)
        initialise(self)

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *(block for group in self.groups for block in group), self.norm]  # type: ignore[attr-defined]

    def before_norm(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for group in self.groups:
            x = group(x)
        return x

    def after_norm(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.after_norm(self.before_norm(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


SIZES = {
    (10, 1): "0.08 M",
    (16, 2): "0.69 M",
    (16, 4): "2.75 M",
    (28, 10): "36.5 M",
    (40, 2): "2.24 M",
}
BACKBONES = {
    f"wrn-{depth}-{widen}": Described(
        partial(WideResNet, depth=depth, widen=widen), f"32 px: wide ResNet, norm before convolution; {size}"
    )
    for (depth, widen), size in SIZES.items()
}
BACKBONES["wrn-26-10"] = Described(
    three_stages(26, 10, projected), "32 px: Mukhoti et al.'s wide ResNet, norm after convolution; 36.5 M"
)
