"""Method cards: one page for each method, from its file, its entry in the registry, and results/data/fast."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from balcal import registry
from balcal.recipe import ROLES, Method

FAST = Path(__file__).parents[1] / "results" / "data" / "fast"
DIFFER = "Paper and released code differ:"
GROUPS = {
    "BalCAL": ("head", "tally"),
    "Losses": ("loss",),
    "Mixing": ("mix",),
    "Stages and schedules": ("before_epoch", "parent"),
    "After training": ("posthoc",),
    "Several predictions": ("join", "views"),
    "Which weights": ("select", "settings"),
}
"""sections of the index, and the roles that their methods change; the first section that fits"""
PLAIN = "Plain training"
TELLING = ("loss", "mix", "before_epoch", "posthoc")
"""roles whose class says in a sentence what the method is about"""


def group(method: Method) -> str:
    changes = set(method.changes)
    if changes & {"before_epoch", "parent"}:
        return "Stages and schedules"
    return next((title for title, roles in GROUPS.items() if changes & set(roles)), PLAIN)


def pages(folder: Path = FAST) -> dict[str, str]:
    """The index and every card, by name."""
    methods = registry.table("methods")
    results = fast_results(folder)
    return {"index": index(methods)} | {name: card(name, each, results) for name, each in methods.items()}


def nav() -> list[Any]:
    """Of the section *Methods*: the index, then groups of cards."""
    methods = registry.table("methods")
    titles = [PLAIN, *GROUPS]
    return ["methods/index.md"] + [
        {title: [{name: f"methods/{name}.md"} for name, each in methods.items() if group(each) == title]}
        for title in titles
    ]


def index(methods: Mapping[str, Method]) -> str:
    lines = [
        "# Methods",
        "",
        "One card for each method: idea, formula, when to use it, cost, results, paper.",
        "Methods are joined by `+`: `balcal+fl+ts`. In doubt: [which method](../choose.md).",
    ]
    for title in (PLAIN, *GROUPS):
        lines += ["", f"## {title}", "", "| method | what it changes | paper | cost |", "|---|---|---|---|"]
        lines += [
            f"| [`{name}`]({name}.md) | {each.about} | {short_paper(each)} | {each.cost} |"
            for name, each in methods.items()
            if group(each) == title
        ]
    return "\n".join(lines) + "\n"


def short_paper(method: Method) -> str:
    if method.paper in ("", "Ours"):
        return method.paper.lower()
    first, *more = method.paper.split(", ")
    return f"{first}{' et al.' if len(more) > 1 else f' & {more[0]}' if more else ''}, {method.venue}"


def card(name: str, method: Method, results: Mapping[str, list[str]]) -> str:
    text = inspect.getdoc(registry.home("methods", name)) or ""
    head, differ = body(text, method)
    rows = {
        "When": method.when or "not written yet",
        "Cost": method.cost,
        "Paper": citation(text, method),
        "Changes": ", ".join(method.changes) or "nothing",
        "Settings": ", ".join(f"`{each}`" for each in settings(method)) or "none",
        "File": f"`{inspect.getfile(registry.home('methods', name)).partition('/src/')[2]}`",
    }
    return "\n".join(
        [
            f"# `{name}`",
            "",
            f"{idea(method)}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {title} | {value} |" for title, value in rows.items()),
            "",
            "```",
            *usage(name, method),
            "```",
            "",
            "## Idea and formula",
            "",
            head,
            "",
            "## Results on the fast tasks",
            "",
            *results_of(name, method, results),
            "",
            "## Differences to the released code",
            "",
            differ
            or "The file names none. Where the paper, its released code and we differ: [decisions](../decisions.md).",
            "",
        ]
    )


def idea(method: Method) -> str:
    """What it changes, and the first sentence of each part that does it."""
    parts = [part for role in TELLING if (part := getattr(method, role)) is not None]
    said = [(inspect.getdoc(type(part)) or "").split("\n\n")[0].replace("\n", " ") for part in parts]
    return " ".join([f"**{method.about[:1].upper()}{method.about[1:]}.**", *said])


def settings(method: Method) -> list[str]:
    """As one would write them after `--set`, with their defaults."""
    found = [
        f"{role}.{field.name}={getattr(part, field.name)}"
        for role in ROLES
        if is_dataclass(part := getattr(method, role))
        for field in fields(part)
        if field.compare
    ]
    return found + [f"{name}={value}" for name, value in method.settings.items()]


def usage(name: str, method: Method) -> list[str]:
    if "posthoc" in method.changes:
        if method.posthoc.reads_features:
            return [f"balcal train fashion vanilla+{name}"]
        if method.posthoc.reads_branches:
            return [f"balcal calibrate RUN --with {name}", f"balcal train fashion balcal+{name}"]
        return [
            f'balcal.Calibrator("{name}").fit(held_out_probs, labels).predict_proba(probs)',
            f"balcal calibrate RUN --with {name}",
            f"balcal train fashion vanilla+{name}",
        ]
    if {"join", "views"} & set(method.changes):
        return [f"balcal train fashion vanilla+{name}"]
    train = f"balcal train fashion {name}"
    if {"parent", "select"} & set(method.changes) and name not in ("tst", "vtst"):
        return [train if "parent" in method.changes else f"balcal evaluate RUN --with {name}"]
    return [f'model = balcal.wrap(network, num_classes=10, method="{name}")', train]


def citation(text: str, method: Method) -> str:
    """The line of the file that has title and venue, or else authors and venue."""
    if method.paper in ("", "Ours"):
        return "ours" if method.paper else "none"
    flat = re.sub(r"\s+", " ", text)
    first = method.paper.split(", ")[0]
    found = re.search(
        rf"{re.escape(first)}[^:.]*: (.{{5,200}}?[.?]) ?{re.escape(method.venue.removesuffix(' w.'))}", flat
    )
    return (
        f"{method.paper}: *{found[1].removesuffix('.')}*. {method.venue}"
        if found
        else f"{method.paper}. {method.venue}"
    )


def body(text: str, method: Method) -> tuple[str, str]:
    """The file's own words as Markdown, formulas as code; and apart, where paper and released code differ."""
    parts, differ = [], ""
    for place, part in enumerate(re.split(r"\n\s*\n", text)):
        if place == 0 and method.paper and part.startswith(method.paper.split(", ")[0]):
            continue  # the citation, which stands in the table
        if part.startswith(DIFFER):
            differ = part.removeprefix(DIFFER).strip()
            differ = differ[0].upper() + differ[1:]
        elif all(line.startswith("    ") for line in part.splitlines()) or "   " in part:
            parts.append(f"```text\n{inspect.cleandoc(part)}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts), differ


def fast_results(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What results/scripts/fast.py wrote, by method; a run that failed has a sentence in place of figures."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-seed*.json")):
        each = json.loads(path.read_text())
        found.setdefault(each["method"], []).append(each)
    return found


def results_of(name: str, method: Method, results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    runs = results.get("vanilla" if name == "ts" else name, [])
    if not runs:
        return ["*Not run yet.* Results of other tasks: [every method on one task](../methods.md)."]
    lines = [
        "Test images, last epoch, with and without temperature scaling; mean ± standard deviation over seeds.",
        "",
        "| task | seeds | | accuracy % | ECE % | NLL |",
        "|---|---|---|---|---|---|",
    ]
    for task in sorted({run["task"] for run in runs}):
        done = [run["figures"] for run in runs if run["task"] == task and "figures" in run]
        for after in ("last", "last+ts") if done else ():
            label = "with `ts`" if "ts" in after else "as trained"
            values = [spread([run[after][key] for run in done], key) for key in ("accuracy", "ece", "nll")]
            lines.append(f"| `{task}` | {len(done)} | {label} | {' | '.join(values)} |")
        lines += [
            f"| `{task}` | seed {run['seed']} | failed: {run['failed']} | | | |"
            for run in runs
            if run["task"] == task and "failed" in run
        ]
    return lines


def spread(values: list[float], key: str) -> str:
    times, digits = (1, 4) if key == "nll" else (100, 2)
    shown = f"{times * mean(values):.{digits}f}"
    return f"{shown} ± {times * stdev(values):.{digits}f}" if len(values) > 1 else shown
