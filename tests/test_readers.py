"""Each published format, written small by hand and read back."""

import io
import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch
from data_files import (
    cifar10_members,
    debris,
    images,
    like,
    place,
    planes,
    png,
    python2_pickle,
    tarred,
    tiny_members_of,
    write,
    zipped,
)
from PIL import Image

from balcal import registry
from balcal.core import BalcalError
from balcal.data import decoded, sources
from balcal.data.cifar import Relabelled, soft_labels
from balcal.data.decoding import picture
from balcal.data.pickled import unpickle
from balcal.data.roles import digest
from balcal.data.shifted import CORRUPTIONS, SHIFTS
from balcal.data.stored import Form, Stored
from balcal.registry import dataset, table

__all__ = ["place"]


def holds(part, pictures, labels):
    return np.array_equal(part.images.numpy(), pictures) and part.labels.tolist() == list(labels)


@pytest.mark.parametrize("kind", ["py", "py3", "bin"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar10(kind, packed, place, tmp_path):
    folder = f"cifar-10-batches-{kind[:2] if kind != 'bin' else kind}"
    members, train, test = cifar10_members(folder, kind)
    if packed:
        archive = tarred(place / "packed.tar.gz", members)
        stored = like(sources.CIFAR10, folder, archive)
    else:
        write(place, members)
        stored = like(sources.CIFAR10, folder)
    found = stored()
    assert holds(found[0], *train)
    assert holds(found[1], *test)
    assert stored()[0] is found[0], "read once"
    assert debris(tmp_path / "cache") == (sorted([folder, *(n for n, _ in members)]) if packed else [])


def test_cifar100(place):
    x, fine, coarse = images(5), [7, 99, 0, 50, 3], [1, 2, 3, 4, 5]
    record = python2_pickle({b"data": planes(x), b"fine_labels": fine, b"coarse_labels": coarse})
    write(place, [(f"cifar-100-python/{part}", record) for part in ("train", "test")])
    assert holds(like(sources.CIFAR100, "cifar-100-python")()[1], x, fine)
    raw = np.concatenate([np.array([coarse, fine], np.uint8).T, planes(x)], 1).tobytes()
    write(place, [(f"cifar-100-binary/{part}.bin", raw) for part in ("train", "test")])
    assert holds(like(sources.CIFAR100, "cifar-100-binary")()[0], x, fine)


def test_mosaics(place):
    x = images(7)
    tiles = np.zeros((3, 3, 32, 32, 3), np.uint8)
    tiles.reshape(9, 32, 32, 3)[:7] = x
    sheet = png(tiles.swapaxes(1, 2).reshape(96, 96, 3))
    buffer = io.BytesIO()
    np.savez(buffer, train=np.arange(7, dtype=np.uint8), test=np.arange(4, dtype=np.uint8))
    write(place / "mine", [("train-1.png", sheet), ("test.png", sheet), ("labels.npz", buffer.getvalue())])
    reader = sources.CIFAR10.forms[2].read
    stored = Stored("mine", (Form("mine", (("labels.npz", ""), ("train-1.png", "")), reader),))
    assert holds(stored()[0], x, range(7))
    assert holds(stored()[1], x[:4], range(4))


def test_svhn_has_its_ten_as_zero(place):
    x, y = images(4), np.array([10, 1, 9, 5], np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(place / f"{part}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y[:, None]})
    assert holds(like(sources.SVHN, ".")()[0], x, [0, 1, 9, 5])
    (place / "test_32x32.mat").write_bytes((place / "test_32x32.mat").read_bytes()[:2000])
    with pytest.raises(BalcalError, match="cannot be read as svhn"):
        like(sources.SVHN, ".")()


def test_svhn_in_mosaics_is_called_rebuilt(place):
    """Eight sheets for training, three for testing, the last of each with black tiles at its end."""
    x = images(33)
    sheets = [(f"train-{i}.jpg", x[3 * i - 3 : 3 * i]) for i in range(1, 9)]
    sheets += [(f"test-{i}.webp", x[21 + 3 * i : 24 + 3 * i]) for i in range(1, 4)]
    buffer = io.BytesIO()
    np.savez(buffer, train=np.arange(23) % 10, test=np.arange(7) % 10)
    files = [(name, png(tiles.swapaxes(0, 1).reshape(32, 96, 3))) for name, tiles in sheets]
    write(place / "svhn", [*files, ("labels.npz", buffer.getvalue())])
    form = sources.SVHN.forms[-1]
    assert {name for name, _ in form.files} == {name for name, _ in files} | {"labels.npz"}
    stored = Stored("svhn", (*sources.SVHN.forms[:-1], replace(form, files=tuple((n, "") for n in form.names))))
    assert holds(stored()[0], x[:23], np.arange(23) % 10)
    assert holds(stored()[1], x[24:31], np.arange(7) % 10)
    assert stored.find().form.title == "SVHN, rebuilt"
    row = replace(registry.dataset("svhn"), load=stored)
    assert row.title == "SVHN, rebuilt"
    for part in ("train", "test"):
        labels = np.array([10, 1], np.uint8)[:, None]
        scipy.io.savemat(place / f"{part}_32x32.mat", {"X": x[:2].transpose(1, 2, 3, 0), "y": labels})
    assert row.title == "", "the authors' own files come first"


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet(packed, place):
    members, x = tiny_members_of(4)
    archive = zipped(place / "tiny.zip", members) if packed else write(place, members)
    train, test = like(sources.TINY_IMAGENET, "tiny-imagenet-200", archive)()
    assert holds(train, x[[0, 2, 1, 3]], [0, 0, 1, 1]), "classes in the order of their synsets"
    assert holds(test, x[4:], [1, 0])


def test_tiny_imagenet_with_rearranged_validation_images(place):
    members, x = tiny_members_of(4)
    moved = {"val/images/val_0.png": "val/n02/val_0.png", "val/images/val_1.png": "val/n01/val_1.png"}
    root = "tiny-imagenet-200/"
    write(place, [(root + moved.get(n.removeprefix(root), n.removeprefix(root)), c) for n, c in members])
    assert holds(like(sources.TINY_IMAGENET, "tiny-imagenet-200")()[1], x[[5, 4]], [0, 1])


SOLUTION = b"ImageId,PredictionString\nILSVRC_2,n01 1 2 3 4\nILSVRC_1,n02 1 2 3 4 n02 5 6 7 8\n"


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("LOC_val_solution.csv", SOLUTION),
        ("imagenet_2012_validation_synset_labels.txt", b"n02\nn01\n"),
        ("val.txt", b"ILSVRC_2.png n01\nILSVRC_1.png n02\n"),
        (None, b""),
    ],
)
def test_imagenet_with_validation_images_in_one_heap(name, table, place):
    x = images(4, 40)
    write(place / "imagenet", [(f"train/n0{i + 1}/a.png", png(x[i])) for i in range(2)])
    write(place / "imagenet", [(f"val/ILSVRC_{i + 1}.png", png(x[2 + i])) for i in range(2)])
    stored = like(sources.IMAGENET, "imagenet")
    if name is None:
        with pytest.raises(BalcalError, match=r"none of LOC_val_solution.csv, .* is there"):
            stored()
        return
    write(place / "imagenet", [(name, table)])
    train, test = stored()
    assert train.shape == (2, 224, 224, 3)
    assert test.labels.tolist() == [1, 0]


def test_an_image_of_another_size_becomes_its_centred_square(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (picture(tmp_path / "wide.png", 10) == 200).all()
    assert picture(tmp_path / "wide.png", 5).shape == (5, 5, 3)
    Image.fromarray(wide[..., 0]).save(tmp_path / "grey.png")
    assert picture(tmp_path / "grey.png", 10).shape == (10, 10, 3)
    (tmp_path / "cut.png").write_bytes((tmp_path / "wide.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"cut.png cannot be read"):
        picture(tmp_path / "cut.png", 10)


def many_files(folder, n=30):
    x = images(n, 8)
    write(folder, [(f"{i:02d}.png", png(x[i])) for i in range(n)])
    return x, [folder / f"{i:02d}.png" for i in range(n)]


def test_many_images_are_decoded_once_by_other_processes_and_stay_in_their_file(place, tmp_path, monkeypatch, capsys):
    x, files = many_files(tmp_path / "many")
    monkeypatch.setattr(decoded, "FEW", 10)
    monkeypatch.setattr(decoded, "AT_ONCE", 17)
    part = decoded.image_files("many", files, list(range(30)), 8)
    assert "decoding 30 images, once" in capsys.readouterr().err
    assert part.rows is not None
    assert holds(part, x, range(30))
    monkeypatch.setattr(decoded, "_decode", None)
    again = decoded.image_files("many", files, list(range(30)), 8)
    rows = torch.tensor([5, 3, 28])
    some = again.take(rows)
    assert some.store.data_ptr() == again.store.data_ptr(), "nothing copied"
    assert holds(some, x[rows], rows.tolist())
    assert np.array_equal(some.take(torch.tensor([1])).images.numpy(), x[[3]])
    assert np.array_equal(some.pick(torch.tensor([2, 0])).numpy(), x[[28, 5]])
    in_memory = decoded.ImageSet(torch.from_numpy(x[rows]), rows)
    assert digest(some) == digest(in_memory), "where the images lie does not matter"
    some.store[0] = 0
    assert holds(decoded.image_files("many", files, list(range(30)), 8), x, range(30)), "the file is not written to"


def test_a_broken_image_among_many_leaves_no_cache(place, tmp_path, monkeypatch):
    _, files = many_files(tmp_path / "many")
    files[20].write_bytes(b"not an image")
    monkeypatch.setattr(decoded, "FEW", 10)
    with pytest.raises(BalcalError, match=r"20.png cannot be read"):
        decoded.image_files("many", files, list(range(30)), 8)
    assert not list((tmp_path / "cache").rglob("*.npy"))
    monkeypatch.setattr(decoded, "SPARE", 1 << 60)
    with pytest.raises(BalcalError, match=r"30 images of 8 x 8 pixels take 0.0 GB and .* make room"):
        decoded.image_files("many", files, list(range(30)), 8)
    assert debris(tmp_path / "cache" / "decoded") == []


def test_published_corruptions(place):
    name, x = SHIFTS["cifar10-c"], images(50)
    folder = place / "CIFAR-10-C"
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
        write(place / "Tiny-ImageNet-C" / corruption / "3", [(f"n0{i % 2}/{i}.png", png(y[i])) for i in range(4)])
    assert holds(SHIFTS["tiny-imagenet-c"].load("frost", 3), y[[0, 2, 1, 3]], [0, 0, 1, 1])


def test_labels_by_people(place):
    members, train, test = cifar10_members("cifar-10-batches-py", "py")
    write(place, members)
    pictures = like(sources.CIFAR10, "cifar-10-batches-py")
    noisy = train[1].copy()
    noisy[:4] = 9 - noisy[:4]
    write(place / "cifar-10-100n", [("data/CIFAR-10_human.pt", b"")])
    torch.save({"worse_label": noisy, "clean_label": train[1]}, place / "cifar-10-100n/data/CIFAR-10_human.pt")
    labels = like(sources.CIFAR10N, "cifar-10-100n/data")
    found = Relabelled(pictures, labels, "worse")()
    assert holds(found[0], train[0], noisy)
    assert holds(found[1], *test)
    torch.save({"worse_label": noisy[::-1].copy()}, place / "cifar-10-100n/data/CIFAR-10_human.pt")
    with pytest.raises(BalcalError, match="both must be in the original order"):
        Relabelled(pictures, labels, "worse")()
    write(place / "cifar-10h", [("data/cifar10h-counts.npy", b"")])
    np.save(place / "cifar-10h/data/cifar10h-counts.npy", [[1, 3], [2, 0]])
    assert soft_labels(like(sources.CIFAR10H, "cifar-10h/data")).tolist() == [[0.25, 0.75], [1, 0]]
    with pytest.raises(BalcalError, match="nobody has asked people"):
        dataset("cifar100").soft_labels()


class Malicious:
    def __reduce__(self):
        return time.sleep, (0,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_asks_for_more_than_arrays_is_refused(protocol, place):
    with pytest.raises(pickle.UnpicklingError, match=r"it asks for `time.sleep`"):
        unpickle(io.BytesIO(pickle.dumps({"data": Malicious()}, protocol)))
    members, _, _ = cifar10_members("cifar-10-batches-py", "py")
    write(place, [*members, ("cifar-10-batches-py/data_batch_3", pickle.dumps(Malicious(), protocol))])
    with pytest.raises(BalcalError, match=r"cannot be read as cifar10: it asks for `time.sleep`.*malicious"):
        like(sources.CIFAR10, "cifar-10-batches-py")()


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


@pytest.mark.parametrize("spoil", ["cut", "flip", "fewer"])
def test_files_that_are_not_whole_are_refused(spoil, place):
    members, _, _ = cifar10_members("cifar-10-batches-bin", "bin")
    name, content = members[2]
    changed = {"cut": content[:-7], "flip": bytes([255]) + content[1:], "fewer": content[:3073]}[spoil]
    write(place, [*members, (name, changed)])
    stored = like(sources.CIFAR10, "cifar-10-batches-bin")
    if spoil == "flip":
        stored()  # a label that is out of range: seen by the split, or by a checksum
        return
    if spoil == "fewer":
        stored = Stored(stored.name, stored.forms, sizes=(20, 3))
    with pytest.raises(BalcalError, match=r"it is cut off|is not all of cifar10: it has \(17, 3\) images"):
        stored()


def test_a_file_with_another_checksum_is_refused(place):
    members, _, _ = cifar10_members("cifar-10-batches-py", "py")
    write(place, members)
    with pytest.raises(BalcalError, match=r"data_batch_1 is not the published file: its checksum differs"):
        sources.CIFAR10()


@pytest.mark.parametrize("name", sorted(table("datasets")))
def test_every_row_says_what_one_must_know(name):
    row = dataset(name)
    assert len(row.mean) == len(row.std) == row.channels
    assert len(set(row.classes)) == row.num_classes >= 10
    assert row.licence
    assert row.source
    assert all(other in table("datasets") and other != name for other in row.ood)
    for stored in row.stored:
        for form in stored.forms:
            checksums = [c for _, c in form.files] + [d.checksum for d in form.downloads]
            lengths = {"md5": 32, "sha256": 64, "": 0}
            assert all(len(c.partition(":")[2]) == lengths[c.partition(":")[0]] for c in checksums)
