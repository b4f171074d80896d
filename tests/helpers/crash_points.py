"""Let a command die at each of its file operations, and run it again.

A process that dies leaves its files as they are at that moment. So the command is run once, and the folder is copied
before each operation (create, write, flush, replace, rename, unlink, mkdir, rmdir), and in the middle of each write.
Each copy is one crash; equal copies count once.
"""

import builtins
import hashlib
import io
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

WRITING = set("wax+")


class Crashes:
    """Copies of the folder `root`, one for every moment before something in it changed."""

    def __init__(self, root, into):
        self.root, self.into = Path(root), Path(into)
        self.points = []
        """(what was about to happen, copy of the folder)"""
        self._seen = set()
        self._busy = False

    def look(self, what, path):
        """Copy the folder, unless there is an equal copy."""
        if self._busy or not self._concerns(path):
            return
        self._busy = True
        try:
            looks = looks_of(self.root)
            if looks not in self._seen:
                self._seen.add(looks)
                copy = self.into / f"{len(self.points):04d}"
                shutil.copytree(self.root, copy)
                self.points.append((f"{what} {Path(os.fsdecode(path)).name}", copy))
        finally:
            self._busy = False

    def _concerns(self, path):
        try:
            return Path(os.fsdecode(path)).absolute().is_relative_to(self.root)
        except (TypeError, ValueError):
            return False


class Writing:
    """A file that is being written. Half of each write is a crash point of its own."""

    def __init__(self, file, crashes, path):
        self._file, self._crashes, self._path = file, crashes, path

    def write(self, content):
        half = len(content) // 2
        written = self._file.write(content[:half])
        self._flushed("half-way through writing")
        return written + self._file.write(content[half:])

    def flush(self):
        self._flushed("after flushing")

    def _flushed(self, what):
        self._file.flush()
        self._crashes.look(what, self._path)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *reason):
        return self._file.__exit__(*reason)

    def __iter__(self):
        return iter(self._file)

    def __getattr__(self, name):
        return getattr(self._file, name)


@contextmanager
def watched(root, into):
    """Inside the block, `root` is copied before every file operation in it."""
    crashes = Crashes(root, into)
    real_open = builtins.open

    def opened(file, mode="r", *args, **kwargs):
        writing = WRITING & set(mode) and isinstance(file, (str, os.PathLike)) and crashes._concerns(file)
        if not writing:
            return real_open(file, mode, *args, **kwargs)
        crashes.look("before creating", file)
        return Writing(real_open(file, mode, *args, **kwargs), crashes, file)

    def preceded(name):
        real = getattr(os, name)

        def operation(path, *args, **kwargs):
            crashes.look(f"before {name}", path)
            return real(path, *args, **kwargs)

        return real, operation

    originals = {}
    for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate"):
        originals[name], operation = preceded(name)
        setattr(os, name, operation)
    builtins.open = io.open = opened
    try:
        yield crashes
    finally:
        builtins.open = io.open = real_open
        for name, real in originals.items():
            setattr(os, name, real)
    crashes.look("after the last operation", root)


def looks_of(root):
    """A digest of all that is in a folder."""
    digest = hashlib.blake2b()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode() + (b"/" if path.is_dir() else b"\0"))
        if path.is_file():
            with open(path, "rb") as file:
                digest.update(file.read())
            digest.update(path.stat().st_mtime_ns.to_bytes(8, "big") if path.suffix == ".npy" else b"")
    return digest.digest()


def restored(copy, root):
    """Put a folder back to what it was at a crash."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(copy, root)


def sweep(command, root, into, remains, before=None):
    """Run `command` once, let it die at every point, repeat it; `remains(root)` must be what one run leaves.

    `before` is a folder to start from, if not from nothing. Returns the number of points.
    """
    root.mkdir(parents=True, exist_ok=True)
    if before:
        restored(before, root)
    with watched(root, into) as crashes:
        command()
    expected = remains(root)
    assert len(crashes.points) > 2, "the command writes nothing here"
    wrong = []
    for what, copy in crashes.points:
        restored(copy, root)
        try:
            command()
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
            continue
        found = remains(root)
        differ = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if differ:
            wrong.append(f"{what}: {', '.join(differ)}")
        shutil.rmtree(copy)
    assert not wrong, f"{len(wrong)} of {len(crashes.points)} points: " + "\n".join(wrong)
    return len(crashes.points)
