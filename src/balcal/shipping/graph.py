"""Everything from raw pixels to calibrated probabilities in one module, ready to be traced."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from balcal.data.batches import Pixels
from balcal.model import Model

INPUT, OUTPUTS = "images", ("probs", "log_probs")


class Deployed(nn.Module):
    """Bytes (N, H, W, C), as an image file holds them, in; probabilities and their logarithms (N, K) out.

    Normalisation, resizing, network, fusion and post-hoc map are inside.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model, pixels: Pixels, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.model = model.eval()
        self.shape = shape
        self.register_buffer("scale", pixels.scale.clone())
        self.register_buffer("shift", pixels.shift.clone())
        resized = pixels.side is not None and shape[:2] != (pixels.side, pixels.side)
        for name, length in (("rows", shape[0]), ("columns", shape[1])):
            self.register_buffer(name, resizing(length, pixels.side) if resized and pixels.side else None)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = (images.to(self.scale.dtype) * self.scale - self.shift).permute(0, 3, 1, 2)
        if self.rows is not None:
            seen = self.rows @ seen @ self.columns.mT  # type: ignore[operator]
        log_probs: Tensor = self.model(seen)
        return log_probs.exp(), log_probs


def resizing(length: int, side: int) -> Tensor:
    """The matrix (side, length) that resizes one axis as `Pixels` does: bicubic resizing is linear, axis by axis.

    >>> resizing(4, 2).sum(1)
    tensor([1., 1.])
    """
    unit = torch.eye(length)[None, None]
    size = (side, length)
    resized: Tensor = nn.functional.interpolate(unit, size, mode="bicubic", align_corners=False, antialias=True)
    return resized[0, 0]
