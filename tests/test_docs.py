"""The code in the docs runs: every block, through the program, and each extension in the one file that it names."""

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "balcal"
NEEDS = {"lightning.md": "lightning", "huggingface.md": "transformers"}
ADDED = re.compile(r"# (src/balcal/\S+?)(, at the end)?\n")
"""the first line of a block that belongs to a file of the package"""


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def runnable(path):
    """Blocks that run as they are: all but those for files of the package, of which a method's can be used at once."""
    found = blocks(path.read_text())
    return [code for code in found if not (named := ADDED.match(code)) or "/methods/" in named[1]]


@pytest.mark.parametrize("path", [p for p in sorted(DOCS.glob("*.md")) if runnable(p)], ids=lambda p: p.name)
def test_code_in_the_docs_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path.name in NEEDS:
        warnings.simplefilter("ignore")  # theirs
        pytest.importorskip(NEEDS[path.name], reason=f"{NEEDS[path.name]} is not here: {path.name} says how to get it")
    names = {"__name__": f"docs.{path.stem}"}
    for code in runnable(path):
        exec(compile(code.replace("from __future__ import annotations\n", ""), path.name, "exec"), names)


def extensions():
    """Sections of extend.md that change the package, by title."""
    sections = re.split(r"^## ", (DOCS / "extend.md").read_text(), flags=re.M)
    return {each.partition("\n")[0]: each for each in sections if "# src/balcal/" in each}


def apply_blocks(section, root):
    """Do to the copy in `root` what the blocks say; returns the files that they name."""
    named = set()
    for language in ("python", "diff"):
        for code in blocks(section, language):
            if not (found := ADDED.match(code)):
                continue
            path, rest = root / found[1], code[found.end() :]
            named.add(found[1])
            if language == "diff":
                path.write_text(patched(path.read_text(), rest))
            elif found[2]:
                path.write_text(f"{path.read_text()}\n\n{rest}")
            else:
                assert not path.exists(), f"{found[1]} is there already"
                path.write_text(rest)
    return named


def patched(text, diff):
    """Each hunk's old lines stand in the text exactly once, and are replaced by its new ones."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, f"not there, or not once:\n{old}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


def different(root):
    """Files of the copy that are not as in the source, or not in it."""
    pairs = [(path, SOURCE / path.relative_to(root / "src" / "balcal")) for path in (root / "src").rglob("*.*")]
    return {
        str(copy.relative_to(root))
        for copy, original in pairs
        if copy.is_file()
        and copy.suffix != ".pyc"
        and not (original.exists() and copy.read_bytes() == original.read_bytes())
    }


def commands(section):
    """(command, what it prints) of the console blocks; `...` stands for anything."""
    for block in blocks(section, "console"):
        for each in block.removeprefix("$ ").split("\n$ "):
            command, _, output = each.partition("\n")
            yield command, output.rstrip("\n") + "\n"


@pytest.mark.parametrize("title", extensions())
def test_an_extension_is_the_file_that_it_names(title, tmp_path):
    """The change is made in a copy of the package; the commands find what was added, and no other file is touched."""
    section = extensions()[title]
    shutil.copytree(SOURCE, tmp_path / "src" / "balcal", ignore=shutil.ignore_patterns("__pycache__"))
    named = apply_blocks(section, tmp_path)
    assert different(tmp_path) == named
    assert len(named) == (2 if title == "A data set" else 1)
    for program, arguments in (("python", ""), ("balcal", "-m balcal")):
        (tmp_path / program).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (tmp_path / program).chmod(0o755)
    places = {"PYTHONPATH": str(tmp_path / "src"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    checker, found = doctest.OutputChecker(), list(commands(section))
    assert found
    for command, expected in [('python -c "import balcal; print(balcal.__file__)"', f"{tmp_path}...\n"), *found]:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=os.environ | places, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert checker.check_output(expected, done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE), (
            f"{command}\n{done.stdout}\nis not\n{expected}"
        )
    assert different(tmp_path) == named


def test_every_role_in_the_extension_table_is_one():
    from balcal.recipe import ROLES

    table = re.findall(r"^\|[^|]*\| `(\w+)` \| `\w+`(?:, `\w+`)* \|$", (DOCS / "extend.md").read_text(), re.M)
    assert sorted(table) == sorted(ROLES)


def test_the_walk_finds_every_file_and_name():
    text = (DOCS / "walk.md").read_text()
    steps = re.findall(r"^\| \d+ \| `(\S+)` \| (.*?) \|", text, re.M)
    assert len(steps) > 10
    for file, names in steps:
        source = (SOURCE / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", source), f"{name} is not in {file}"
    floors = text.partition("## The floors")[2].partition("## A look")[0]
    for room in re.findall(r"`(\w+(?:/|\.py))`", floors):
        assert (SOURCE / room).exists(), f"there is no {room}"


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("[!.]*/README.md"),
    *ROOT.glob("examples/*/README.md"),
]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_links_to_or_names_is_there(path):
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (path.parent / link).exists(), f"{link} is not there"
    for name in re.findall(r"`((?:src|docs|results|bench|tests)/[\w./-]+)`", text):
        made = path.name == "extend.md" and f"# {name}" in text
        assert made or (ROOT / name).exists(), f"{name} is not there"
    for name in set(re.findall(r"(?<![\w./-])balcal(?:\.\w+)+", text)) - {"balcal.card", "balcal.card.md"}:
        made = path.name == "extend.md" and f"# src/{name.replace('.', '/')}.py\n" in text
        assert made or exists(name), f"{name} is not there"


def exists(name):
    """A module of ours, or something in one."""
    module, parts = name, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("balcal"):
                return True  # it is there, and wants a library that is not
            module, _, part = module.rpartition(".")
            parts.insert(0, part)
    for part in parts:
        found = getattr(found, part, None)
    return found is not None


@pytest.mark.parametrize("folder", ["results", "bench"])
def test_an_index_names_every_file(folder):
    index = (ROOT / folder / "README.md").read_text()
    kept = [path for kind in ("*.csv", "*.json") for path in (ROOT / folder).rglob(kind)]
    scripts = list((ROOT / folder).rglob("*.py"))
    assert kept
    assert scripts
    alike = {"paper-ITEM.json": r"paper-\w.*", "TASK-METHOD-seedN.json": r".*-fast-.*-seed\d"}
    many = [pattern for named, pattern in alike.items() if named in index]
    names = {path.stem for path in (*kept, *scripts) if not any(re.fullmatch(each, path.stem) for each in many)}
    assert {name for name in names if name not in index} == set()


def test_the_page_of_results_says_what_the_files_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "results" / "scripts"))
    import ensembles_page
    import fast_page
    import posthoc_page
    import write

    pages = {
        write.PAGE: fast_page.page(),
        write.APPENDIX: write.appendix(),
        write.CALIBRATORS: posthoc_page.page(),
        write.ENSEMBLES: ensembles_page.page(),
        write.README: write.front_page(),
    }
    for path, text in pages.items():
        assert path.read_text() == text, "run results/scripts/write.py"
    pictures = re.findall(r"\]\(results/([\w-]+\.png)\)", "".join(pages.values()))
    assert sorted(pictures) == sorted(path.name for path in (DOCS / "results").glob("*.png"))
    if write.finals():
        assert write.last_page() == (DOCS / "research" / "auto-final.md").read_text(), "run results/scripts/write.py"
