"""The reference: every public name from its docstring, and the command line from the program itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import click
import typer

MODULES = {
    "balcal": "The whole way: wrap, fit, predict, judge, calibrate, save, export, watch.",
    "balcal.metrics": "Metrics of predictions, with tests and intervals. Guide: [only predictions](../metrics.md).",
    "balcal.decisions": "Thresholds, sets and actions with a guarantee. Guide: [decisions](../decide.md).",
    "balcal.plots": "Figures for papers and reports. Guide: [reports, figures, trackers](../report.md).",
    "balcal.arena": "Many runs, one table. Guide: [compare methods](../arena.md).",
}
APART = {
    "balcal.adapters.lightning.Calibrated": "Guide: [Lightning](../lightning.md).",
    "balcal.adapters.huggingface.Calibrated": "Guide: [Hugging Face](../huggingface.md).",
    "balcal.training.optimise.RunningMean": "Averaged weights: [in your own loop](../use.md#your-own-loop).",
}
"""names that are imported from where they are, as they bring other libraries or are for special cases"""
SHARED = {
    "balcal.metrics": {
        "probs, log_probs": "(N, K) probabilities or their logarithms, one of the two; of two classes (N,) will do",
        "labels": "(N,) class indices",
        "sample_weight": "(N,): a weight of 2 counts as two samples",
        "bins": "how many equal bins, right-closed; `n_bins` is the same",
        "sample_weight_in, sample_weight_out": "the same in detection, for in-distribution and OOD samples",
        "tpr": "share of in-distribution samples that are let in",
        "device": "where sums are kept",
    },
    "balcal.plots": {
        "source": "`Predictions`, a run, its folder, or several of them under names",
        "probs, log_probs, labels": "arrays in place of a source",
        "bins": "how many equal bins",
        "title, classes": "what is written above, and the names of the classes",
        "samples, seed": "which test images (or how many of them), and the random seed",
        "arena, columns": "the result of an arena or its file, and the columns to draw",
        "part, path": "images with labels, and the file to write",
    },
}
"""parameters that the functions of a page share, explained once at its top"""
MEMBERS = "    options:\n      members: null\n"


def names(module: str) -> dict[str, Any]:
    """Public names of a module that are not modules themselves, and what they stand for."""
    home = importlib.import_module(module)
    found = {name: getattr(home, name) for name in home.__all__}
    if module == "balcal":
        found["report"] = importlib.import_module("balcal.report").report  # a module that can be called
    return {name: each for name, each in found.items() if not inspect.ismodule(each)}


def pages() -> dict[str, str]:
    return (
        {"index": index()}
        | {module.rpartition(".")[2]: page(module, about) for module, about in MODULES.items()}
        | {"adapters": adapters(), "commands": commands()}
    )


def nav() -> list[Any]:
    return [
        "reference/index.md",
        *({module: f"reference/{module.rpartition('.')[2]}.md"} for module in MODULES),
        {"Adapters": "reference/adapters.md"},
        {"Command line": "reference/commands.md"},
    ]


def index() -> str:
    lines = ["# Reference", "", "Every public name, with its parameters and an example that a test runs.", ""]
    for module, about in MODULES.items():
        file = module.rpartition(".")[2]
        links = ", ".join(f"[`{name}`]({file}.md#{where(each)})" for name, each in names(module).items())
        lines += [f"## [{module}]({file}.md)", "", about, "", links, ""]
    lines += ["## [Adapters](adapters.md)", "", ", ".join(f"[`{name}`](adapters.md#{name})" for name in APART), ""]
    return "\n".join([*lines, "## [Command line](commands.md)", "", ", ".join(f"`balcal {name}`" for name in verbs())])


def where(thing: Any) -> str:
    """The full name of the place where something is defined."""
    thing = inspect.unwrap(thing)
    return f"{thing.__module__}.{thing.__qualname__}"


def page(module: str, about: str) -> str:
    lines = [f"# {module}", "", about, ""]
    if module in SHARED:
        lines += ["| parameters that functions share | |", "|---|---|"]
        lines += [f"| `{name}` | {said} |" for name, said in SHARED[module].items()] + [""]
    for name, each in names(module).items():
        lines += [f"::: {where(each)}", *([MEMBERS] if inspect.isclass(each) else ["    options:"])]
        lines[-1] = lines[-1].rstrip("\n") + f"\n      heading: {module}.{name}\n      toc_label: {name}\n"
    return "\n".join(lines)


def adapters() -> str:
    lines = ["# Adapters", "", "For other training loops. Import them from where they are.", ""]
    for name, about in APART.items():
        lines += [f"::: {name}", f"{MEMBERS}      heading: {name}\n      toc_label: {name.split('.')[2]}\n", about, ""]
    return "\n".join(lines)


def verbs() -> Mapping[str, click.Command]:
    from balcal.cli import app

    group = typer.main.get_command(app)
    return group.commands  # type: ignore[attr-defined, no-any-return]


def commands() -> str:
    lines = [
        "# Command line",
        "",
        "What `balcal VERB --help` prints. Results go to stdout, messages to stderr. Exit code 0 means success.",
    ]
    for name, verb in verbs().items():
        context = click.Context(verb, info_name=f"balcal {name}", terminal_width=100, max_content_width=100)
        lines += ["", f"## balcal {name}", "", "```text", verb.get_help(context), "```"]
    return "\n".join(lines) + "\n"
