"""Where data is looked for, how it is fetched, and how a file is known to be the right one.

First the folders that BALCAL_DATA names, then our cache, where downloads go. BALCAL_OFFLINE=1 forbids the network.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balcal.core import BalcalError
from balcal.naming import plain
from balcal.unfinished import new_folder, sweep_abandoned

DATA, CACHE, OFFLINE = "BALCAL_DATA", "BALCAL_CACHE", "BALCAL_OFFLINE"
RETRIES = 2
"""further tries after a transfer that broke off or arrived damaged"""
TIMEOUT = (10, 60)
"""seconds to connect, and to wait for the next piece"""


def cache() -> Path:
    """The folder that is ours to write to: BALCAL_CACHE, or the platform's own place for such things."""
    if told := os.environ.get(CACHE):
        return Path(told).expanduser()
    import pooch

    return Path(pooch.os_cache("balcal"))


def places() -> list[Path]:
    """Where to look, in this order."""
    told = os.environ.get(DATA, "").split(os.pathsep)
    return [*(Path(place).expanduser() for place in told if place.strip()), cache()]


def offline() -> bool:
    return os.environ.get(OFFLINE, "").lower() not in ("", "0", "false", "no")


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A name to work under, beside the target. Whatever is left there at the end is removed: rename what is complete.

    The cache may be shared with other hosts: what any of them is still at work on stays.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(target.parent)
        with new_folder(target) as folder:
            yield folder / target.name
    except OSError as error:
        raise BalcalError(
            f"cannot write {target} ({error.strerror or error}): make room, or name another folder in {CACHE}"
        ) from None


def checksum_of(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has a checksum such as `md5:c58f30...` or `sha256:47af8b...`."""
    kind, _, wanted = checksum.partition(":")
    return checksum_of(path, kind) == wanted.lower()


@dataclass(frozen=True)
class Download:
    """A file as its authors publish it."""

    name: str
    urls: tuple[str, ...]
    """the same file at several addresses, tried in this order"""
    checksum: str

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar", ".tar.gz", ".tgz", ".zip"))


def fetch(download: Download, into: Path) -> Path:
    """The file, in the folder `into`, with the right checksum: or nothing, and an error that says why."""
    if offline():
        raise BalcalError(f"{download.name} may not be fetched: {OFFLINE} is set")
    target = into / download.name
    if target.is_file() and matches(target, download.checksum):
        return target
    reasons = []
    with unfinished(target) as beside:
        for url in download.urls:
            print(f"fetching {url} into {plain(into)}", file=sys.stderr, flush=True)
            if (reason := _transferred(url, download.checksum, beside)) is None:
                os.replace(beside, target)
                return target
            reasons.append(f"{url}: {reason}")
    raise BalcalError(f"{download.name} could not be fetched ({'; '.join(reasons)}) and nothing of it was kept")


def _transferred(url: str, checksum: str, beside: Path) -> str | None:
    """Fetch a file, with some patience; why it could not be had, if so."""
    import pooch
    from requests.exceptions import RequestException

    pooch.get_logger().setLevel("WARNING")
    for attempt in range(1 + RETRIES):
        bar = _Bar(beside.name)
        try:
            downloader = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT)
            pooch.retrieve(url, checksum, beside.name, beside.parent, downloader=downloader)
            return None
        except ValueError:
            reason, again = "what arrives does not have the published checksum", True
        except RequestException as error:
            reason, again = _why(error)
        finally:
            bar.close()
        if not again or attempt == RETRIES:
            break
        time.sleep(attempt + 0.5)
    return reason


def _why(error: Exception) -> tuple[str, bool]:
    """In a few words, and whether to try again: a transfer that broke off may succeed, an absent server will not."""
    from requests.exceptions import ChunkedEncodingError, HTTPError

    if isinstance(error, ChunkedEncodingError):
        return "the transfer broke off", True
    if isinstance(error, HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}", error.response.status_code >= 500
    return "no connection", False


class _Bar:
    """What pooch asks of a progress bar, drawn by rich, on terminals only."""

    def __init__(self, title: str) -> None:
        self._bar: Any = None
        self._total = 0
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(title, total=None)

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        if self._bar:
            self._bar.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        if self._bar:
            self._bar.advance(self._task, size)

    def reset(self) -> None:
        if self._bar:
            self._bar.update(self._task, completed=0)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
