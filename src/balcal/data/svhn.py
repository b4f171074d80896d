"""SVHN (Netzer et al. 2011), from its Matlab files. `extra_32x32.mat` is not used.

"SVHN, rebuilt" is another form of it: mosaics like those of CIFAR (`cifar.mosaics` reads them), with the digits cropped
anew from the authors' full pictures. Labels and order are the official ones, pixels differ a little.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from balcal.data.dataset import ImageSet, Parts


def cropped(folder: Path) -> Parts:
    return _part(folder / "train_32x32.mat"), _part(folder / "test_32x32.mat")


def _part(path: Path) -> ImageSet:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path, variable_names=("X", "y"))
    except (MatReadError, NotImplementedError, MemoryError) as error:
        raise ValueError(f"{path.name}: {error}") from None
    images = np.ascontiguousarray(found["X"].transpose(3, 0, 1, 2))
    labels = found["y"].reshape(-1).astype(np.int64) % 10  # the digit 0 is class 10 there
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels))
