"""A name is text, whatever it contains: to a terminal, in Markdown, LaTeX, CSV, JSON and on a page."""

import csv
import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from command_line import balcal_cli
from markdown_it import MarkdownIt
from page_samples import balcal_run, hostile_story, small_arena
from pages import Page, check_self_contained
from terminal import Terminal

from balcal.arena.jobs import Outcome
from balcal.arena.progress import Watch
from balcal.cli.text import print_json, print_table
from balcal.deploy.card import card_of, in_markdown
from balcal.report.arena import arena_page
from balcal.report.page import run_page
from balcal.runs import Run
from balcal.runtime import names as naming
from balcal.runtime.names import HIDDEN, plain
from balcal.runtime.progress import Progress, Steps

NAMES = [
    "\x1b[31mred\x1b[0m",
    "\x9b31m",
    "two\nlines\r\tand a tab",
    "\u202eturned",
    "half \udc80",
    "[red]rich[/red]",
    "[/nothing]",
    ":cat:",
    "a|b",
    "`tick`",
    "a``b",
    "<script>alert(1)</script>",
    "[x](http://y) ![i](j)",
    "*bold* _it_ ~~no~~",
    "&lt;b&gt;",
    "$x^2$ & 50% #1 {y}~",
    "back\\slash\\|",
    '"quoted", with a comma',
]
ODD = "odd \x1b[2J [/red] \x9b31m\n:cat:"


def terminal(monkeypatch):
    """stderr and stdout as a person has them."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "400")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdout", shown)
    return shown


def check_shown(screen):
    assert "\x1b[2J" not in screen.said
    assert "\x9b" not in screen.said
    assert plain(ODD).split("\\n")[0] in screen.said
    assert ":cat:" in screen.said


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", ODD],
        ["show", ODD],
        ["arena", "digits", "--methods", ODD],
        ["report", ODD],
        ["evaluate", ODD],
        ["data", f"folder:{ODD}"],
        ["train", "digits", "vanilla", "--set", f"plan.{ODD}=1"],
    ],
    ids=["task", "method", "methods", "report", "run", "folder", "setting"],
)
def test_errors_are_one_line_without_escapes(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = balcal_cli(*arguments, capsys=capsys)
    assert code == 1
    assert err.count("\n") == 1
    assert not HIDDEN.search(err.rstrip("\n"))
    assert r"\u001b[2J" in err


def test_names_of_arrays_and_files(tmp_path, capsys):
    path = tmp_path / f"a{ODD.replace('/', '')}.npz"
    np.savez(path, **{ODD.replace("/", ""): np.zeros(3)})
    code, _, err = balcal_cli("audit", path, capsys=capsys)
    assert code == 1
    assert not HIDDEN.search(err.rstrip("\n"))
    assert r"\u001b[2J" in err


def test_progress_shows_names_as_they_are(monkeypatch):
    screen = terminal(monkeypatch)
    shown = Progress(ODD)
    shown.start(1, 0, 0, 10, 2)
    shown.note(ODD)
    shown.end_epoch({"epoch": 0, "loss": 1.0, "val_nll": 0.5, "val_acc": 0.9, "val_ece": 0.1})
    shown.close()
    Steps(ODD)(ODD, 1, 1)
    check_shown(screen)


def test_an_arena_shows_names_as_they_are(monkeypatch):
    run = Run.at(balcal_run())
    screen = terminal(monkeypatch)
    with Watch(ODD, [run], 1) as watch:
        watch.done(run, Outcome(error=ODD))
    check_shown(screen)


def test_tables_show_names_as_they_are(monkeypatch):
    screen = terminal(monkeypatch)
    print_table([ODD, "b"], [[ODD, ODD]], ODD)
    check_shown(screen)


def test_json_stays_json(capsys):
    print_json({name: name for name in NAMES})
    out = capsys.readouterr().out
    assert json.loads(out) == {name: name for name in NAMES}
    assert not HIDDEN.search(out.replace("\n", ""))


def rendered(text):
    """As a browser shows Markdown: (tags, texts of table cells, all text)."""
    page = Page(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))
    return {tag for tag, _ in page.tags}, page


def odd_arena():
    """A result whose names want out."""
    _, result = small_arena()
    names = dict(zip(result.entries, ("`a|b` \n", "_c_\x1b[1m\\", "<script>", "{d}~^&%$#\r"), strict=True))
    search = {"method": "a`b", "by": "x", "tried": [{"settings": ["<b>*x*"]}], "chosen": ["<b>*x*"]}
    changed = replace(
        result,
        task="folder:/[x](y)/\n`",
        entries=tuple(names.values()),
        reference="<script>",
        cells=tuple(replace(cell, entry=names[cell.entry]) for cell in result.cells),
        searches=(search,),
    )
    return changed, list(names.values())


def test_a_markdown_table_shows_names_as_they_are():
    result, names = odd_arena()
    tags, page = rendered(result.table())
    assert tags == {"table", "thead", "tbody", "tr", "th", "td", "p", "code", "strong"}
    for name in [*names, result.task]:
        assert plain(name).strip() in [text.strip() for text in page.texts]
    assert "<b>*x*" in page.text
    lines = [line for line in result.table().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(names)


def test_a_latex_table_shows_names_as_they_are():
    result, _ = odd_arena()
    body, _, comments = result.table("latex").partition(r"\end{tabular}")
    assert all(line.startswith("%") for line in comments.strip().splitlines())
    for shown in (
        r"\texttt{`a|b` \textbackslash{}n}",
        r"\texttt{\_c\_\textbackslash{}u001b[1m\textbackslash{}}",
        r"\texttt{\{d\}\textasciitilde{}\textasciicircum{}\&\%\$\#\textbackslash{}r}",
    ):
        assert shown in body
    assert body.count(r"\\") == 1 + len(result.entries)
    plain_one = small_arena()[1].table("latex")
    assert r"\texttt{vanilla+ts}" in plain_one


@pytest.mark.parametrize(("format", "lines"), [("csv", 4), ("runs", 8)])
def test_csv_has_a_line_per_row(format, lines):
    result, names = odd_arena()
    table = result.table(format)
    assert len(table.splitlines()) == 1 + lines
    assert {row["entry"] for row in csv.DictReader(io.StringIO(table))} == set(map(plain, names))


def test_runs_of_a_search_that_found_nothing_have_a_line_too():
    _, result = small_arena()
    lost = replace(result, runs=result.runs[:1])
    assert len(lost.table("runs").splitlines()) == 1 + len(result.cells)


def test_a_card_shows_classes_as_they_are():
    run = Run.at(balcal_run())
    figures = json.loads((run.path / "metrics.json").read_text())
    card = card_of(run, figures, run.load_predictions("test"), (8, 8, 1), NAMES)
    assert "- **Classes** " in in_markdown(card)
    for name in NAMES:
        card["classes"], card["what"] = [name], name
        text = in_markdown(card)
        text.encode()
        tags, page = rendered(text)
        assert tags == {"h1", "p", "ul", "li", "strong", "code", "table", "thead", "tbody", "tr", "th", "td"}, name
        assert f"Classes {plain(name)}" in " ".join(page.text.split()), name
        assert text.count("\n|") == in_markdown(card | {"classes": ["a"], "what": "b"}).count("\n|")


def test_pages_show_names_as_they_are():
    for page in (run_page(replace(hostile_story(), classes=NAMES[:4])), arena_page(odd_arena()[0])):
        page.encode()
        text = check_self_contained(page).text
        assert not HIDDEN.search(page.replace("\n", ""))
        assert r"\u001b[" in text


def test_code_is_code_wherever_it_stands():
    for name in NAMES:
        for text in (f"x {naming.as_code(name)} y", f"| a |\n|---|\n| {naming.as_code(name, cell=True)} |\n"):
            tags, page = rendered(text)
            assert "code" in tags
            assert tags <= {"p", "code", "table", "thead", "tbody", "tr", "th", "td"}
            assert plain(name) in page.texts
