"""What the command line prints, as text or (--json) as JSON. Libraries are imported when they are needed.

`print_*` prints, `render_*` returns text. Text has at most 120 columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from inspect import getdoc
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any

from balcal.runtime.names import plain, plain_lines

if TYPE_CHECKING:
    from balcal.evaluation.beyond import BeyondFigures, HumanFigures
    from balcal.evaluation.judge import RunFigures
    from balcal.evaluation.ood import OodFigures
    from balcal.evaluation.shift import ShiftFigures

NARROWEST = 20
"""columns that a wrapped cell has at least, however narrow the terminal is"""


def say(text: object, file: IO[str] | None = None) -> None:
    """Print a text with its control characters written out."""
    print(plain_lines(text), file=file)


def print_json(result: Any) -> None:
    say(json.dumps(result, indent=2, ensure_ascii=False))


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
    from balcal.recipe import ROLES
    from balcal.runtime.provenance import describe

    found = registry.method(name)
    if as_json:
        print_json(describe(found) | found.card() | {"parent": found.starts_from, "remarks": found.remarks()})
        return
    say(f"{found.name}: {found.about}\n")
    if found.when:
        say(f"  {'when':<13}{found.when}\n")
    for role, owner in found.changes.items():
        value = found.starts_from if role == "parent" else getattr(found, role)
        say(f"  {role:<13}{value}" + (f"   (by {owner})" if owner != found.name else ""))
    if not found.changes:
        say("  changes nothing")
    for remark in found.remarks():
        say(f"\n  {remark}")
    homes = [registry.home("methods", owner) for owner in found.changes.values() if not owner.endswith("*")]
    homes += [sys.modules[type(getattr(found, role)).__module__] for role in found.changes if role in ROLES]
    for module in dict.fromkeys(homes):
        say(f"\n{module.__doc__}")


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table that fits the terminal: the last column wraps."""
    say(render_table(titles, rows, title, width=get_terminal_size().columns))


def render_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    width: int | None = None,
    limits: Mapping[str, int] | None = None,
) -> str:
    """Columns with two spaces between them: words to the left, numbers to the right.

    A column wraps at its width in `limits`; the last one wraps so that the table has at most `width` columns.

    >>> print(render_table(["name", "ECE %"], [["vanilla", "8.10"], ["balcal", "12.00"]]))
    name     ECE %
    vanilla   8.10
    balcal   12.00
    """
    lines = [[plain(cell) for cell in row] for row in (titles, *rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    for name, limit in (limits or {}).items():
        widths[titles.index(name)] = min(widths[titles.index(name)], limit)
    if width is not None:
        left = width - sum(widths[:-1]) - 2 * len(widths[:-1])
        widths[-1] = min(widths[-1], max(left, NARROWEST))
    numeric = [all(cell[0] in "+-0123456789" for cell in cells[1:] if cell) for cells in columns]
    text = [plain(title)] if title else []
    for line in lines:
        wrapped = [wrap(cell, max(wide, 1), break_on_hyphens=False) for cell, wide in zip(line, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            placed = zip(parts, widths, numeric, strict=True)
            text.append("  ".join(part.rjust(w) if right else part.ljust(w) for part, w, right in placed).rstrip())
    return "\n".join(text)


def about(entry: Any) -> str:
    """One line: the entry's own description, or the first line of its docstring."""
    text = getattr(entry, "about", None) or getattr(entry, "source", None) or getattr(entry, "func", entry).__doc__
    return str(text).strip().split("\n")[0]


def print_methods(table: Mapping[str, Any]) -> None:
    """Print methods as a table of 120 columns."""
    rows = []
    for name, method in table.items():
        first, *more = method.paper.split(", ")
        authors = f"{first} et al." if len(more) > 1 else " & ".join((first, *more))
        rows.append([name, authors, method.venue, method.about, method.cost])
    titles = ["name", "paper", "venue", "what it changes", "cost"]
    say(render_table(titles, rows, limits={"what it changes": 42, "cost": 23}))


def list_metrics(metrics: Mapping[str, Any], as_json: bool) -> None:
    """Print all metrics, with their direction and unit."""
    if as_json:
        print_json({name: metric.described() for name, metric in metrics.items()})
        return
    rows = [[name, metric.better, metric.unit, metric.about] for name, metric in metrics.items()]
    print_table(["metric", "better", "unit", "what it is"], rows)


def show_metric(name: str, metric: Any, as_json: bool) -> None:
    """Print what a metric measures and how it is computed."""
    if as_json:
        print_json(metric.described())
        return
    say(f"balcal.metrics.{name}: {getdoc(metric.call)}\n")
    for title, value in metric.described().items():
        if title != "about" and value:
            say(f"  {title:<11}{value}")


def print_figures(figures: RunFigures, as_json: bool, beyond: BeyondFigures | None = None) -> None:
    """Print the figures of a run on its test split, and beyond it."""
    from balcal.data.splits import overlap_sentences
    from balcal.metrics.comparison import Comparison
    from balcal.metrics.verdict import Verdict

    if as_json:
        print_json({**figures, "epoch": figures["epoch"] + 1, **(beyond or {})})  # counted from 1, as in the text
        return
    joined = figures.get("members")
    which = f"{len(joined)} predictions joined" if joined else f"epoch {figures['epoch'] + 1} chosen"
    say(f"{figures['task']} {figures['method']} seed {figures['seed']}, {which}")
    say(Verdict.of(figures["test"]))
    for comparison in (figures.get("against_uncalibrated"), figures.get("against_parent")):
        if comparison is not None:
            say(f"\n{Comparison.of(comparison)}")
    data = figures["data"]
    for note in (*figures.get("remarks", []), *(overlap_sentences(data) if data else [])):
        say("\n".join(wrap(plain(f"note: {note}"), 120, subsequent_indent="      ", break_on_hyphens=False)))
    say(f"run: {figures['run']}")
    if beyond:
        say(f"\n{render_beyond(beyond)}")


def render_beyond(figures: BeyondFigures) -> str:
    """One block of text for each evaluation beyond the test split."""
    blocks = []
    if "shift" in figures:
        blocks.append(render_shift(figures["shift"]))
    if "ood" in figures:
        blocks.append(render_ood(figures["ood"]))
    if "human" in figures:
        blocks.append(render_human(figures["human"]))
    return "\n\n".join(blocks)


def render_shift(figures: ShiftFigures) -> str:
    """ECE of each corruption and severity, and means with intervals."""
    by_severity = figures["by_severity"]
    severities = [row["severity"] for row in by_severity]
    ece = {(row["corruption"], row["severity"]): row["ece"] for row in figures["sets"]}
    rows = [
        [name, *(_percent(ece[name, s]) for s in severities), _with_interval(by, "ece"), _with_interval(by, "accuracy")]
        for by in figures["by_corruption"]
        for name in (by["corruption"],)
    ]
    mean = figures["mean"]
    rows.append(["mean ECE", *(_percent(row["ece"]) for row in by_severity), _with_interval(mean, "ece"), ""])
    for end, label in enumerate(("  from", "  to")):
        rows.append([label, *(_percent(row["ece_interval"][end]) for row in by_severity), "", ""])
    accuracies = [_percent(row["accuracy"]) for row in by_severity]
    rows.append(["mean accuracy", *accuracies, "", _with_interval(mean, "accuracy")])
    pooled = figures["pooled"]
    return "\n".join(
        [
            f"Shift: {figures['images']:,} images, {figures['from']}; ECE with {figures['bins']} bins.",
            render_table(["ECE %", *map(str, severities), "mean ECE", "mean accuracy"], rows),
            "The mean of a row is over severities, that of a column over corruptions. Intervals resample the images,",
            f"the same ones in every set. All {pooled['samples']:,} predictions in one: {_percent(pooled['ece'])} %.",
        ]
    )


DETECTION_TITLES = {"auroc": "AUROC %", "fpr95": "FPR95 %", "aupr_in": "AUPR in %", "aupr_out": "AUPR out %"}


def render_ood(figures: OodFigures) -> str:
    """Detection figures of each OOD set and score, and their means."""
    means = figures["mean"]["scores"]
    first = next(iter(means))
    about_test = _percent(figures["mean_confidence"]), f"{figures['mean_entropy']:.3f}"
    rows = [[figures["inside"], "test split", *[""] * len(DETECTION_TITLES), *about_test]]
    for name, one in figures["sets"].items():
        about_set = _percent(one["mean_confidence"]), f"{one['mean_entropy']:.3f}"
        for score in means:
            found = [_with_interval(one["scores"][score], figure) for figure in DETECTION_TITLES]
            rows.append([name, score, *found, *about_set] if score == first else ["", score, *found, "", ""])
    for score, mean in means.items():
        label = f"mean of {len(figures['sets'])}" if score == first else ""
        rows.append([label, score, *(_percent(mean[figure]) for figure in DETECTION_TITLES), "", ""])
    titles = ["set", "score", *DETECTION_TITLES.values(), "conf. %", "entropy"]
    missing = "".join(f"\nLeft out, and not in the mean: {why}." for why in figures["missing"].values())
    title = f"OOD sets, each against {figures['images']:,} test images of {figures['inside']}"
    return render_table(titles, rows, title) + missing


def render_human(figures: HumanFigures) -> str:
    """Distance to human labels, beside the agreement of people with each other."""
    people = figures["people"]
    return (
        f"Human labels of the same {figures['images']:,} images: cross-entropy to them {figures['cross_entropy']:.4f} "
        f"(theirs to themselves {people['entropy']:.4f}), KL {figures['kl']:.4f}.\n"
        f"Mean confidence {_percent(figures['mean_confidence'])} %; "
        f"on average {_percent(people['mean_share_of_first_choice'])} % of the people agree on their first choice."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _with_interval(row: Mapping[str, Any], figure: str) -> str:
    low, high = row[f"{figure}_interval"]
    return f"{_percent(row[figure])} [{100 * low:.1f}, {100 * high:.1f}]"
