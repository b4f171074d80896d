"""Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale. ICLR 2021.

Norm before attention and before the two-layer perceptron, a class token, learned positions. `forward_features` gives
all tokens after the last norm, `forward_head` takes the class token's. There is no map of channels in it, so
adapter=conv refuses it. Weights start as truncated normal numbers of deviation 0.02, the patch projection by its number
of inputs, the class token and all shifts at 0. `timm:vit_base_patch16_224@pretrained` is the same as `vit-b-16`, with
weights to fine-tune.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.backbones.parts import Described
from balcal.core import BalcalError


class Patches(nn.Module):
    """The image as a row of tokens, the class token first, each with its position."""

    def __init__(self, channels: int, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (side // patch) ** 2, width))
        self.project = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] != self.side or x.shape[3] != self.side:
            raise BalcalError(
                f"this vision transformer is made for {self.side} x {self.side} pixels, the images have "
                f"{x.shape[2]} x {x.shape[3]}: resize them"
            )
        tokens = self.project(x).flatten(2).transpose(1, 2)
        return torch.cat((self.token.expand(x.shape[0], -1, -1), tokens), 1) + self.positions


class Attention(nn.Module):
    """Every token looks at all tokens, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask = nn.Linear(width, 3 * width)
        self.tell = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.ask(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(query, key, value)
        attended: Tensor = self.tell(seen.transpose(1, 2).flatten(2))
        return attended


class Block(nn.Module):
    """Attention, then a perceptron on each token, both added to what they were given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.perceptron(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """A transformer on patches of the image."""

    map_channels = None
    """tokens, no map"""

    def __init__(self, channels: int, side: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.num_features = width
        self.stem = Patches(channels, side, patch, width)
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        nn.init.trunc_normal_(self.stem.positions, std=0.02)
        nn.init.trunc_normal_(self.stem.project.weight, std=1 / math.sqrt(channels * patch**2))
        nn.init.zeros_(self.stem.project.bias)  # type: ignore[arg-type]
        for module in self.body.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def blocks(self) -> list[nn.Module]:
        return [self.stem, *self.body, self.norm]

    def forward_features(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.norm(self.body(self.stem(x)))
        return tokens

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


BACKBONES = {
    "vit-b-16": Described(
        partial(VisionTransformer, side=224, patch=16, width=768, depth=12, heads=12),
        "224 px: ViT-Base, patches of 16 x 16; 85.8 M",
    ),
    "vit-tiny": Described(
        partial(VisionTransformer, side=32, patch=4, width=192, depth=6, heads=3),
        "32 px: ViT-Tiny at half its depth, patches of 4 x 4; 2.7 M",
    ),
}
