"""A contact sheet: a row for each corruption; the image as it is, then severities 1 to 5.

python results/scripts/corruptions.py                       images of fashion, to docs/corruptions.png
python results/scripts/corruptions.py FILE.npy SHEET.png    your images: bytes (N, H, W, C), six columns for each
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from folders import DOCS
from PIL import Image, ImageDraw

from balcal.data.catalog import fashion
from balcal.data.corruptions import CORRUPTIONS, EXTRA, ROTATION, SEVERITIES, corrupt

GAP, LABEL = 4, 120


def sheet(images: np.ndarray, enlarge: int) -> Image.Image:
    side = images.shape[1] * enlarge
    cell, block = side + GAP, (side + GAP) * (len(SEVERITIES) + 1) + 2 * GAP
    names = (*CORRUPTIONS, *EXTRA, ROTATION)
    paper = Image.new("RGB", (LABEL + block * len(images), cell * len(names)), "white")
    write = ImageDraw.Draw(paper)
    for row, name in enumerate(names):
        write.text((GAP, row * cell + side // 2 - 6), name, "black")
        for column, severity in enumerate((0, *SEVERITIES)):
            shown = corrupt(images, name, severity) if severity else images
            for number, image in enumerate(np.broadcast_to(shown, (*shown.shape[:3], 3))):
                tile = Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.NEAREST)
                paper.paste(tile, (LABEL + number * block + column * cell, row * cell))
    return paper


def main() -> None:
    given = sys.argv[1:]
    images = np.load(given[0]) if given else fashion()[1].images[[0, 3]].numpy()
    to = Path(given[1]) if given else DOCS / "corruptions.png"
    sheet(images, max(1, 64 // images.shape[1])).save(to, optimize=True)
    print(to)


if __name__ == "__main__":
    main()
