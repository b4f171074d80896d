"""What is being written: no two writers share a name, and who shares a folder removes only what is abandoned."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from data_files import debris

from balcal.data.download import unfinished
from balcal.runtime.files import sweep, write_atomic

WRITER = """
import sys
from pathlib import Path
from balcal.data.download import unfinished
from balcal.runtime.files import write_atomic
place = Path(sys.argv[1])

def parts():
    yield b"first, "
    with unfinished(place / "many") as beside:
        beside.write_bytes(b"many")
        print("writing", flush=True)
        sys.stdin.readline()
        beside.rename(place / "many")
    yield b"last"

write_atomic(place / "one", parts())
"""
LONG_AGO = time.time() - 1e6


@contextmanager
def somebody_writing(place):
    """Another process, in the middle of writing `one` and `many`; a line ends its waiting."""
    command = [sys.executable, "-c", WRITER, str(place)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as child:
        assert child.stdout.readline() == "writing\n"
        yield child


def test_two_writers_with_one_process_id_write_two_files(tmp_path):
    def parts():
        yield b"first, "
        write_atomic(tmp_path / "x", b"another")
        assert (tmp_path / "x").read_bytes() == b"another"
        yield b"last"

    write_atomic(tmp_path / "x", parts())
    assert (tmp_path / "x").read_bytes() == b"first, last"
    with unfinished(tmp_path / "y") as one, unfinished(tmp_path / "y") as other:
        assert one != other
    assert debris(tmp_path) == ["x"]


def test_what_somebody_alive_is_writing_stays_however_old_it_is(tmp_path):
    with somebody_writing(tmp_path) as child:
        for path in tmp_path.iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))
        with unfinished(tmp_path / "new") as beside:
            beside.write_text("x")
        write_atomic(tmp_path / "one", b"of somebody else")
        child.communicate("go on\n")
    assert child.returncode == 0
    assert (tmp_path / "one").read_bytes() == b"first, last"
    assert debris(tmp_path) == ["many", "one"]


@pytest.mark.skipif(
    not Path("/proc/sys/kernel/random/boot_id").exists(),
    reason="only Linux says which kernel runs: would check that files of a killed process are removed at once",
)
def test_what_a_killed_process_left_goes_at_once(tmp_path):
    with somebody_writing(tmp_path) as child:
        child.kill()
    assert len(list(tmp_path.glob(".unfinished-*"))) == 2
    write_atomic(tmp_path / "one", b"again")
    assert len(list(tmp_path.glob(".unfinished-*"))) == 1, "it looks for what was to become this very file"
    with unfinished(tmp_path / "other"):
        pass
    assert debris(tmp_path) == ["one"]


def test_debris_of_another_host_goes_after_a_day(tmp_path):
    """Its locks may be invisible here; where they are not, they count."""
    young, old, held = (tmp_path / f".unfinished-ffffffff-{i}-x" for i in range(3))
    for path in (young, old, held):
        path.write_text("half")
    os.utime(old, (LONG_AGO, LONG_AGO))
    os.utime(held, (LONG_AGO, LONG_AGO))
    with open(held, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomic(tmp_path / "x", b"whole")
        assert debris(tmp_path) == sorted([young.name, held.name, "x"])
    write_atomic(tmp_path / "x", b"whole")
    assert debris(tmp_path) == sorted([young.name, "x"])
    sweep(tmp_path)
    assert debris(tmp_path) == ["x"], "a folder that was claimed is swept of everything"


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fails)
    with unfinished(tmp_path / "a") as beside:
        beside.write_bytes(b"a")
        write_atomic(tmp_path / "b", b"b")
        with unfinished(tmp_path / "c"):
            pass
        beside.rename(tmp_path / "a")
    assert debris(tmp_path) == ["a", "b"]


def test_a_sweeper_that_comes_before_the_lock_does_no_harm(tmp_path, monkeypatch):
    locked, swept = fcntl.flock, []

    def late(file, how):
        if not swept:
            swept.extend(tmp_path.glob(".unfinished-*"))
            sweep(tmp_path)
        return locked(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomic(tmp_path / "x", b"whole")
    assert len(swept) == 1
    swept.clear()
    with unfinished(tmp_path / "y") as beside:
        beside.write_bytes(b"whole")
        beside.rename(tmp_path / "y")
    assert len(swept) == 1
    assert debris(tmp_path) == ["x", "y"]


def test_a_folder_that_was_just_made_or_almost_removed_is_swept_and_made_again(tmp_path, monkeypatch):
    """Whoever dies between making a folder and locking it leaves an empty one."""
    make, made = Path.mkdir, []

    def swept_at_once(self, *how, **more):
        make(self, *how, **more)
        if self.name.startswith(".unfinished-") and not made:
            made.append(self)
            with unfinished(tmp_path / "other"):
                assert not self.exists()

    monkeypatch.setattr(Path, "mkdir", swept_at_once)
    with unfinished(tmp_path / "x") as beside:
        beside.write_bytes(b"whole")
        beside.rename(tmp_path / "x")
    assert made
    assert debris(tmp_path) == ["x"]


def test_a_full_disk_leaves_no_debris(tmp_path):
    def parts():
        yield b"some"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Exception, match="No space left on device"):
        write_atomic(tmp_path / "x", parts())
    assert debris(tmp_path) == []
