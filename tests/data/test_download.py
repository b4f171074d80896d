"""Downloads, from a server of the test's own: right, wrong, broken off, absent, forbidden."""

import os
import subprocess
import sys
import threading
import time

import pytest
from data_files import debris, like, place, sha256
from download_server import Shop

from balcal.core import BalcalError
from balcal.data import known_files as sources
from balcal.data.download import OFFLINE, Download, fetch
from balcal.data.locate import Form, Stored

__all__ = ["place"]


def test_fetch_check_unpack_read(place, shop, archive, tmp_path, monkeypatch):
    Shop.content = archive.read_bytes()
    stored = like(sources.CIFAR10, "cifar-10-batches-py", archive, [f"{shop}/small.tar.gz"])
    train, test = stored()
    assert (len(train), len(test)) == (20, 3)
    assert debris(tmp_path / "cache")[:2] == ["cifar-10-batches-py", "cifar-10-batches-py/data_batch_1"]
    monkeypatch.setenv(OFFLINE, "1")
    assert stored()[0] is train
    assert Shop.asked == 1, "fetched once"


def test_a_transfer_that_breaks_off_is_tried_again(place, shop, archive):
    Shop.content, Shop.interruptions = archive.read_bytes(), 2
    assert len(like(sources.CIFAR10, "cifar-10-batches-py", archive, [f"{shop}/small.tar.gz"])()[0]) == 20
    assert Shop.asked == 3


@pytest.mark.parametrize(("interruptions", "reason"), [(99, "the transfer broke off"), (0, "published checksum")])
def test_what_never_arrives_whole_leaves_nothing(interruptions, reason, place, shop, archive, tmp_path):
    Shop.content, Shop.interruptions = archive.read_bytes()[::-1], interruptions
    stored = like(sources.CIFAR10, "cifar-10-batches-py", archive, [f"{shop}/small.tar.gz"])
    with pytest.raises(BalcalError, match=f"data set `cifar10` is not on this machine and could not .*{reason}"):
        stored()
    assert Shop.asked == 3
    assert debris(tmp_path / "cache") == []


def test_the_second_address_serves_when_the_first_does_not(place, shop, archive, tmp_path):
    Shop.content = archive.read_bytes()
    urls = ("http://127.0.0.1:9/nobody", f"{shop}/absent/small.tar.gz", f"{shop}/small.tar.gz")
    got = fetch(Download("small.tar.gz", urls, sha256(archive)), tmp_path / "here")
    assert got.read_bytes() == Shop.content
    assert Shop.asked == 2, "an answer of 404 is final"


def test_files_that_are_no_archive_are_fetched_one_by_one(place, shop, archive, tmp_path):
    Shop.content = archive.read_bytes()
    names = ("a.mat", "b.mat")
    downloads = tuple(Download(name, (f"{shop}/{name}",), sha256(archive)) for name in names)
    form = Form(".", tuple((name, "") for name in names), debris, downloads)
    assert Stored("svhn", (form,))() == list(names)


def test_offline_means_offline(place, shop, archive, monkeypatch):
    monkeypatch.setenv(OFFLINE, "1")
    stored = like(sources.CIFAR10, "cifar-10-batches-py", archive, [f"{shop}/small.tar.gz"])
    with pytest.raises(BalcalError) as told:
        stored()
    for part in ("`cifar10`", "small.tar.gz", "cifar-10-batches-py", "`balcal data cifar10`", "BALCAL_DATA"):
        assert part in str(told.value)
    assert str(place) in str(told.value)
    with pytest.raises(BalcalError, match="may not be fetched"):
        fetch(stored.forms[0].downloads[0], place)
    assert Shop.asked == 0


FETCH = """
import sys
from pathlib import Path
from balcal.data.download import Download, fetch
fetch(Download("small.tar.gz", (sys.argv[1],), sys.argv[2]), Path(sys.argv[3]))
"""


def test_killed_in_a_transfer_it_leaves_nothing_that_stays(shop, archive, tmp_path):
    Shop.content, Shop.stalled = archive.read_bytes(), threading.Event()
    download = Download("small.tar.gz", (f"{shop}/small.tar.gz",), sha256(archive))
    command = [sys.executable, "-c", FETCH, *download.urls, download.checksum, str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as child:
        assert Shop.stalled.wait(100)
        child.kill()
    Shop.stalled = None
    for left in (tmp_path / "cache").iterdir():  # where locks cannot tell, age does
        os.utime(left, (time.time() - 1e6,) * 2)
    assert fetch(download, tmp_path / "cache").read_bytes() == Shop.content
    assert debris(tmp_path / "cache") == ["small.tar.gz"]
    asked = Shop.asked
    assert fetch(download, tmp_path / "cache").read_bytes() == Shop.content
    assert Shop.asked == asked, "what is here is not fetched again"
