"""docs/results.md, from the files in results/data/fast alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

from statistics import mean

from fast_asked import METHODS, PARTS
from fast_claims import FAILS, HOLDS, OPEN, UNRUN, claims, lower, paired, part_claims
from fast_headline import in_short
from fast_tables import (
    BASELINE,
    NOTHING,
    OURS,
    PAPER,
    TITLES,
    Run,
    Runs,
    deltas,
    last_epoch,
    ood,
    parts,
    row,
    runs,
    shift,
    shown,
    titled,
    trained,
    with_fitted_delta,
)

from balcal.paper import published

MEMORISED = 0.99
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


def page() -> str:
    found = runs()
    sections = (regime, at_work, claims, main_table, ood, shift, part_claims, parts, deltas)
    return "\n".join([TOP, *in_short(found), HOW, *(line for section in sections for line in section(found))])
