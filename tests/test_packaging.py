"""What is installed is what was meant: pins, hashes, floors above known holes; and what people expect around it."""

import re
import runpy
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from record_hashes import LEFT_OUT, ROOT, normal, pins

import balcal

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


def test_the_citation_is_that_of_the_method():
    """What CFF 1.2.0 requires, and the authors, title and year that `balcal show balcal` prints."""
    from balcal import registry

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert cited["license"] == PROJECT["project"]["license"]
    paper, method = cited["preferred-citation"], registry.method("balcal")
    assert {"type", "title", "authors"} <= set(paper)
    assert ", ".join(author["family-names"] for author in paper["authors"]) == registry.table("methods")["balcal"].paper
    assert f"{paper['title']}. CVPR {paper['year']}." in (registry.home("methods", method.name).__doc__ or "")


def test_ci_says_of_each_extra_what_ran():
    """Each name in the summary stands for tests that exist, and CI runs those that need an environment of their own."""
    extras = runpy.run_path(str(ROOT / "tests" / "conftest.py"))["EXTRAS"]
    assert {"lightning", "huggingface", "timm", "onnx", "encoders"} <= set(extras)
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    names = [
        f"{path.relative_to(ROOT)}::{name}"
        for path, text in tests.items()
        for name in re.findall(r"def (test_\w+)", text)
    ]
    for extra, marks in extras.items():
        for mark in marks:
            plain = mark.partition("[")[0]
            assert any(plain in name for name in names), (extra, mark)
    target = re.search(r"^extras:.*?\n\n", (ROOT / "Makefile").read_text(), re.M | re.S)
    assert target
    files = re.findall(r"tests/\S+\.py", target[0])
    words = re.search(r'-k "(.*)"', target[0])
    assert files
    assert words
    for word in words[1].split(" or "):
        assert any(word in name for name in names if name.split("::")[0] in files), word
    run = (ROOT / ".ci" / "run").read_text()
    assert "make extras" in run
    assert "could not be installed: their tests did not run" in run


def test_workflow_hooks_and_changelog_fit_the_project():
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert flow["check"]["strategy"]["matrix"]["python"][0] == oldest
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    run = {step["run"] for job in flow.values() for step in job["steps"] if "run" in step}
    assert run == {"make test", "make demo", "make docs"}
    assert {command.removeprefix("make ") for command in run} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for tool in (hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks):
        assert f"$(BIN)/{tool}" in (ROOT / "Makefile").read_text(), "hooks are a part of `make test`"
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        assert {"name", "description", "body"} <= set(yaml.safe_load(form.read_text()))
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    assert Version(newest[1]) >= Version(balcal.__version__)
