"""SVHN, written small by hand and read back."""

import numpy as np
import pytest
import scipy.io
from data_files import data_folder, holds, images, with_test_files

from balcal.core import BalcalError
from balcal.data import known_files

__all__ = ["data_folder"]


def test_svhn_has_its_ten_as_zero(data_folder):
    x, y = images(4), np.array([10, 1, 9, 5], np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(data_folder / f"{part}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y[:, None]})
    assert holds(with_test_files(known_files.SVHN, ".")()[0], x, [0, 1, 9, 5])
    (data_folder / "test_32x32.mat").write_bytes((data_folder / "test_32x32.mat").read_bytes()[:2000])
    with pytest.raises(BalcalError, match="cannot be read as svhn"):
        with_test_files(known_files.SVHN, ".")()
