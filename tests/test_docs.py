"""The code in the docs runs, and a method really is one file."""

import re
import warnings
from pathlib import Path

import pytest

import balcal
import balcal.methods
from balcal import registry

DOCS = Path(__file__).parents[1] / "docs"
NEEDS = {"lightning.md": "lightning", "huggingface.md": "transformers"}


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.S)


@pytest.mark.parametrize("path", [p for p in sorted(DOCS.glob("*.md")) if blocks(p)], ids=lambda p: p.name)
def test_code_in_the_docs_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path.name in NEEDS:
        warnings.simplefilter("ignore")  # theirs
        pytest.importorskip(NEEDS[path.name], reason=f"{NEEDS[path.name]} is not here: {path.name} says how to get it")
    names = {"__name__": f"docs.{path.stem}"}
    for code in blocks(path):
        exec(compile(code.replace("from __future__ import annotations\n", ""), path.name, "exec"), names)


def test_a_method_is_one_file(tmp_path, monkeypatch):
    """The file of extend.md, put where methods live, is found, listed, shown, joined and set."""
    (tmp_path / "poly.py").write_text(blocks(DOCS / "extend.md")[0])
    monkeypatch.setattr(balcal.methods, "__path__", [*balcal.methods.__path__, str(tmp_path)])
    registry.table.cache_clear()
    try:
        joined = registry.recipe("digits", "balcal+poly+ts", 0, ["loss.epsilon=2"]).method
        assert joined.name == "balcal+poly+ts"
        assert joined.loss.epsilon == 2.0
        assert joined.changes["loss"] == "poly"
    finally:
        registry.table.cache_clear()


def test_every_role_in_the_extension_table_is_one():
    from balcal.recipe import ROLES

    table = re.findall(r"^\|[^|]*\| `(\w+)` \|", (DOCS / "extend.md").read_text(), re.M)
    assert sorted(table) == sorted(ROLES)


def test_the_page_of_results_says_what_the_files_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS.parent / "results" / "scripts"))
    import write

    told = (DOCS / "results.md").read_text()
    assert write.page() == told, "run results/scripts/write.py"
    pictures = re.findall(r"\]\(results/([\w-]+\.png)\)", told)
    assert sorted(pictures) == sorted(path.name for path in (DOCS / "results" / "scripts").glob("*.png"))
    if write.finals():
        assert write.last_page() == (DOCS / "research" / "auto-final.md").read_text(), "run results/scripts/write.py"
