"""The catalog: every row is complete, and what it says of the images is true."""

import hashlib

import pytest
import torch

from balcal.registry import dataset, table


def test_fashion_is_the_data_it_says_it_is():
    train, test = dataset("fashion").load()
    digests = {
        "train": "dad61577ce16d360e81f75c767c8b344853ef2b1e49d0c1038ae860b631ee3df",
        "test": "0c3e4057a3fe8a69a28189771888f0c49122ec8de082c267e967b987c0b65521",
    }
    for part, name in ((train, "train"), (test, "test")):
        assert hashlib.sha256(part.images[..., 0].contiguous().numpy().tobytes()).hexdigest() == digests[name]
        counts = part.labels.bincount(minlength=10)
        assert counts.min() == counts.max(), "balanced"


@pytest.mark.parametrize("name", [name for name, row in table("datasets").items() if not row.stored])
def test_constants_are_those_of_the_data(name):
    row = dataset(name)
    pixels = row.load()[0].images.float() / 255
    torch.testing.assert_close(pixels.mean((0, 1, 2)), torch.tensor(row.mean), atol=2e-3, rtol=0)
    torch.testing.assert_close(pixels.std((0, 1, 2)), torch.tensor(row.std), atol=2e-3, rtol=0)
    assert row.licence
    assert row.source


@pytest.mark.parametrize("name", sorted(table("datasets")))
def test_every_row_says_what_one_must_know(name):
    row = dataset(name)
    assert len(row.mean) == len(row.std) == row.channels
    assert len(set(row.classes)) == row.num_classes >= 2
    assert row.licence
    assert row.source
    assert all(other in table("datasets") and other != name for other in row.ood)
    for stored in row.stored:
        for form in stored.forms:
            checksums = [c for _, c in form.files] + [d.checksum for d in form.downloads]
            lengths = {"md5": 32, "sha256": 64, "": 0}
            assert all(len(c.partition(":")[2]) == lengths[c.partition(":")[0]] for c in checksums)
