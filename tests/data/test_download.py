"""Downloads, from a server of the test's own: right, wrong, broken off, absent, forbidden."""

import os
import subprocess
import sys
import threading
import time

import pytest
from data_files import data_folder, debris, sha256, with_test_files
from download_server import DownloadServer, archive, server_url

from balcal.core import BalcalError
from balcal.data import known_files
from balcal.data.download import OFFLINE, Download, fetch
from balcal.data.locate import Form, StoredFiles

__all__ = ["archive", "data_folder", "server_url"]


def small_cifar10(archive, server_url):
    return with_test_files(known_files.CIFAR10, "cifar-10-batches-py", archive, [f"{server_url}/small.tar.gz"])


def test_fetch_check_unpack_read(data_folder, server_url, archive, tmp_path, monkeypatch):
    DownloadServer.content = archive.read_bytes()
    stored = small_cifar10(archive, server_url)
    train, test = stored()
    assert (len(train), len(test)) == (20, 3)
    assert debris(tmp_path / "cache")[:2] == ["cifar-10-batches-py", "cifar-10-batches-py/data_batch_1"]
    monkeypatch.setenv(OFFLINE, "1")
    assert stored()[0] is train
    assert DownloadServer.asked == 1, "fetched once"


def test_a_transfer_that_breaks_off_is_tried_again(data_folder, server_url, archive):
    DownloadServer.content, DownloadServer.interruptions = archive.read_bytes(), 2
    assert len(small_cifar10(archive, server_url)()[0]) == 20
    assert DownloadServer.asked == 3


@pytest.mark.parametrize(("interruptions", "reason"), [(99, "the transfer broke off"), (0, "published checksum")])
def test_what_never_arrives_whole_leaves_nothing(interruptions, reason, data_folder, server_url, archive, tmp_path):
    DownloadServer.content, DownloadServer.interruptions = archive.read_bytes()[::-1], interruptions
    stored = small_cifar10(archive, server_url)
    with pytest.raises(BalcalError, match=f"data set `cifar10` is not on this machine and could not .*{reason}"):
        stored()
    assert DownloadServer.asked == 3
    assert debris(tmp_path / "cache") == []


def test_the_second_address_serves_when_the_first_does_not(data_folder, server_url, archive, tmp_path):
    DownloadServer.content = archive.read_bytes()
    urls = ("http://127.0.0.1:9/nobody", f"{server_url}/absent/small.tar.gz", f"{server_url}/small.tar.gz")
    got = fetch(Download("small.tar.gz", urls, sha256(archive)), tmp_path / "here")
    assert got.read_bytes() == DownloadServer.content
    assert DownloadServer.asked == 2, "an answer of 404 is final"


def test_files_that_are_no_archive_are_fetched_one_by_one(data_folder, server_url, archive, tmp_path):
    DownloadServer.content = archive.read_bytes()
    names = ("a.mat", "b.mat")
    downloads = tuple(Download(name, (f"{server_url}/{name}",), sha256(archive)) for name in names)
    form = Form(".", tuple((name, "") for name in names), debris, downloads)
    assert StoredFiles("svhn", (form,))() == list(names)


def test_offline_means_offline(data_folder, server_url, archive, monkeypatch):
    monkeypatch.setenv(OFFLINE, "1")
    stored = small_cifar10(archive, server_url)
    with pytest.raises(BalcalError) as error:
        stored()
    for part in ("`cifar10`", "small.tar.gz", "cifar-10-batches-py", "`balcal data cifar10`", "BALCAL_DATA"):
        assert part in str(error.value)
    assert str(data_folder) in str(error.value)
    with pytest.raises(BalcalError, match="may not be fetched"):
        fetch(stored.forms[0].downloads[0], data_folder)
    assert DownloadServer.asked == 0


FETCH = """
import sys
from pathlib import Path
from balcal.data.download import Download, fetch
fetch(Download("small.tar.gz", (sys.argv[1],), sys.argv[2]), Path(sys.argv[3]))
"""


def test_killed_in_a_transfer_it_leaves_nothing_that_stays(server_url, archive, tmp_path):
    DownloadServer.content, DownloadServer.stalled = archive.read_bytes(), threading.Event()
    download = Download("small.tar.gz", (f"{server_url}/small.tar.gz",), sha256(archive))
    command = [sys.executable, "-c", FETCH, *download.urls, download.checksum, str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as child:
        assert DownloadServer.stalled.wait(100)
        child.kill()
    DownloadServer.stalled = None
    for left in (tmp_path / "cache").iterdir():  # where locks cannot tell, age does
        os.utime(left, (time.time() - 1e6,) * 2)
    assert fetch(download, tmp_path / "cache").read_bytes() == DownloadServer.content
    assert debris(tmp_path / "cache") == ["small.tar.gz"]
    asked = DownloadServer.asked
    assert fetch(download, tmp_path / "cache").read_bytes() == DownloadServer.content
    assert DownloadServer.asked == asked, "what is here is not fetched again"
