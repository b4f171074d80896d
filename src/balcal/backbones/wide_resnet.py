"""Zagoruyko, Komodakis: Wide Residual Networks. BMVC 2016. WRN-d-k: depth d = 6n + 4, widths 16k, 32k, 64k."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F


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
    """A wide ResNet for images of 32 x 32 and thereabouts."""

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
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *(block for group in self.groups for block in group), self.norm]  # type: ignore[attr-defined]

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for group in self.groups:
            x = group(x)
        return F.relu(self.norm(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


BACKBONES = {
    f"wrn-{depth}-{widen}": partial(WideResNet, depth=depth, widen=widen)
    for depth, widen in ((10, 1), (16, 2), (16, 4), (28, 10))
}
