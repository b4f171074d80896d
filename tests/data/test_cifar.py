"""CIFAR in each published format, written small by hand and read back; pickles that are programs; people's labels."""

import io
import pickle
import time

import numpy as np
import pytest
import torch
from data_files import (
    cifar10_members,
    data_folder,
    debris,
    holds,
    images,
    planes,
    png,
    python2_pickle,
    tarred,
    with_test_files,
    write,
)

from balcal.core import BalcalError
from balcal.data import known_files
from balcal.data.cifar import Relabelled, soft_labels, unpickle
from balcal.data.locate import Form, StoredFiles
from balcal.registry import dataset

__all__ = ["data_folder"]


@pytest.mark.parametrize("kind", ["py", "py3", "bin"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar10(kind, packed, data_folder, tmp_path):
    folder = f"cifar-10-batches-{kind[:2] if kind != 'bin' else kind}"
    members, train, test = cifar10_members(folder, kind)
    if packed:
        archive = tarred(data_folder / "packed.tar.gz", members)
        stored = with_test_files(known_files.CIFAR10, folder, archive)
    else:
        write(data_folder, members)
        stored = with_test_files(known_files.CIFAR10, folder)
    found = stored()
    assert holds(found[0], *train)
    assert holds(found[1], *test)
    assert stored()[0] is found[0], "read once"
    assert debris(tmp_path / "cache") == (sorted([folder, *(n for n, _ in members)]) if packed else [])


def test_cifar100(data_folder):
    x, fine, coarse = images(5), [7, 99, 0, 50, 3], [1, 2, 3, 4, 5]
    record = python2_pickle({b"data": planes(x), b"fine_labels": fine, b"coarse_labels": coarse})
    write(data_folder, [(f"cifar-100-python/{part}", record) for part in ("train", "test")])
    assert holds(with_test_files(known_files.CIFAR100, "cifar-100-python")()[1], x, fine)
    raw = np.concatenate([np.array([coarse, fine], np.uint8).T, planes(x)], 1).tobytes()
    write(data_folder, [(f"cifar-100-binary/{part}.bin", raw) for part in ("train", "test")])
    assert holds(with_test_files(known_files.CIFAR100, "cifar-100-binary")()[0], x, fine)


def test_mosaics(data_folder):
    x = images(7)
    tiles = np.zeros((3, 3, 32, 32, 3), np.uint8)
    tiles.reshape(9, 32, 32, 3)[:7] = x
    sheet = png(tiles.swapaxes(1, 2).reshape(96, 96, 3))
    buffer = io.BytesIO()
    np.savez(buffer, train=np.arange(7, dtype=np.uint8), test=np.arange(4, dtype=np.uint8))
    write(data_folder / "mine", [("train-1.png", sheet), ("test.png", sheet), ("labels.npz", buffer.getvalue())])
    reader = known_files.CIFAR10.forms[2].read
    stored = StoredFiles("mine", (Form("mine", (("labels.npz", ""), ("train-1.png", "")), reader),))
    assert holds(stored()[0], x, range(7))
    assert holds(stored()[1], x[:4], range(4))


def test_labels_by_people(data_folder):
    members, train, test = cifar10_members("cifar-10-batches-py", "py")
    write(data_folder, members)
    pictures = with_test_files(known_files.CIFAR10, "cifar-10-batches-py")
    noisy = train[1].copy()
    noisy[:4] = 9 - noisy[:4]
    write(data_folder / "cifar-10-100n", [("data/CIFAR-10_human.pt", b"")])
    torch.save({"worse_label": noisy, "clean_label": train[1]}, data_folder / "cifar-10-100n/data/CIFAR-10_human.pt")
    labels = with_test_files(known_files.CIFAR10N, "cifar-10-100n/data")
    found = Relabelled(pictures, labels, "worse")()
    assert holds(found[0], train[0], noisy)
    assert holds(found[1], *test)
    torch.save({"worse_label": noisy[::-1].copy()}, data_folder / "cifar-10-100n/data/CIFAR-10_human.pt")
    with pytest.raises(BalcalError, match="both must be in the original order"):
        Relabelled(pictures, labels, "worse")()
    write(data_folder / "cifar-10h", [("data/cifar10h-counts.npy", b"")])
    np.save(data_folder / "cifar-10h/data/cifar10h-counts.npy", [[1, 3], [2, 0]])
    assert soft_labels(with_test_files(known_files.CIFAR10H, "cifar-10h/data")).tolist() == [[0.25, 0.75], [1, 0]]
    with pytest.raises(BalcalError, match="nobody has asked people"):
        dataset("cifar100").soft_labels()


class Malicious:
    def __reduce__(self):
        return time.sleep, (0,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_asks_for_more_than_arrays_is_refused(protocol, data_folder):
    with pytest.raises(pickle.UnpicklingError, match=r"it asks for `time.sleep`"):
        unpickle(io.BytesIO(pickle.dumps({"data": Malicious()}, protocol)))
    members, _, _ = cifar10_members("cifar-10-batches-py", "py")
    write(data_folder, [*members, ("cifar-10-batches-py/data_batch_3", pickle.dumps(Malicious(), protocol))])
    with pytest.raises(BalcalError, match=r"cannot be read as cifar10: it asks for `time.sleep`.*malicious"):
        with_test_files(known_files.CIFAR10, "cifar-10-batches-py")()


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy\nndarray\n(K\x05tR.",
        b"c_codecs\nencode\n(VA\nVrot13\ntR.",
        b"\x80\x02",
        b"",
        b"garbage",
    ],
)
def test_pickles_by_hand_are_refused(raw):
    with pytest.raises((pickle.UnpicklingError, EOFError, TypeError, ValueError, IndexError, KeyError)):
        unpickle(io.BytesIO(raw))


def test_arrays_in_pickles_survive():
    record = {"a": np.arange(6).reshape(2, 3), "b": [1, "x", b"y", None, 2.5], "c": np.array(["ab", "c"])}
    for protocol in range(5):
        found = unpickle(io.BytesIO(pickle.dumps(record, protocol)))
        assert np.array_equal(found["a"], record["a"])
        assert found["b"] == record["b"]
