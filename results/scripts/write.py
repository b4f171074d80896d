"""Write docs/results*.md, docs/research/auto-final.md and the table of the README, from results/data alone.

python results/scripts/write.py

Pictures of contests go to docs/results.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import ensembles_page
import fast_headline
import fast_page
import fast_picture
import fast_tables
import numpy as np
import posthoc_page
from auto import ALL, FINALS, FRESH, Final, recorded
from auto import FOLDER as FINAL
from cpu import FOLDER, PICTURES, UNDRAWN, in_few_colours
from folders import DOCS

from balcal.arena.columns import COLUMNS
from balcal.arena.records import Difference
from balcal.arena.result import ArenaResult
from balcal.metrics.over_seeds import holm
from balcal.paper.render import ItemResult, in_markdown
from balcal.plots import differences

PAGE = PICTURES.with_suffix(".md")
README = DOCS.parent / "README.md"
BEGIN, END = "<!-- headline -->", "<!-- end of headline -->"
APPENDIX = PAGE.with_name("results-cpu.md")
ENSEMBLES = PAGE.with_name("results-ensembles.md")
CALIBRATORS = PAGE.with_name("results-posthoc.md")
LAST = PAGE.parent / "research" / "auto-final.md"
OURS = ("balcal", "balcal-logits", "balcal-auto")
JUDGED = {name: COLUMNS[name] for name in ("accuracy", "ece", "nll")}
TITLES = {
    "cifar10": "Everybody on CIFAR-10",
    "cifar100": "Everybody on CIFAR-100",
    "parts": "BalCAL and its parts, CIFAR-10",
}
ITEMS = (
    *("delta", "alpha", "alpha-ece", "shift", "ood", "ood-confidence", "main", "variants", "gamma"),
    *("motivation", "alpha-confidence", "collapse", "distance", "tsne-more", "cam"),
)
IN_PAIRS = {
    1: "In pairs, one seed:",
    2: "In pairs, without correction for their number. Two seeds tell hardly any methods apart: a difference has to be "
    "13 times its standard error, so read ties, and the bold type below, as *not known*:",
}
"""by the number of seeds"""
TOP = """# A small network on a tenth of the images

An appendix to [results](results.md). What was really run, on two CPU cores, with nothing left out that came out badly.
This page is made by `python results/scripts/write.py` from the files in `results/data/cpu`, which
`python results/scripts/cpu.py` makes of the runs: every run's recipe, seed, commit, environment and duration is in
them.

Tasks: `cifar10-cpu` and `cifar100-cpu` (`balcal show cifar10-cpu`): 5,000 real images to train a ResNet-8 on until it
overfits, 2,500 to validate, all 10,000 test images to judge. Published settings of the other methods, not tuned for
these tasks; delta of `balcal` and `balcal-logits` was chosen on validation images of a seed that is not shown here
(results/data/cpu-delta.csv). `balcal-auto` was run before it asked at its end whether to keep to the average; on these
two tasks the answer was yes in ten of ten runs (results/data/auto-either.csv), so nothing is different since. A small
network on little data is not a WRN-28-10 on all of it: what holds here need not hold there.

The baseline is `vanilla+ts`: plain training, then one temperature from the validation images. It costs nothing, so a
method has to beat that.
"""


def plainly(result: ArenaResult) -> list[str]:
    """Where BalCAL wins, ties and loses, in sentences."""
    lines = []
    for entry in (entry for name in OURS for entry in (name, f"{name}+ts")):
        if entry not in result.entries:
            continue
        against = result.compare(result.reference, entry)
        found = [_against(against[name]) for name in JUDGED]
        lines.append(f"- `{entry}` against `{result.reference}`: {'; '.join(found)}.")
    others = [e for e in result.entries if e.endswith("+ts") and e.removesuffix("+ts") not in (*OURS, "vanilla")]
    for entry in (f"{name}+ts" for name in OURS if f"{name}+ts" in result.entries):
        counted = {
            name: Counter(result.compare(other, entry)[name].judgement.removesuffix(" here") for other in others)
            for name in JUDGED
        }
        shown = [
            f"{JUDGED[name].title} {found['better']} won, {found['tie'] + found['same']} tied, {found['worse']} lost"
            for name, found in counted.items()
        ]
        lines.append(
            f"- `{entry}` against each of the {len(others)} others, each with its temperature: {'; '.join(shown)}."
        )
    return lines


def _against(found: Difference) -> str:
    figure, word = JUDGED[found.figure], "a tie" if found.judgement in ("tie", "same") else found.judgement
    shown = f"{figure.shown(found.value, '+')} [{figure.shown(found.low, '+')}, {figure.shown(found.high, '+')}]"
    return f"{figure.title} {word} ({shown})"


def command(result: ArenaResult) -> str:
    """What makes this table; each entry brings the one with a temperature along."""
    asked = [entry for entry in result.entries if entry.removesuffix("+ts") not in set(result.entries) - {entry}]
    settings = "".join(f" --set {text}" for text in result.settings)
    return f"balcal arena {result.task} --methods {','.join(asked)} --seeds {len(result.seeds)}{settings}"


def contest(name: str, result: ArenaResult) -> list[str]:
    done = [run for run in result.runs if run.status == "done"]
    hours = sum(run.seconds or 0 for run in done) / 3600
    commits = sorted({str(run.environment.get("commit", ""))[:7] for run in done} - {""})
    return [
        f"## {TITLES[name]}",
        "",
        f"`{command(result)}`: "
        f"{len(done)} runs, {hours:.1f} hours of one thread; commits: {', '.join(f'`{c}`' for c in commits)}.",
        "",
        IN_PAIRS.get(len(result.seeds), "In pairs, without correction for their number:"),
        "",
        *plainly(result),
        "",
        f"![Differences to {result.reference}](results/{name}.png)",
        "",
        result.table("markdown"),
        "",
    ]


def item(name: str, answered: dict[str, Any]) -> str:
    pictures = [PICTURES / f"{name}.png"] if answered["data"] and name not in UNDRAWN else []
    text = in_markdown(ItemResult.of(answered), pictures)
    return text.replace(f"]({name}.png)", f"](results/{name}.png)").replace("## ", "### ", 1)


def front_page() -> str:
    """The README with today's table."""
    before, _, rest = README.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{fast_headline.headline(ensembles_page.rows())}\n{END}{rest.partition(END)[2]}"


def contests() -> dict[str, ArenaResult]:
    """Results of those that have been run."""
    return {name: ArenaResult.load(path) for name in TITLES if (path := FOLDER / f"{name}.json").exists()}


def appendix() -> str:
    parts, run = [TOP], contests()
    for name, title in TITLES.items():
        parts.append("\n".join(contest(name, run[name])) if name in run else f"## {title}\n\nNot run yet.\n")
    parts.append(
        "## The paper's tables and figures\n\n`python results/scripts/cpu.py paper`: the items of `balcal paper --tier "
        "cpu`, ours beside theirs. A dash stands where nothing was run.\n"
    )
    files = {name: FOLDER / f"paper-{name}.json" for name in ITEMS}
    parts += [item(name, json.loads(path.read_text())) for name, path in files.items() if path.exists()]
    return "\n".join(parts)


TOP_OF_LAST = """# A BalCAL with nothing to tune: the end

What the plan in [auto.md](auto.md) asked for: five tasks, five seeds, the test images once; then what came after. Made
by `python results/scripts/write.py` from the files in `results/data/auto`, which `python results/scripts/auto.py` makes
of the runs.

Names are those of today. The plan's winner is `balcal-mean` (`balcal-auto` when these runs were made): logits fused,
gamma solved on held-out images and free to exceed 1, weights averaged. `balcal-auto` is that and one question more, see
"Average or last step" below.
"""
CLAIMS = {
    "NLL against plain training with a temperature": ("nll", "reference"),
    "ECE against plain training with a temperature": ("ece", "reference"),
    "Accuracy against plain training": ("accuracy", "plain"),
    "NLL against the same average and choice of the epoch, without a second classifier": ("nll", "control"),
}
SECOND_LOOK = {
    "NLL of `balcal-half` against `balcal-mean`": ("nll", "winner"),
    "NLL of `balcal-half` against averaged weights without a second classifier": ("nll", "control"),
    "Accuracy of `balcal-half` against `balcal-mean`": ("accuracy", "winner"),
}
"""of the follow-up, on test images that had been seen"""
EITHER = """## Average or last step: `balcal-auto` on four more tasks

`balcal-auto` is `balcal-mean` that at the end asks the validation images whether the last step's weights are better
than their average (`balcal-either` when these runs were made).
"""
EITHERS = {
    "Accuracy against plain training, four more tasks": ("accuracy", "plain"),
    "NLL against plain training with a temperature, four more tasks": ("nll", "reference"),
    "ECE against plain training with a temperature, four more tasks": ("ece", "reference"),
    "Accuracy of `balcal-auto` against `balcal-mean`": ("accuracy", "winner"),
    "NLL of `balcal-auto` against `balcal-mean`": ("nll", "winner"),
}
"""of the second follow-up"""
SURE = {
    "plain": "plain training",
    "reference": "with a temperature",
    "control": "the control",
    "winner": "`balcal-mean`",
}
SURE_EITHER = {"plain": "plain training", "reference": "with a temperature", "trial": "`balcal-auto`"}


def claims(found: dict[str, ArenaResult], asked: dict[str, tuple[str, str]], who: str) -> list[str]:
    """A table per claim; p values corrected over the tasks, by Holm."""
    lines = []
    for title, (figure, whom) in asked.items():
        compared = {
            name: result.compare(getattr(ALL[name], whom), getattr(ALL[name], who))[figure]
            for name, result in found.items()
        }
        adjusted = dict(zip(compared, holm(np.array([each.p for each in compared.values()])), strict=True))
        lines += [
            f"### {title}",
            "",
            "| task | against | difference | | p | Holm |",
            "|---|---|---|---|---|---|",
        ]
        for name, each in compared.items():
            word, _, interval = _against(each).removeprefix(f"{JUDGED[figure].title} ").partition(" (")
            row = (name, f"`{getattr(ALL[name], whom)}`", interval.rstrip(")"), word)
            lines.append(f"| {' | '.join(row)} | {each.p:.2g} | {adjusted[name]:.2g} |")
        lines.append("")
    return lines


def sureness(found: dict[str, ArenaResult], asked: dict[str, str]) -> list[str]:
    """Mean confidence minus accuracy: below 0 a model is under-confident."""
    lines = [
        "### Confidence minus accuracy, points, mean over seeds",
        "",
        f"| task | {' | '.join(asked.values())} |",
        f"|---|{'---|' * len(asked)}",
    ]
    for name, result in found.items():
        entries = [getattr(ALL[name], whom) for whom in asked]
        gaps = (f"{100 * (_mean(result, e, 'mean_confidence') - _mean(result, e, 'accuracy')):+.2f}" for e in entries)
        lines.append(f"| {name} | {' | '.join(gaps)} |")
    return [*lines, ""]


def _mean(result: ArenaResult, entry: str, figure: str) -> float:
    return float(np.mean([value for value in result.values(entry, figure) if value is not None]))


def finals(asked: dict[str, Final] = FINALS) -> dict[str, ArenaResult]:
    """Results of those that have been run."""
    return {name: recorded(path) for name in asked if (path := FINAL / f"{name}.json").exists()}


def last_page() -> str:
    found = finals()
    missing = [name for name in FINALS if name not in found]
    parts = [TOP_OF_LAST]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    if found:
        parts.append(
            "\n".join(["## What the plan wanted to know", "", *claims(found, CLAIMS, "winner"), *sureness(found, SURE)])
        )
    again = {name: result for name, result in found.items() if FINALS[name].trial in result.entries}
    if again:
        parts.append("\n".join(["## A second look: half of the loss", "", *claims(again, SECOND_LOOK, "trial")]))
    fresh = finals(FRESH)
    if fresh:
        parts.append("\n".join([EITHER, *claims(fresh, EITHERS, "trial"), *sureness(fresh, SURE_EITHER)]))
    for name, result in (found | fresh).items():
        asked = ALL[name]
        parts.append(f"## {name}: {asked.about}\n\n`{command(result)}`\n\n{result.table('markdown')}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    for contest_name, found in contests().items():
        differences(found).save(PICTURES / f"{contest_name}.png")
    for name, drawn in {"fast": fast_picture.picture, "fast-delta": fast_picture.delta_picture}.items():
        path = PICTURES / f"{name}.png"
        drawn(fast_tables.runs()).savefig(path, dpi=130)
        in_few_colours(path)
    PAGE.write_text(fast_page.page())
    README.write_text(front_page())
    APPENDIX.write_text(appendix())
    CALIBRATORS.write_text(posthoc_page.page())
    ENSEMBLES.write_text(ensembles_page.page())
    if finals():
        LAST.write_text(last_page())
