"""Small files in the formats in which data sets are published, and a folder to put them."""

import hashlib
import io
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from balcal.data.download import CACHE, DATA, OFFLINE, Download
from balcal.data.locate import StoredFiles


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    """A folder that BALCAL_DATA names, an empty cache, and no network."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv(DATA, str(folder))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv(OFFLINE, "1")
    return folder


def images(n, side=32, seed=0):
    return np.random.default_rng(seed).integers(256, size=(n, side, side, 3), dtype=np.uint8)


def planes(pictures):
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)).reshape(len(pictures), -1)


def python2_pickle(record):
    """As Python 2 wrote it: byte strings as keys, numpy under its old name, protocol 2."""
    data = record[b"data"]
    head = b"\x80\x02}q\x01("
    body = b"U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    body += b"".join(b"J" + int(n).to_bytes(4, "little") for n in data.shape) + b"\x86"
    body += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    raw = data.tobytes()
    body += b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    for key, values in record.items():
        if key != b"data":
            body += b"U" + bytes([len(key)]) + key + b"](" + b"".join(b"K" + bytes([v]) for v in values) + b"e"
    return head + body + b"u."


def tarred(path, members, compress="gz"):
    """(name, bytes) or ready-made TarInfo records."""
    with tarfile.open(path, f"w:{compress}") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                name, content = member
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def png(picture):
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def write(root, members):
    for name, content in members:
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def sha256(path):
    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def with_test_files(stored, folder, archive=None, urls=()):
    """The data set in one of its forms, for files that are not the published ones: their own checksums and sizes."""
    form = next(form for form in stored.forms if form.folder == folder)
    downloads = ()
    if archive:
        downloads = (Download(Path(archive).name, tuple(urls), sha256(archive)),)
    unknown = tuple((name, "") for name in form.names)
    return StoredFiles(stored.name, (replace(form, files=unknown, downloads=downloads),))


def cifar10_members(folder, kind, seed=0):
    """Five batches of four images and a test batch of three, as members of an archive; and what must be read."""
    x, y = images(23, seed=seed), np.arange(23) % 10
    members = []
    for number, rows in enumerate((*np.split(np.arange(20), 5), np.arange(20, 23)), 1):
        name = f"data_batch_{number}" if number < 6 else "test_batch"
        if kind == "py":
            content = python2_pickle({b"data": planes(x[rows]), b"labels": y[rows].tolist()})
        elif kind == "py3":
            content = pickle.dumps({b"data": planes(x[rows]), b"labels": y[rows].tolist()}, protocol=2)
        else:
            content = np.concatenate([y[rows, None].astype(np.uint8), planes(x[rows])], 1).tobytes()
            name += ".bin"
        members.append((f"{folder}/{name}", content))
    return members, (x[:20], y[:20]), (x[20:], y[20:])


def tiny_members_of(n):
    """A Tiny-ImageNet of n training and two validation images, in two classes; and its images in that order."""
    x = images(n + 2, 64)
    members = [
        ("wnids.txt", b"n02\nn01\n"),
        ("words.txt", b"n01\tgoldfish, carp\nn02\tcat\n"),
        ("val/val_annotations.txt", b"val_0.png\tn02\t0\t0\t9\t9\nval_1.png\tn01\t0\t0\t9\t9\n"),
        *((f"train/n0{1 + i % 2}/images/n0_{i}.png", png(x[i])) for i in range(n)),
        *((f"val/images/val_{i}.png", png(x[n + i])) for i in range(2)),
    ]
    return [(f"tiny-imagenet-200/{name}", content) for name, content in members], x


def class_folders(root, n=30, side=8, classes=("cat", "dog", "fox")):
    x = images(n, side)
    write(root, [(f"{classes[i % len(classes)]}/{i:03d}.png", png(x[i])) for i in range(n)])
    return x


def debris(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*")) if Path(folder).exists() else []


def holds(part, pictures, labels):
    return np.array_equal(part.images.numpy(), pictures) and part.labels.tolist() == list(labels)
