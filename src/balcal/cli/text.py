"""What the command line prints, for people or (--json) for programs. Libraries are imported when they are needed.

Tables beyond the test split, as text of at most 120 columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from inspect import getdoc
from typing import IO, TYPE_CHECKING, Any

from balcal.runtime.names import plain, plain_lines

if TYPE_CHECKING:
    from rich.console import Console
from collections.abc import Sequence


def say(text: object, file: IO[str] | None = None) -> None:
    """Print; what a terminal would obey instead of showing it is written out."""
    print(plain_lines(text), file=file)


def console(**settings: Any) -> Console:
    """Where tables are printed: names in them are text, not mark-up."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, **settings)


def print_json(told: Any) -> None:
    say(json.dumps(told, indent=2, ensure_ascii=False))


def print_list(kind: str, as_json: bool, every: bool = False) -> None:
    """Print all entries of a kind, by name. Methods that did not win need `every`."""
    from balcal import registry

    table = registry.table(kind)
    if kind == "methods" and not every:
        table = {name: entry for name, entry in table.items() if entry.listed}
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
    """Print what a method changes, with its settings and its formula."""
    from balcal import registry
    from balcal.recipe import ROLES, describe

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
    homes = [registry.home("methods", owner) for owner in found.changes.values()]
    homes += [sys.modules[type(getattr(found, role)).__module__] for role in found.changes if role in ROLES]
    for module in dict.fromkeys(homes):
        say(f"\n{module.__doc__}")


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
    """One line: the entry's own description, or the first line of its docstring."""
    text = getattr(entry, "about", None) or getattr(entry, "source", None) or getattr(entry, "func", entry).__doc__
    return str(text).strip().split("\n")[0]


def print_methods(table: Mapping[str, Any]) -> None:
    """Print methods as a table of 120 columns."""
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
    from balcal.data.splits import overlap_sentences
    from balcal.metrics.comparison import Comparison
    from balcal.metrics.verdict import Verdict

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


FIGURES = ("auroc", "fpr95", "aupr_in", "aupr_out")
Told = dict[str, Any]


def in_words(told: dict[str, Told]) -> str:
    """One block of text for each thing that was asked."""
    ways = {"shift": shift_in_words, "ood": outside_in_words, "human": human_in_words}
    return "\n\n".join(ways[name](figures) for name, figures in told.items())


def shift_in_words(told: Told) -> str:
    severities = [row["severity"] for row in told["by_severity"]]
    ece = {(row["corruption"], row["severity"]): row["ece"] for row in told["sets"]}
    rows = [
        [name, *(_percent(ece[name, s]) for s in severities), _mean(by, "ece"), _mean(by, "accuracy")]
        for by in told["by_corruption"]
        for name in (by["corruption"],)
    ]
    for label, figure, ends in (("mean ECE", "ece", (0, 1)), ("mean accuracy", "accuracy", ())):
        means = {"ece": "", "accuracy": ""} | {figure: _mean(told["mean"], figure)}
        rows.append([label, *(_percent(row[figure]) for row in told["by_severity"]), *means.values()])
        for end in ends:
            bounds = [_percent(row["ece_interval"][end]) for row in told["by_severity"]]
            rows.append([("  from", "  to")[end], *bounds, "", ""])
    pooled = told["pooled"]
    return "\n".join(
        [
            f"Shift: {told['images']:,} images, {told['from']}; ECE with {told['bins']} bins.",
            _table(["ECE %", *map(str, severities), "mean ECE", "mean accuracy"], rows),
            "The mean of a row is over severities, that of a column over corruptions; intervals resample the images,",
            f"the same ones in every set. All {pooled['samples']:,} predictions in one: {_percent(pooled['ece'])} %.",
        ]
    )


def outside_in_words(told: Told) -> str:
    scores = list(told["mean"]["scores"])
    rows = [[told["inside"], "inside", *[""] * 4, _percent(told["mean_confidence"]), f"{told['mean_entropy']:.3f}"]]
    for name, one in told["sets"].items():
        for score in scores:
            figures = one["scores"][score]
            about = [_percent(one["mean_confidence"]), f"{one['mean_entropy']:.3f}"] if score == scores[0] else ["", ""]
            label = name if score == scores[0] else ""
            rows.append([label, score, *(_mean(figures, f) for f in FIGURES), *about])
    for number, score in enumerate(scores):
        mean = told["mean"]["scores"][score]
        label = f"mean of {len(told['sets'])}" if number == 0 else ""
        rows.append([label, score, *(_percent(mean[f]) for f in FIGURES), "", ""])
    titles = ["set", "score", "AUROC %", "FPR95 %", "AUPR in %", "AUPR out %", "conf. %", "entropy"]
    missing = "".join(f"\nLeft out, and not in the mean: {why}." for why in told["missing"].values())
    title = f"Outside sets, each against {told['images']:,} test images of {told['inside']}"
    return f"{title}\n{_table(titles, rows)}{missing}"


def human_in_words(told: Told) -> str:
    people = told["people"]
    return (
        f"People, who were asked about the same {told['images']:,} images: cross-entropy to their answers "
        f"{told['cross_entropy']:.4f} (theirs to themselves {people['entropy']:.4f}), KL {told['kl']:.4f}.\n"
        f"Mean confidence {_percent(told['mean_confidence'])} %; "
        f"on average {_percent(people['mean_share_of_first_choice'])} % of them agree on their first choice."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _mean(row: Told, figure: str) -> str:
    low, high = row[f"{figure}_interval"]
    return f"{_percent(row[figure])} [{100 * low:.1f}, {100 * high:.1f}]"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left the names, right the numbers."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    words = {i for i in range(len(titles)) if any(row[i][:1].isalpha() for row in rows)}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [titles, *rows]
    )
