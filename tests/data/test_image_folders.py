"""ImageNet's folders, and the cache of decoded images: sealed, of one folder only, and shared without harm."""

import os
import shutil
import threading

import numpy as np
import pytest
import torch
from data_files import data_folder, debris, holds, images, png, tiny_members_of, with_test_files, write, zipped

from balcal.core import BalcalError
from balcal.data import image_folders, known_files
from balcal.data.splits import digest

__all__ = ["data_folder"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(image_folders, "FEW", 5)


def files_in(folder, seed=0, n=12):
    x = images(n, 8, seed)
    write(folder, [(f"{i:02d}.png", png(x[i])) for i in range(n)])
    return x, [folder / f"{i:02d}.png" for i in range(n)]


def read(files):
    return image_folders.images_from_files("some", files, [0] * len(files), 8).images.numpy()


def cached(tmp_path):
    (file,) = (tmp_path / "cache" / "decoded").iterdir()
    return file


@pytest.mark.parametrize("damage", ["flip", "last", "cut", "black", "empty", "header"])
def test_a_damaged_cache_is_noticed_and_made_anew(damage, data_folder, tmp_path, capsys):
    x, files = files_in(tmp_path / "many")
    assert np.array_equal(read(files), x)
    file = cached(tmp_path)
    good = file.read_bytes()
    content = bytearray(good)
    if damage in ("flip", "last", "header"):
        content[{"flip": 1000, "last": 128 + x.nbytes - 1, "header": 0}[damage]] ^= 1
    elif damage == "black":
        content[1000 : 128 + x.nbytes] = bytes(128 + x.nbytes - 1000)
    else:
        del content[0 if damage == "empty" else len(content) // 2 :]
    file.write_bytes(bytes(content))
    capsys.readouterr()
    assert np.array_equal(read(files), x)
    assert f"{file} is damaged: its images are decoded again" in capsys.readouterr().err
    assert file.read_bytes() == good
    assert np.array_equal(read(files), x)
    assert capsys.readouterr().err == "", "and then it is whole"


def test_two_folders_of_equal_names_sizes_and_times_are_two_sets(data_folder, tmp_path):
    sets = {}
    for where, seed in (("a", 0), ("b", 1)):
        x = images(12, 8, seed)
        folder = tmp_path / where / "pets"
        folder.mkdir(parents=True)
        for i in range(12):
            (folder / f"{i:02d}.ppm").write_bytes(b"P6 8 8 255\n" + x[i].tobytes())
            os.utime(folder / f"{i:02d}.ppm", ns=(0, 0))
        sets[where] = x, [folder / f"{i:02d}.ppm" for i in range(12)]
    for x, files in sets.values():
        assert np.array_equal(read(files), x)
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "a")  # another folder under the same path
    assert np.array_equal(read(sets["a"][1]), sets["b"][0])


def test_an_altered_image_is_noticed_even_if_its_time_is_set_back(data_folder, tmp_path):
    x, files = files_in(tmp_path / "many")
    assert np.array_equal(read(files), x)
    before, other = files[7].stat(), png(255 - x[7])
    files[7].write_bytes(other + bytes(max(0, before.st_size - len(other))))
    os.utime(files[7], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert np.array_equal(read(files)[7], 255 - x[7])


def test_two_hosts_with_one_process_id_decode_into_one_cache(data_folder, tmp_path, monkeypatch):
    """One finishes while the other has just begun: neither may take the other's unfinished file for its own."""
    x, files = files_in(tmp_path / "many")
    run, decoded_all, begun, finished = image_folders._run, threading.Event(), threading.Event(), threading.Event()
    found = {}

    def in_turns(job):
        if decoded_all.is_set():  # the second one's
            begun.set()
            assert finished.wait(60)
            return run(job)
        wrong = run(job)
        decoded_all.set()
        assert begun.wait(60)
        return wrong

    def first():
        found["first"] = read(files)
        finished.set()

    def second():
        assert decoded_all.wait(60)
        found["second"] = read(files)

    monkeypatch.setattr(image_folders, "_run", in_turns)
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found["first"], x)
    assert np.array_equal(found["second"], x)
    assert np.array_equal(read(files), x)
    cached(tmp_path)


def test_a_decoder_that_is_killed_is_a_sentence_and_leaves_nothing(data_folder, tmp_path, monkeypatch):
    _, files = files_in(tmp_path / "many")
    monkeypatch.setattr(image_folders.sys, "executable", "/bin/false")
    with pytest.raises(BalcalError, match="a process that decodes images ended early"):
        read(files)
    assert debris(tmp_path / "cache" / "decoded") == []


def test_what_is_mapped_is_not_written_to(data_folder, tmp_path):
    x, files = files_in(tmp_path / "many")
    part = image_folders.images_from_files("some", files, [0] * len(files), 8)
    before = cached(tmp_path).read_bytes()
    part.store.zero_()
    assert cached(tmp_path).read_bytes() == before
    assert torch.equal(torch.from_numpy(read(files)), torch.from_numpy(x))


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet(packed, data_folder):
    members, x = tiny_members_of(4)
    archive = zipped(data_folder / "tiny.zip", members) if packed else write(data_folder, members)
    train, test = with_test_files(known_files.TINY_IMAGENET, "tiny-imagenet-200", archive)()
    assert holds(train, x[[0, 2, 1, 3]], [0, 0, 1, 1]), "classes in the order of their synsets"
    assert holds(test, x[4:], [1, 0])


def test_tiny_imagenet_with_rearranged_validation_images(data_folder):
    members, x = tiny_members_of(4)
    moved = {"val/images/val_0.png": "val/n02/val_0.png", "val/images/val_1.png": "val/n01/val_1.png"}
    root = "tiny-imagenet-200/"
    write(data_folder, [(root + moved.get(n.removeprefix(root), n.removeprefix(root)), c) for n, c in members])
    assert holds(with_test_files(known_files.TINY_IMAGENET, "tiny-imagenet-200")()[1], x[[5, 4]], [0, 1])


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
def test_imagenet_with_validation_images_in_one_heap(name, table, data_folder):
    x = images(4, 40)
    write(data_folder / "imagenet", [(f"train/n0{i + 1}/a.png", png(x[i])) for i in range(2)])
    write(data_folder / "imagenet", [(f"val/ILSVRC_{i + 1}.png", png(x[2 + i])) for i in range(2)])
    stored = with_test_files(known_files.IMAGENET, "imagenet")
    if name is None:
        with pytest.raises(BalcalError, match=r"none of LOC_val_solution.csv, .* is there"):
            stored()
        return
    write(data_folder / "imagenet", [(name, table)])
    train, test = stored()
    assert train.shape == (2, 224, 224, 3)
    assert test.labels.tolist() == [1, 0]


def test_many_images_are_decoded_once_and_stay_in_their_file(data_folder, tmp_path, monkeypatch, capsys):
    x, files = files_in(tmp_path / "many", n=30)
    monkeypatch.setattr(image_folders, "FEW", 10)
    monkeypatch.setattr(image_folders, "FILES_PER_PROCESS", 17)
    part = image_folders.images_from_files("many", files, list(range(30)), 8)
    assert "decoding 30 images, once" in capsys.readouterr().err
    assert part.rows is not None
    assert holds(part, x, range(30))
    monkeypatch.setattr(image_folders, "_decode", None)
    again = image_folders.images_from_files("many", files, list(range(30)), 8)
    rows = torch.tensor([5, 3, 28])
    some = again.take(rows)
    assert some.store.data_ptr() == again.store.data_ptr(), "nothing copied"
    assert holds(some, x[rows], rows.tolist())
    assert np.array_equal(some.take(torch.tensor([1])).images.numpy(), x[[3]])
    assert np.array_equal(some.pick(torch.tensor([2, 0])).numpy(), x[[28, 5]])
    in_memory = image_folders.ImageSet(torch.from_numpy(x[rows]), rows)
    assert digest(some) == digest(in_memory), "where the images lie does not matter"
    some.store[0] = 0
    assert holds(image_folders.images_from_files("many", files, list(range(30)), 8), x, range(30)), (
        "the file is not written to"
    )


def test_a_broken_image_among_many_leaves_no_cache(data_folder, tmp_path, monkeypatch):
    _, files = files_in(tmp_path / "many", n=30)
    files[20].write_bytes(b"not an image")
    monkeypatch.setattr(image_folders, "FEW", 10)
    with pytest.raises(BalcalError, match=r"20.png cannot be read"):
        image_folders.images_from_files("many", files, list(range(30)), 8)
    assert not list((tmp_path / "cache").rglob("*.npy"))
    monkeypatch.setattr(image_folders, "SPARE", 1 << 60)
    with pytest.raises(BalcalError, match=r"30 images of 8 x 8 pixels take 0.0 GB and .* make room"):
        image_folders.images_from_files("many", files, list(range(30)), 8)
    assert debris(tmp_path / "cache" / "decoded") == []
