"""The cache of decoded images: sealed, of one folder only, and shared with others without harm."""

import os
import shutil
import threading

import numpy as np
import pytest
import torch
from data_files import debris, images, place, png, write

from balcal.core import BalcalError
from balcal.data import image_folders as decoded

__all__ = ["place"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(decoded, "FEW", 5)


def files_in(folder, seed=0, n=12):
    x = images(n, 8, seed)
    write(folder, [(f"{i:02d}.png", png(x[i])) for i in range(n)])
    return x, [folder / f"{i:02d}.png" for i in range(n)]


def read(files):
    return decoded.image_files("some", files, [0] * len(files), 8).images.numpy()


def cached(tmp_path):
    (file,) = (tmp_path / "cache" / "decoded").iterdir()
    return file


@pytest.mark.parametrize("damage", ["flip", "last", "cut", "black", "empty", "header"])
def test_a_damaged_cache_is_noticed_and_made_anew(damage, place, tmp_path, capsys):
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


def test_two_folders_of_equal_names_sizes_and_times_are_two_sets(place, tmp_path):
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


def test_an_altered_image_is_noticed_even_if_its_time_is_set_back(place, tmp_path):
    x, files = files_in(tmp_path / "many")
    assert np.array_equal(read(files), x)
    before, other = files[7].stat(), png(255 - x[7])
    files[7].write_bytes(other + bytes(max(0, before.st_size - len(other))))
    os.utime(files[7], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert np.array_equal(read(files)[7], 255 - x[7])


def test_two_hosts_with_one_process_id_decode_into_one_cache(place, tmp_path, monkeypatch):
    """One finishes while the other has just begun: neither may take the other's unfinished file for its own."""
    x, files = files_in(tmp_path / "many")
    run, decoded_all, begun, finished = decoded._run, threading.Event(), threading.Event(), threading.Event()
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

    monkeypatch.setattr(decoded, "_run", in_turns)
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found["first"], x)
    assert np.array_equal(found["second"], x)
    assert np.array_equal(read(files), x)
    cached(tmp_path)


def test_a_decoder_that_is_killed_is_a_sentence_and_leaves_nothing(place, tmp_path, monkeypatch):
    _, files = files_in(tmp_path / "many")
    monkeypatch.setattr(decoded.sys, "executable", "/bin/false")
    with pytest.raises(BalcalError, match="a process that decodes images ended early"):
        read(files)
    assert debris(tmp_path / "cache" / "decoded") == []


def test_what_is_mapped_is_not_written_to(place, tmp_path):
    x, files = files_in(tmp_path / "many")
    part = decoded.image_files("some", files, [0] * len(files), 8)
    before = cached(tmp_path).read_bytes()
    part.store.zero_()
    assert cached(tmp_path).read_bytes() == before
    assert torch.equal(torch.from_numpy(read(files)), torch.from_numpy(x))
