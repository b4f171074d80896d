"""A contact sheet of a data set: ten images of each class beside its name."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from balcal.data.dataset import ImageSet
from balcal.runtime.files import write_atomic

ACROSS = 10
"""images of each class"""
MOST_CLASSES = 100
ROWS = 20
"""classes below each other before another column begins"""
TILE, GAP, TEXT = 48, 2, 120
"""pixels: an image, the space beside it, a class's name"""


def contact_sheet(part: ImageSet, classes: Sequence[str], path: Path) -> int:
    """Write the sheet as PNG; returns how many classes are on it.

    >>> import tempfile, torch
    >>> part = ImageSet(torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> contact_sheet(part, ["cats", "dogs"], Path(tempfile.mkdtemp()) / "sheet.png")
    2
    """
    shown = list(classes)[:MOST_CLASSES]
    rows = min(ROWS, len(shown))
    columns = -(-len(shown) // rows)
    step, block = TILE + GAP, TEXT + ACROSS * (TILE + GAP) + 2 * GAP
    sheet = Image.new("RGB", (columns * block + GAP, rows * step + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for k, name in enumerate(shown):
        left, top = k // rows * block + 2 * GAP, k % rows * step + GAP
        draw.text((left, top + TILE // 2), _fitting(name.replace("_", " "), draw, font), "black", font, anchor="lm")
        members = (part.labels == k).nonzero()[:ACROSS, 0]
        for place, pixels in enumerate(part.pick(members).cpu().numpy() if len(members) else ()):
            image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
            large = image.convert("RGB").resize((TILE, TILE), _kernel(pixels.shape[0]))
            sheet.paste(large, (left + TEXT + place * step, top))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    write_atomic(path, buffer.getvalue())
    return len(shown)


def _kernel(side: int) -> Image.Resampling:
    """Small images keep their pixels; large ones are smoothed, so that they do not alias."""
    return Image.Resampling.NEAREST if side < TILE else Image.Resampling.LANCZOS


def _fitting(text: str, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if draw.textlength(text, font) <= TEXT - 3 * GAP:
        return text
    while text and draw.textlength(f"{text}…", font) > TEXT - 3 * GAP:
        text = text[:-1]
    return f"{text}…"
