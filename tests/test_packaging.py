"""What is installed is what was meant: pins, their hashes, and floors above known holes."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version
from record_hashes import LEFT_OUT, ROOT, normal, pins

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = {normal(name): Version(version) for name, version in pins()}


def locked():
    """By name and version, the hashes of its files."""
    text = (ROOT / "hashes.txt").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", told) for line in lines for told in line[1:])
    return {line[0]: line[1:] for line in lines}


def test_every_pin_but_torch_has_a_hash():
    found = locked()
    assert set(found) == {f"{name}=={version}" for name, version in pins() if normal(name) not in LEFT_OUT}, (
        "python tests/helpers/record_hashes.py"
    )
    assert all(found.values())
    assert "--require-hashes -r hashes.txt" in (ROOT / "Makefile").read_text()


def test_pins_are_within_the_ranges():
    for line in (
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["dev"],
        *PROJECT["build-system"]["requires"],
    ):
        wanted = Requirement(line)
        if wanted.name != "balcal":
            assert PINNED[normal(wanted.name)] in wanted.specifier, line


def test_floors_exclude_known_holes():
    """Weights that run code (CVE-2025-32434, CVE-2026-24747); images that do (CVE-2026-112403, older ones below it)."""
    ranges = {Requirement(line).name: Requirement(line).specifier for line in PROJECT["project"]["dependencies"]}
    assert not any(version in ranges["torch"] for version in ("2.4.0", "2.5.1", "2.6.0", "2.9.1"))
    assert not any(version in ranges["pillow"] for version in ("10.0.0", "10.2.0", "11.2.1", "12.1.0", "12.3.0"))
    (backend,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert "1.25.0" not in backend.specifier
    assert "99" not in backend.specifier, "the build backend has a ceiling"
