"""Write hashes.txt anew: for each pin of constraints.txt the SHA-256 of the files that PyPI has of it.

torch is left out: which of its builds an index has, and what that build needs, differs from machine to machine.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[2]
INDEX = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url
LEFT_OUT = ("torch",)
HEAD = (
    "# Made by tests/helpers/record_hashes.py from constraints.txt: "
    "pip install --no-deps --require-hashes -r hashes.txt\n"
)
LINK = re.compile(r'/([^/"#]+)#sha256=([0-9a-f]{64})"')
OURS = re.compile(  # what a machine with make may choose
    r"(-py3|-py2\.py3)-none-any\.whl$"
    r"|-(cp31[1-9]-cp31[1-9]|cp3\d*-abi3|py3-none|py2\.py3-none)-.*(manylinux|macosx).*(x86_64|aarch64|arm64|universal2)\.whl$"
)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path=ROOT / "constraints.txt"):
    """(name, version) of each line."""
    return [tuple(line.split("==")) for line in path.read_text().split("\n") if "==" in line and line[0] != "#"]


def hashes(pin):
    name, version = pin
    with urlopen(f"{INDEX}/{normal(name)}/", timeout=60) as page:
        found = dict(LINK.findall(page.read().decode()))
    release = re.compile(rf"{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)")
    of_it = [
        file
        for file in found
        if any(normal(file[:i]) == normal(name) and release.fullmatch(file[i + 1 :]) for i in places(file))
    ]
    wheels = [file for file in of_it if OURS.search(file)]
    return pin, sorted(found[file] for file in wheels or of_it)


def places(file):
    return [match.start() for match in re.finditer("-", file)]


def main():
    wanted = [pin for pin in pins() if normal(pin[0]) not in LEFT_OUT]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(hashes, wanted))
    if lost := [f"{name}=={version}" for (name, version), known in found if not known]:
        sys.exit(f"{INDEX} has no file of {', '.join(lost)}")
    lines = [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{known}" for known in of_it)])
        for (name, version), of_it in found
    ]
    (ROOT / "hashes.txt").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
