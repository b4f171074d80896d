"""What the command line prints, for people or (--json) for programs. Libraries are imported when they are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from inspect import getdoc
from typing import IO, TYPE_CHECKING, Any

from balcal.naming import plain, plain_lines

if TYPE_CHECKING:
    from rich.console import Console


def say(text: object, file: IO[str] | None = None) -> None:
    """Print; what a terminal would obey instead of showing it is written out."""
    print(plain_lines(text), file=file)


def console(**settings: Any) -> Console:
    """Where tables are printed: names in them are text, not mark-up."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, **settings)


def print_json(told: Any) -> None:
    say(json.dumps(told, indent=2, ensure_ascii=False))


def print_list(kind: str, as_json: bool) -> None:
    """What there is of a kind, by name."""
    from balcal import registry

    table = registry.table(kind)
    if kind == "metrics":
        list_metrics(table, as_json)
    elif as_json:
        print_json({name: entry.card() if kind == "methods" else about(entry) for name, entry in table.items()})
    elif kind == "methods":
        print_methods(table)
    else:
        width = max(map(len, table))
        for name, entry in table.items():
            say(f"{name:<{width}}  {about(entry)}")
        if kind == "backbones":
            from balcal.backbones.from_timm import ABOUT

            say(f"{'timm:NAME':<{width}}  {ABOUT}")


def print_method(name: str, as_json: bool) -> None:
    """What a method changes, with its settings and its formula."""
    from balcal import registry
    from balcal.recipe import SETTINGS, describe

    found = registry.method(name)
    if as_json:
        print_json(describe(found) | found.card() | {"parent": found.starts_from, "remarks": found.remarks()})
        return
    say(f"{found.name}: {found.about}\n")
    for role, owner in found.changes.items():
        value = found.starts_from if role == "parent" else getattr(found, role)
        say(f"  {role:<13}{value}" + (f"   (by {owner})" if owner != found.name else ""))
    if not found.changes:
        say("  changes nothing")
    for remark in found.remarks():
        say(f"\n  {remark}")
    homes = {role: type(getattr(found, role)).__module__ for role in found.changes if role != "parent"}
    if SETTINGS in homes:  # plain values, which have no home of their own
        homes[SETTINGS] = f"balcal.methods.{found.changes[SETTINGS]}"
    for module in dict.fromkeys(homes.values()):
        say(f"\n{sys.modules[module].__doc__}")


def print_table(titles: list[str], rows: list[list[str]], title: str = "") -> None:
    """Columns that fit the terminal; the last one wraps."""
    from rich.table import Table

    table = Table(title=plain(title) or None, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(titles):
        numeric = all(row[number][:1] in "+-0123456789" for row in rows if row[number])
        table.add_column(plain(name), justify="right" if numeric else "left", no_wrap=number < len(titles) - 1)
    for row in rows:
        table.add_row(*map(plain, row))
    console().print(table)


def about(entry: Any) -> str:
    """One line: what the entry says of itself, or the first line of its docstring."""
    told = getattr(entry, "about", None) or getattr(entry, "source", None) or getattr(entry, "func", entry).__doc__
    return str(told).strip().split("\n")[0]


def print_methods(table: Mapping[str, Any]) -> None:
    """A table of 120 columns."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for title, widest in (("name", 16), ("paper", 19), ("venue", 12), ("what it changes", 42), ("cost", 23)):
        shown.add_column(title, max_width=widest, no_wrap=title in ("name", "paper", "venue"))
    for name, method in table.items():
        first, *more = method.paper.split(", ")
        authors = f"{first} et al." if len(more) > 1 else " & ".join((first, *more))
        shown.add_row(*map(plain, (name, authors, method.venue, method.about, method.cost)))
    console(width=120, soft_wrap=False).print(shown)


def list_metrics(metrics: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({name: metric.described() for name, metric in metrics.items()})
        return
    rows = [[name, metric.better, metric.unit, metric.about] for name, metric in metrics.items()]
    print_table(["metric", "better", "unit", "what it is"], rows)


def show_metric(name: str, metric: Any, as_json: bool) -> None:
    if as_json:
        print_json(metric.described())
        return
    say(f"balcal.metrics.{name}: {getdoc(metric.call)}\n")
    for title, told in metric.described().items():
        if title != "about" and told:
            say(f"  {title:<11}{told}")


def print_figures(figures: dict[str, Any], as_json: bool) -> None:
    from balcal.data.roles import overlap_sentences
    from balcal.metrics.verdict import Comparison, Verdict

    if as_json:
        print_json(figures)
        return
    say(f"{figures['task']} {figures['method']} seed {figures['seed']}, epoch {figures['epoch'] + 1} chosen")
    say(Verdict.of(figures["test"]))
    for other in ("against_uncalibrated", "against_parent"):
        if other in figures:
            say(f"\n{Comparison.of(figures[other])}")
    for remark in figures.get("remarks", []):
        say(f"note: {remark}")
    for sentence in overlap_sentences(figures["data"]) if figures.get("data") else []:
        say(f"note: {sentence}")
    say(f"run: {figures['run']}")
