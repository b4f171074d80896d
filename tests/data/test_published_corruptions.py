"""Published corruptions, written small by hand and read back."""

import numpy as np
import pytest
from data_files import data_folder, holds, images, png, write

from balcal.core import BalcalError
from balcal.data.published_corruptions import CORRUPTIONS, SHIFTS

__all__ = ["data_folder"]


def test_published_corruptions(data_folder):
    name, x = SHIFTS["cifar10-c"], images(50)
    folder = data_folder / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(np.arange(10), 5))
    for corruption in CORRUPTIONS:
        np.save(folder / f"{corruption}.npy", x)
    assert holds(name.load("fog", 1), x[:10], range(10))
    assert holds(name.load("fog", 5), x[40:], range(10))
    with pytest.raises(BalcalError, match="no 'fog' of severity 6"):
        name.load("fog", 6)
    with pytest.raises(BalcalError, match="no 'rain' of severity 1"):
        name.load("rain", 1)
    np.save(folder / "snow.npy", x[:48])
    with pytest.raises(BalcalError, match=r"snow.npy has 48 images and labels.npy 50 labels"):
        name.load("snow", 1)
    y = images(4, 64)
    for corruption in CORRUPTIONS:
        write(data_folder / "Tiny-ImageNet-C" / corruption / "3", [(f"n0{i % 2}/{i}.png", png(y[i])) for i in range(4)])
    assert holds(SHIFTS["tiny-imagenet-c"].load("frost", 3), y[[0, 2, 1, 3]], [0, 0, 1, 1])
