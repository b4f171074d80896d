"""Archives that are cut off, altered or malicious are refused, and nothing of them stays."""

import os
import stat
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import torch
from data_files import cifar10_members, data_folder, debris, tarred, tiny_members_of, with_test_files, zipped

from balcal.core import BalcalError
from balcal.data import known_files
from balcal.data.download import unfinished, unpack

__all__ = ["data_folder"]


def special(kind, name="cifar/evil", target="/etc/passwd"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


GOOD = ("cifar/train", b"x" * 5000)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (("../escaped", b"x"), "leads out of its folder"),
        (("cifar/../../escaped", b"x"), "leads out of its folder"),
        (("/tmp/escaped", b"x"), "leads out of its folder"),
        (("cifar\\..\\..\\escaped", b"x"), "leads out of its folder"),
        (("C:/escaped", b"x"), "leads out of its folder"),
        (special(tarfile.SYMTYPE), "neither a file nor a folder"),
        (special(tarfile.LNKTYPE), "neither a file nor a folder"),
        (special(tarfile.CHRTYPE), "neither a file nor a folder"),
        (special(tarfile.FIFOTYPE), "neither a file nor a folder"),
    ],
)
def test_tar_members_that_are_no_plain_files_inside(bad, reason, tmp_path):
    archive = tarred(tmp_path / "evil.tar.gz", [GOOD, bad])
    with pytest.raises(BalcalError, match=reason):
        unpack(archive, "cifar", tmp_path / "cache" / "cifar", ["train"])
    assert debris(tmp_path / "cache") == []
    assert debris(tmp_path) == ["cache", "evil.tar.gz"]
    assert not os.path.exists("/tmp/escaped")


def zip_link(path):
    member = zipfile.ZipInfo("cifar/link")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(*GOOD)
        archive.writestr(member, "/etc/passwd")
    return path


@pytest.mark.parametrize("bad", ["../escaped", "/tmp/escaped", "cifar/../../escaped"])
def test_zip_members_that_lead_outside(bad, tmp_path):
    archive = zipped(tmp_path / "evil.zip", [GOOD, (bad, b"x")])
    with pytest.raises(BalcalError, match="leads out of its folder"):
        unpack(archive, "cifar", tmp_path / "cache" / "cifar", ["train"])
    assert debris(tmp_path) == ["cache", "evil.zip"]


def test_zip_links(tmp_path):
    with pytest.raises(BalcalError, match="neither a file nor a folder"):
        unpack(zip_link(tmp_path / "evil.zip"), "cifar", tmp_path / "cache" / "cifar", ["train"])
    assert debris(tmp_path / "cache") == []


@pytest.mark.parametrize("kind", ["gz", "", "zip"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_what_is_cut_off_is_refused_by_its_structure_too(kind, share, tmp_path):
    noise = os.urandom(50_000)
    members = [("cifar/train", noise), ("cifar/test", noise[::-1])]
    name = tmp_path / ("a.zip" if kind == "zip" else "a.tar")
    zipped(name, members) if kind == "zip" else tarred(name, members, kind)
    name.write_bytes(name.read_bytes()[: int(share * name.stat().st_size)])
    with pytest.raises(BalcalError, match="is refused"):
        unpack(name, "cifar", tmp_path / "cache" / "cifar", ["train", "test"])
    assert debris(tmp_path / "cache") == []


@pytest.mark.parametrize("spoil", ["cut", "flip"])
def test_what_is_not_the_published_archive_is_not_even_opened(spoil, data_folder, tmp_path):
    archive = tarred(data_folder / "small.tar.gz", cifar10_members("cifar-10-batches-py", "py")[0])
    stored = with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive)
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2] ^= 1
    archive.write_bytes(bytes(raw[:-9]) if spoil == "cut" else bytes(raw))
    with pytest.raises(BalcalError, match=r"small.tar.gz is not the published small.tar.gz: its checksum differs"):
        stored()
    assert debris(tmp_path / "cache") == []


def test_an_archive_of_something_else_is_refused(data_folder, tmp_path):
    archive = tarred(data_folder / "other.tar.gz", [GOOD])
    with pytest.raises(BalcalError, match=r"it has no cifar-10-batches-py/data_batch_1"):
        with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive)()
    assert debris(tmp_path / "cache") == []
    archive.write_bytes(b"<html>please log in</html>")
    with pytest.raises(BalcalError, match=r"other.tar.gz is refused"):
        with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive)()


def test_a_zip_is_unpacked_once(data_folder, tmp_path):
    archive = zipped(data_folder / "tiny.zip", tiny_members_of(2)[0])
    stored = with_test_files(known_files.TINY_IMAGENET, "tiny-imagenet-200", archive)
    stored()
    archive.unlink()
    assert len(stored()[0]) == 2
    assert debris(tmp_path / "cache")[0] == "tiny-imagenet-200"


def test_a_folder_in_the_cache_that_lost_a_file_is_unpacked_anew(data_folder, tmp_path):
    archive = tarred(data_folder / "small.tar.gz", cifar10_members("cifar-10-batches-py", "py")[0])
    stored = with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive)
    train = stored()[0]
    for spoil in (Path.unlink, lambda path: (path.unlink(), os.mkfifo(path))):
        spoil(tmp_path / "cache" / "cifar-10-batches-py" / "data_batch_2")
        again = stored()[0]
        assert torch.equal(again.images, train.images)
        assert [name for name in debris(tmp_path / "cache") if "unfinished" in name] == []


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    old, fresh = tmp_path / ".unfinished-1-old", tmp_path / ".unfinished-2-fresh"
    old.mkdir()
    (old / "half").write_text("x")
    fresh.write_text("x")
    os.utime(old, (time.time() - 1e6,) * 2)
    with unfinished(tmp_path / "new") as beside:
        beside.write_text("x")
    assert debris(tmp_path) == [".unfinished-2-fresh"]


def test_a_full_disk_is_a_sentence(tmp_path):
    with (
        pytest.raises(BalcalError, match=r"cannot write .*new \(No space left on device\)"),
        unfinished(tmp_path / "new"),
    ):
        raise OSError(28, "No space left on device")
