"""docs/results.md, from the files in results/data/fast alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from fast import METHODS, PARTS
from fast_claims import FAILS, FITTED, HOLDS, OPEN, UNRUN, claims, lower, paired, part_claims
from fast_tables import (
    NOTHING,
    PAPER,
    TITLES,
    Run,
    Runs,
    by_validation,
    deltas,
    ood,
    parts,
    row,
    runs,
    shift,
    shown,
    titled,
)

from balcal.paper import published

OURS = ("balcal", "balcal-logits", "balcal-auto")
BASELINE = "vanilla+ts"
HEADLINE = ("vanilla", BASELINE, "balcal-logits", "balcal-auto")
MEMORISED = 0.99
Figures = dict[str, Any]
SHORT = (("ece", 100, 2), ("nll", 1, 3))
"""figure, scale and digits"""
TOP = """# Results

All images of CIFAR-10, CIFAR-100 and SVHN, and networks that memorise almost all training images, as the paper's do.
"""
HOW = """## How to read these tables

Made by `python results/scripts/write.py` from `results/data/fast`, where each run's figures, course, commit and
duration are. A dash stands where nothing was run. What came out badly is shown too.

- Figures are of the **last** epoch, unless a column says *chosen*. Choosing the epoch by validation NLL stops a network
  before it is over-confident, so it hides what a method does.
- "Ours" of the paper has two rows. `balcal` fuses probabilities, as the paper prints it. `balcal-logits` fuses logits,
  as the released code does; the published numbers come from that.
- `balcal-auto` is our version with nothing to tune: it uses validation images and averaged weights.
- `vanilla+ts` is plain training and one temperature from validation images.

Other pages: [calibrators after training](results-posthoc.md), [ensembles](results-ensembles.md),
[decisions](decide.md), [a small network on a tenth of the images](results-cpu.md).
"""


def trained(entry: str) -> str:
    """The method whose runs are behind a row."""
    return entry.removesuffix("+ts")


def last_epoch(found: Runs, task: str, entry: str) -> list[Figures]:
    """What a row is about: figures of the last epoch, by seed; of the baseline those with a temperature."""
    which = "last+ts" if entry == BASELINE else "last"
    return [run["figures"][which] for run in found.get((task, trained(entry)), [])]


def in_short(found: Runs) -> list[str]:
    """ECE and NLL of the few that matter most."""
    names = ("vanilla", "balcal", "balcal-logits", "balcal-auto", BASELINE)
    heads = ["ECE, NLL", *(f"`{name}`" for name in names)]
    heads.insert(4, "`balcal-logits` (delta by validation)")
    lines = ["## In short", "", row(heads), row(["---"] * len(heads))]
    for task, title in TITLES.items():
        cells = []
        for name in (*names[:3], by_validation(task, found), *names[3:]):
            these = last_epoch(found, task, name)
            means = [f"{scale * mean(each[key] for each in these):.{digits}f}" for key, scale, digits in SHORT if these]
            delta = name.partition("head.delta=")[2]
            cells.append((", ".join(means) or NOTHING) + f" ({delta})" * bool(delta))
        lines.append(row([title, *cells]))
    return [
        *lines,
        "",
        *in_words(found),
        "Means over the seeds below; ECE in %. `vanilla`, `balcal` and `balcal-logits` see training images only, with "
        "delta = 0.95. The others use 5,000 validation images as well.",
        "",
        "![ECE of all methods, here and in the paper, and gamma after each epoch](results/fast.png)",
        "",
        f"Above: ECE, last epoch, with 95 % intervals. Green is better than `{BASELINE}`, orange worse; grey cannot be "
        "told apart. The row with a delta is `balcal-logits` with the delta that validation images prefer. Below: "
        "gamma after each epoch. At 1 the learnable classifier predicts alone; only `balcal-auto` may exceed 1.",
        "",
    ]


def in_words(found: Runs) -> list[str]:
    """Where ours are calibrated better than plain training, and than plain training with a temperature."""
    against = ("vanilla", BASELINE)
    heads = ("ECE is", *(f"against `{other}`" for other in against))
    lines = [row(heads), row(["---"] * len(heads))]
    for name in (*OURS[:2], FITTED, OURS[2]):
        entries = {task: by_validation(task, found) if name == FITTED else name for task in TITLES}
        cells = []
        for other in against:
            words = {title: lower(paired(found, task, entries[task]), other)[0] for task, title in TITLES.items()}
            sides = {HOLDS: "**lower** on", FAILS: "higher on", OPEN: "not told apart on"}
            places = {side: [title for title, word in words.items() if word == key] for key, side in sides.items()}
            cells.append("; ".join(f"{side} {_listed(these)}" for side, these in places.items() if these) or NOTHING)
        lines.append(row([name if name == FITTED else f"`{name}`", *cells]))
    return [*lines, ""]


def _listed(titles: list[str]) -> str:
    return "all three" if len(titles) == len(TITLES) else " and ".join(titles)


def regime(found: Runs) -> list[str]:
    """What plain training reaches, run by run."""
    heads = ("", "seed", "accuracy", "on training images", "ECE, last and chosen epoch", "minutes", "machine")
    lines = ["## The regime: plain training", "", row(heads), row(["---"] * len(heads))]
    for task, title in TITLES.items():
        for run in found.get((task, "vanilla"), []):
            last, chosen = run["figures"]["last"], run["figures"]["chosen"]
            lines.append(
                row(
                    [
                        title,
                        str(run["seed"]),
                        shown([last["accuracy"]]),
                        shown([run["training_accuracy"]["last"]]),
                        f"{shown([last['ece']])}, {shown([chosen['ece']])}",
                        _minutes(run),
                        f"{run['precision']}, {run['cpu']}, {_threads(run)}",
                    ]
                )
            )
        if (task, "vanilla") not in found:
            lines.append(row([title, *[NOTHING] * (len(heads) - 1)]))
    note = (
        "Accuracy and ECE in %. Minutes: as if each epoch had taken as long as the fastest, and in parentheses what it "
    )
    more = (
        " With two threads and nothing else on the machine, by the fastest steps: 6 to 12 (CIFAR-10), 9 to 17 "
        "(CIFAR-100), 10 to 19 (SVHN), from machine to machine."
    )
    return [*lines, "", note + "took beside other work." + more, ""]


def _minutes(run: Run) -> str:
    fastest = run["fastest_epoch_seconds"]
    quiet = f"{len(run['history']['loss']) * fastest / 60:.0f}" if fastest else NOTHING
    return f"{quiet} ({run['minutes']:.0f})"


def _threads(run: Run) -> str:
    count = run["environment"]["threads"]
    return f"{count} thread{'s' * (count > 1)}"


def at_work(found: Runs) -> list[str]:
    """Ours beside plain training: figures of the last epoch, and gamma."""
    lines = ["## BalCAL beside plain training", ""]
    for task, title in TITLES.items():
        lines += [f"### {title}", ""]
        heads = ("", "seeds", "accuracy", "confidence", "ECE (with `ts`)", "NLL (with `ts`)", "gamma, first and last")
        lines += [row(heads), row(["---"] * len(heads))]
        for entry in with_fitted_delta(("vanilla", *OURS, "balcal-released"), task, found):
            these = found.get((task, entry), [])
            if these or entry in METHODS[task]:
                lines.append(row([titled(entry), *_figures(these)]))
        lines.append("")
    return [
        *lines,
        "Accuracy, mean confidence and ECE in %. On CIFAR-10, fused probabilities (`balcal`) meet the target for mean "
        "confidence with a gamma near 1, and their ECE hardly falls: they are over-confident at some confidences and "
        "under-confident at others. Fused logits change the shape of the distribution. On SVHN, delta = 0.95 is less "
        "than the accuracy on new images: both make the network under-confident. Delta is 0.95 where none is named; "
        "another one was chosen by validation NLL of seed 0, of [those that were run](#delta).",
        "",
    ]


def with_fitted_delta(entries: Iterable[str], task: str, found: Runs) -> list[str]:
    """Behind `balcal-logits` also the delta that validation images prefer, if it is another one."""
    fitted = by_validation(task, found) or "balcal-logits"
    return list(dict.fromkeys(each for entry in entries for each in (entry, *[fitted] * (entry == "balcal-logits"))))


def _figures(these: list[Run]) -> list[str]:
    if not these:
        return [NOTHING] * 6
    last, tempered = ([run["figures"][which] for run in these] for which in ("last", "last+ts"))
    courses = [run["history"]["gamma"] for run in these if "gamma" in run["history"]]
    gamma = f"{mean(c[0] for c in courses):.2f}, {mean(c[-1] for c in courses):.2f}" if courses else ""
    eces, nlls = (
        [shown((each[key] for each in which), digits, scale) for which in (last, tempered)]
        for key, digits, scale in (("ece", 2, 100.0), ("nll", 4, 1.0))
    )
    return [
        str(len(these)),
        *(shown(each[key] for each in last) for key in ("accuracy", "mean_confidence")),
        f"{eces[0]} ({eces[1]})",
        f"{nlls[0]} ({nlls[1]})",
        gamma,
    ]


def main_table(found: Runs) -> list[str]:
    """All methods of the paper's main table, its numbers beside ours, and each against the baseline."""
    heads = ("", "seeds", "accuracy", "ECE", "NLL", "paper: accuracy, ECE", f"ECE against `{BASELINE}`")
    lines = ["## The paper's main table", ""]
    for place, (task, title) in enumerate(TITLES.items()):
        lines += [f"### {title}: all methods", "", row(heads), row(["---"] * len(heads))]
        others = (each for each in METHODS[task] if each not in ("vanilla", *PARTS))
        for method in with_fitted_delta(("vanilla", BASELINE, *others), task, found):
            these = last_epoch(found, task, method)
            word, difference = lower(paired(found, task, trained(method)), BASELINE)
            cells = [shown(each[key] for each in these) for key in ("accuracy", "ece")]
            cells.append(shown((each["nll"] for each in these), 3, 1.0))
            verdict = {HOLDS: "better", FAILS: "worse", OPEN: "cannot be told apart", UNRUN: NOTHING}[word]
            if difference is not None:
                verdict = "the baseline" if method == BASELINE else f"{verdict} ({difference:+.2f})"
            lines.append(row([titled(method), str(len(these) or NOTHING), *cells, _in_paper(method, place), verdict]))
        lines.append("")
    return [
        *lines,
        "Accuracy and ECE in %; in parentheses the difference in points. The paper's numbers are of a WRN-28-10. "
        "*Better* and *worse*: the 95 % interval of the difference, as above, does not hold 0.",
        "",
        *stopped(found),
        *learned_less(found),
    ]


def stopped(found: Runs) -> list[str]:
    """The chosen epoch of methods whose authors choose it by validation NLL."""
    eces = [
        f"{shown(run['figures']['chosen']['ece'] for run in found[task, method])} % (`{method}`, {title})"
        for task, title in TITLES.items()
        for method in ("tst", "vtst")
        if (task, method) in found
    ]
    if not eces:
        return []
    return [f"The authors of TST choose the epoch by validation NLL. ECE is then {', '.join(eces)}.", ""]


def learned_less(found: Runs) -> list[str]:
    """Methods that keep a network from memorising its training images."""
    known = {key: mean(run["training_accuracy"]["last"] for run in these) for key, these in sorted(found.items())}
    less = [f"{shown([a])} % (`{method}`, {TITLES[task]})" for (task, method), a in known.items() if a < MEMORISED]
    if not less:
        return []
    return [f"Accuracy on training images is at least 99 %, with these exceptions: {', '.join(less)}.", ""]


def _in_paper(method: str, place: int) -> str:
    theirs = printed(method, place)
    return f"{theirs[0]:.2f}, {theirs[1]:.2f}" if theirs else NOTHING


def printed(method: str, place: int) -> tuple[float, float] | None:
    """Accuracy and ECE in the paper, of the data set in this place."""
    if method == BASELINE:
        accuracy, ece = published.VARIANTS["learnable"][2 * place : 2 * place + 2]
        return (accuracy.value, ece.second) if accuracy and ece and ece.second is not None else None
    theirs = PAPER.get(method.split(maxsplit=1)[0])
    accuracy, ece = published.MAIN[theirs][3 * place : 3 * place + 2] if theirs else (None, None)
    return (accuracy.value, ece.value) if accuracy and ece else None


def headline(joined: Sequence[Mapping[str, str]]) -> str:
    """The README's table; `joined`: rows of ensembles.csv."""
    found = runs()
    lines = [
        "All images, a small network that memorises them (6 to 19 minutes on two CPU cores), last epoch, mean ± "
        "standard deviation over seeds:",
        "",
        row(["", "", "seeds", "accuracy %", "ECE %", "NLL"]),
        row(["---"] * 6),
    ]
    unrun = [title for task, title in TITLES.items() if (task, "vanilla") not in found]
    for task, title in TITLES.items():
        for name in with_fitted_delta(HEADLINE, task, found) if title not in unrun else ():
            last = last_epoch(found, task, name)
            figures = [shown(each[key] for each in last) for key in ("accuracy", "ece")]
            nll = shown((each["nll"] for each in last), 3, 1.0)
            lines.append(row([title, titled(name), str(len(last) or NOTHING), *figures, nll]))
        lines += [row([title, *cells]) for cells in _largest(task, joined)]
    return "\n".join(
        [
            *lines,
            "",
            *([f"Not run yet: {', '.join(unrun)}.", ""] if unrun else []),
            "`balcal-logits` is the paper's method as released, with delta = 0.95: it needs no held-out image. Where "
            "another delta is named, it was chosen by validation NLL, of those that were run. `vanilla+ts` and "
            "`balcal-auto` use 5,000 held-out images. [All methods, intervals, and which claims of the paper "
            "hold](docs/results.md).",
        ]
    )


def _largest(task: str, joined: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The mean of as many plain networks as were joined, with a temperature."""
    wanted = {"task": task, "method": "vanilla", "after": "ts"}
    found = [each for each in joined if all(each[key] == value for key, value in wanted.items())]
    count = max((int(each["members"]) for each in found), default=1)
    these = [each for each in found if int(each["members"]) == count > 1]
    if not these:
        return []
    figures = [shown(float(each[key]) for each in these) for key in ("accuracy", "ece")]
    nll = shown((float(each["nll"]) for each in these), 3, 1.0)
    return [[f"`{count}*vanilla+ts`", f"{count} joined", *figures, nll]]


def page() -> str:
    found = runs()
    sections = (regime, at_work, claims, main_table, ood, shift, part_claims, parts, deltas)
    return "\n".join([TOP, *in_short(found), HOW, *(line for section in sections for line in section(found))])
