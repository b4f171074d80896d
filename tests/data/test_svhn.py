"""SVHN, written small by hand and read back."""

import io
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
from data_files import data_folder, holds, images, png, with_test_files, write

from balcal import registry
from balcal.core import BalcalError
from balcal.data import known_files
from balcal.data.locate import StoredFiles

__all__ = ["data_folder"]


def test_svhn_has_its_ten_as_zero(data_folder):
    x, y = images(4), np.array([10, 1, 9, 5], np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(data_folder / f"{part}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y[:, None]})
    assert holds(with_test_files(known_files.SVHN, ".")()[0], x, [0, 1, 9, 5])
    (data_folder / "test_32x32.mat").write_bytes((data_folder / "test_32x32.mat").read_bytes()[:2000])
    with pytest.raises(BalcalError, match="cannot be read as svhn"):
        with_test_files(known_files.SVHN, ".")()


def test_svhn_in_mosaics_is_called_rebuilt(data_folder):
    """Eight sheets for training, three for testing, the last of each with black tiles at its end."""
    x = images(33)
    sheets = [(f"train-{i}.jpg", x[3 * i - 3 : 3 * i]) for i in range(1, 9)]
    sheets += [(f"test-{i}.webp", x[21 + 3 * i : 24 + 3 * i]) for i in range(1, 4)]
    buffer = io.BytesIO()
    np.savez(buffer, train=np.arange(23) % 10, test=np.arange(7) % 10)
    files = [(name, png(tiles.swapaxes(0, 1).reshape(32, 96, 3))) for name, tiles in sheets]
    write(data_folder / "svhn", [*files, ("labels.npz", buffer.getvalue())])
    form = known_files.SVHN.forms[-1]
    assert {name for name, _ in form.files} == {name for name, _ in files} | {"labels.npz"}
    stored = StoredFiles(
        "svhn", (*known_files.SVHN.forms[:-1], replace(form, files=tuple((n, "") for n in form.names)))
    )
    assert holds(stored()[0], x[:23], np.arange(23) % 10)
    assert holds(stored()[1], x[24:31], np.arange(7) % 10)
    assert stored.find().form.title == "SVHN, rebuilt"
    row = replace(registry.dataset("svhn"), load=stored)
    assert row.title == "SVHN, rebuilt"
    for part in ("train", "test"):
        labels = np.array([10, 1], np.uint8)[:, None]
        scipy.io.savemat(data_folder / f"{part}_32x32.mat", {"X": x[:2].transpose(1, 2, 3, 0), "y": labels})
    assert row.title == "", "the authors' own files come first"
