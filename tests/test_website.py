"""The made pages of the documentation: every public name, every method, every verb is there, with what readers need."""

import inspect
import json
import re
from pathlib import Path

import prose
import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def website():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "website"))
        yield


def test_every_public_name_is_in_the_reference_with_an_example():
    import reference

    pages = reference.pages()
    for module in reference.MODULES:
        page = pages[module.rpartition(".")[2]]
        for name, thing in reference.names(module).items():
            assert f"::: {reference.where(thing)}\n" in page, f"{module}.{name} is not in the reference"
            text = inspect.getdoc(thing) or ""
            assert ">>>" in text, f"{module}.{name} has no example"
            if not inspect.isfunction(inspect.unwrap(thing)):
                continue
            explained = f"{text} {' '.join(reference.SHARED.get(module, {}))}"
            left = [each for each in inspect.signature(thing).parameters if not re.search(rf"\b{each}\b", explained)]
            assert not left, f"{module}.{name} does not explain {left}"


def test_names_apart_have_an_example_too():
    import reference

    for name in reference.APART:
        module, _, thing = name.rpartition(".")
        home = pytest.importorskip(module, reason=f"{module} needs a library that is not here")
        assert ">>>" in (inspect.getdoc(getattr(home, thing)) or "")
        assert f"::: {name}\n" in reference.adapters()


def test_every_module_with_public_names_has_a_page():
    import reference

    named = {path for path in (ROOT / "src" / "balcal").glob("*/__init__.py") if "__all__" in path.read_text()}
    assert {f"balcal.{path.parent.name}" for path in named} - {"balcal.cli", "balcal.paper"} <= set(reference.MODULES)


def test_every_verb_is_on_the_page_of_the_command_line():
    import reference
    from typer.testing import CliRunner

    from balcal.cli import app

    page = reference.commands()
    listed = re.findall(r"^  (\w+)  ", CliRunner().invoke(app, ["--help"]).output.partition("Commands:")[2], re.M)
    assert len(listed) > 10
    for verb in listed:
        assert f"## balcal {verb}\n" in page
    assert "--accuracy" in page.partition("## balcal decide")[2].partition("## balcal report")[0]


def test_every_method_has_a_card_that_says_when_to_use_it():
    import cards

    from balcal import registry

    pages = cards.pages()
    assert set(pages) == {*registry.table("methods"), "index"}
    for name, method in registry.table("methods").items():
        assert method.when, f"say in {registry.home('methods', name).__name__} when to use `{name}`"
        assert f"| When | {method.when} |" in pages[name]
        assert f"]({name}.md)" in pages["index"]
    assert "L = mean_i( -(1 - p_y)^gamma log p_y )" in pages["fl"]
    assert "Mukhoti et al." in pages["fl"].partition("## Differences")[2]


def test_a_card_has_the_results_of_the_fast_tasks(tmp_path):
    import cards

    assert "Not run yet" in cards.pages(tmp_path)["fl"]
    for seed, accuracy in enumerate((0.94, 0.96)):
        last = {"accuracy": accuracy, "ece": 0.03, "nll": 0.2}
        figures = {"last": last, "last+ts": {**last, "ece": 0.01}}
        run = {"task": "cifar10-fast", "method": "fl", "seed": seed, "figures": figures}
        (tmp_path / f"cifar10-fast-fl-seed{seed}.json").write_text(json.dumps(run))
    broken = {"task": "svhn-fast", "method": "fl", "seed": 0, "failed": "lower the learning rate"}
    (tmp_path / "svhn-fast-fl-seed0.json").write_text(json.dumps(broken))
    found = cards.pages(tmp_path)["fl"]
    assert "| `cifar10-fast` | 2 | as trained | 95.00 ± 1.41 | 3.00 ± 0.00 | 0.2000 ± 0.0000 |" in found
    assert "| `cifar10-fast` | 2 | with `ts` | 95.00 ± 1.41 | 1.00 ± 0.00 |" in found
    assert "failed: lower the learning rate" in found
    assert "Not run yet" in cards.pages(tmp_path)["ls"]


def test_every_page_is_in_the_navigation():
    nav = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages |= {f"tutorials/{path.stem}.md" for path in (ROOT / "docs" / "tutorials").glob("*.ipynb")}
    assert {page for page in pages if f"'{page}'" not in nav} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_tutorial_runs_and_is_kept_with_its_outputs(path, tmp_path, monkeypatch):
    import notebooks
    import torch

    monkeypatch.chdir(tmp_path)
    kept, threads = notebooks.read(path), torch.get_num_threads()
    try:
        now = notebooks.executed(kept, path.name)
    finally:
        torch.set_num_threads(threads)
    kinds = [[output["output_type"] for output in cell.get("outputs", [])] for cell in kept["cells"]]
    assert kinds == [[output["output_type"] for output in cell.get("outputs", [])] for cell in now["cells"]], (
        f"python website/notebooks.py {path.stem}"
    )
    assert len([kind for kind in kinds if kind]) >= 4
    text, pictures = notebooks.page(path)
    assert all(name in text for name in pictures)
    for link in re.findall(r"\]\((\.\.[^)#]+)\)", text):
        assert (path.parent / link).exists(), f"{link} is not there"


def test_an_example_without_a_heading_gets_one():
    pytest.importorskip("griffe", reason="griffe is not here: pip install 'balcal[docs]'")
    from docstrings import with_heading

    assert with_heading("Adds.\n\n>>> 1 + 1\n2") == "Adds.\n\nExamples\n--------\n>>> 1 + 1\n2"
    given = "Adds.\n\nParameters\n----------\na\n    A number.\n\nOne and one:\n\n>>> 1 + 1\n2"
    assert with_heading(given) == given.replace("One and one:", "Examples\n--------\nOne and one:")
    assert with_heading("Adds.\n\nExamples\n--------\n>>> 1 + 1") == "Adds.\n\nExamples\n--------\n>>> 1 + 1"


def guides():
    """Pages of *Guides*, and the one to start with."""
    sections = {
        name: pages
        for section in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        for name, pages in section.items()
    }
    made = {"serve.md": ROOT / "examples" / "serve" / "README.md"}
    names = ["start.md", *(name for page in sections["Guides"] for name in page.values())]
    return [made.get(name, ROOT / "docs" / name) for name in names]


@pytest.mark.parametrize("path", guides(), ids=lambda path: path.stem)
def test_a_guide_is_plain(path):
    """Short sentences, in the field's words."""
    text = path.read_text()
    assert prose.mean_length(text) < 18
    for sentence in prose.sentences(text):
        assert len(prose.words(sentence)) <= 40, f"two sentences would be clearer: {sentence}"
        assert not (found := re.search(prose.PRIVATE, sentence)), f"not the field's word: {found[0]}, in: {sentence}"


def test_guides_are_short():
    assert sum(len(path.read_text().split()) for path in guides()) < 12_000


def test_the_service_page_has_the_figures_of_its_bench():
    page = (ROOT / "examples" / "serve" / "README.md").read_text()
    found = json.loads((ROOT / "bench" / "results" / "serve.json").read_text())
    for size in (1, 64):
        each = found[f"batch of {size}"]
        times = [each[f"served, {kind}"]["against onnxruntime"]["ratio"] for kind in ("bytes", "JSON")]
        share = each["images per second, two clients"]["ratio"]
        row = f"| {size} | {times[0]:.1f} | {times[1]:.1f} | {share:.0%} |"
        assert row in page, f"examples/serve/README.md should have: {row}"
