"""docs/results.md, from the files in results/data/fast alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

from fast import DELTAS, ITEMS, LOGITS, METHODS, OOD, PARTS
from folders import DATA

from balcal.paper import published
from balcal.paper.items import NAMES
from balcal.paper.render import ItemResult, in_markdown

FOLDER = DATA / "fast"
OURS = ("balcal", "balcal-logits", "balcal-auto")
CLAIMED = ("balcal", "balcal-logits")
"""what the paper calls Ours: as printed, and as released"""
HEADLINE = {
    "vanilla": ("vanilla", "last"),
    "vanilla+ts": ("vanilla", "last+ts"),
    "balcal-logits": ("balcal-logits", "last"),
    "balcal-auto": ("balcal-auto", "last"),
}
"""entry, and which figures of which run these are"""
NOTHING = "–"
BASELINE = "vanilla+ts"
PAPER = {here: there for there, here in NAMES.items() if there in published.MAIN} | {"balcal-logits": "Ours"}
"""method -> its row in the paper's tables"""
HOLDS, FAILS, OPEN, UNRUN = "holds", "**does not hold**", "cannot be told", "not run"
IMAGES = {"cifar10-fast": 10_000, "cifar100-fast": 10_000, "svhn-fast": 26_032}
"""to test on"""
TITLES = {"cifar10-fast": "CIFAR-10", "cifar100-fast": "CIFAR-100", "svhn-fast": "SVHN, rebuilt"}
TOP = """# Results

All images of CIFAR-10, CIFAR-100 and SVHN, on two CPU cores. The networks memorise almost all training images, as the
paper's do. Made by `python results/scripts/write.py` from `results/data/fast`, where each run's figures, course,
commit and duration are. A dash stands where nothing was run. What came out badly is shown too.

Figures are of the **last** epoch, unless a column says *chosen*. Choosing the epoch by validation NLL stops a network
before it is over-confident, so it hides what a method does.

"Ours" of the paper has two rows. `balcal` fuses probabilities, as the paper prints it. `balcal-logits` fuses logits,
as the released code does; the published numbers come from that. `balcal-auto` is our version with nothing to tune: it
uses validation images and averaged weights. `vanilla+ts` is plain training and one temperature from validation images.

Other pages: [calibrators after training](results-posthoc.md), [ensembles](results-ensembles.md),
[decisions](decide.md), [a small network on a tenth of the images](results-cpu.md).
"""
Run = dict[str, Any]


def runs() -> dict[tuple[str, str], list[Run]]:
    """By task and method, those that ended, by seed."""
    found: dict[tuple[str, str], list[Run]] = {}
    for path in sorted(FOLDER.glob("*-seed*.json")):
        run = json.loads(path.read_text())
        if "failed" not in run:
            found.setdefault((run["task"], run["method"]), []).append(run)
    return found


def shown(values: Iterable[float], digits: int = 2, scale: float = 100.0) -> str:
    """Mean, and the deviation over seeds where there are several."""
    scaled = [scale * value for value in values]
    if not scaled:
        return NOTHING
    spread = f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{mean(scaled):.{digits}f}{spread}"


def regime(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """What plain training reaches, run by run."""
    heads = ("", "seed", "accuracy", "on training images", "ECE, last and chosen epoch", "minutes", "machine")
    lines = ["## The regime: plain training", "", _row(heads), _row(["---"] * len(heads))]
    for task, title in TITLES.items():
        for run in found.get((task, "vanilla"), []):
            last, chosen = run["figures"]["last"], run["figures"]["chosen"]
            lines.append(
                _row(
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
            lines.append(_row([title, *[NOTHING] * (len(heads) - 1)]))
    note = (
        "Accuracy and ECE in %. Minutes: as if each epoch had taken as long as the fastest, and in parentheses what it "
    )
    more = " With two threads and nothing else on the machine they would be 12, 17 and 19, by the fastest steps."
    return [*lines, "", note + "took beside other work." + more, ""]


def _minutes(run: Run) -> str:
    fastest = run["fastest_epoch_seconds"]
    quiet = f"{len(run['history']['loss']) * fastest / 60:.0f}" if fastest else NOTHING
    return f"{quiet} ({run['minutes']:.0f})"


def _threads(run: Run) -> str:
    count = run["environment"]["threads"]
    return f"{count} thread{'s' * (count > 1)}"


def at_work(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """Ours beside plain training: figures of the last epoch, and gamma."""
    lines = ["## BalCAL beside plain training", ""]
    for task, title in TITLES.items():
        lines += [f"### {title}", ""]
        heads = ("", "seeds", "accuracy", "confidence", "ECE (with `ts`)", "NLL (with `ts`)", "gamma, first and last")
        lines += [_row(heads), _row(["---"] * len(heads))]
        for method in ("vanilla", *OURS, "balcal-released"):
            these = found.get((task, method), [])
            if these or method in METHODS[task]:
                lines.append(_row([f"`{method}`", *_figures(these)]))
        lines.append("")
    return [
        *lines,
        "Accuracy, mean confidence and ECE in %. On CIFAR-10, fused probabilities (`balcal`) meet the target for mean "
        "confidence with a gamma near 1, and their ECE hardly falls: they are over-confident at some confidences and "
        "under-confident at others. Fused logits change the shape of the distribution.",
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


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def claims(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """The paper's claims, one by one: holds here, does not, or cannot be told."""

    def pairs(task: str, method: str) -> list[tuple[Run, Run]]:
        plain = {run["seed"]: run["figures"] for run in found.get((task, "vanilla"), [])}
        return [(plain[run["seed"]], run["figures"]) for run in found.get((task, method), []) if run["seed"] in plain]

    def lower_ece(task: str, method: str, of: str = "last") -> str:
        word, difference = _lower_ece([(ours["last"], plain[of]) for plain, ours in pairs(task, method)])
        return word if difference is None else f"{word} ({difference:+.2f})"

    def accuracy_kept(task: str, method: str) -> str:
        both = [(plain["last"]["accuracy"], ours["last"]["accuracy"]) for plain, ours in pairs(task, method)]
        if not both:
            return UNRUN
        gained = mean(ours - plain for plain, ours in both)
        error = sqrt(2 * mean(p * (1 - p) for pair in both for p in pair) / IMAGES[task] / len(both))
        word = HOLDS if gained >= 0 else OPEN if gained > -1.96 * error else FAILS
        return f"{word} ({100 * gained:+.2f})"

    def gamma_falls(task: str, method: str) -> str:
        courses = [run["history"]["gamma"] for run in found.get((task, method), [])]
        return UNRUN if not courses else HOLDS if all(c[-1] < 0.9 for c in courses) else FAILS

    asked: dict[str, Callable[[str, str], str]] = {
        "ECE is lower than that of plain training": lower_ece,
        "ECE is lower than that of plain training with a temperature": lambda t, m: lower_ece(t, m, "last+ts"),
        "Accuracy is not below plain training's": accuracy_kept,
        "Gamma falls below 0.9: the fixed classifier is needed": gamma_falls,
    }
    lines = [
        "## What the paper claims, and what holds here",
        "",
        _row(["claim", "", *TITLES.values()]),
        _row(["---"] * (2 + len(TITLES))),
    ]
    for claim, rule in asked.items():
        for method in CLAIMED:
            lines.append(_row([claim, f"`{method}`", *(rule(task, method) for task in TITLES)]))
    return [
        *lines,
        "",
        "In parentheses the mean difference in points, over pairs of runs with the same seed. A claim holds, or does "
        "not, where the 95 % interval of that difference lies on one side of 0; its standard error comes from the "
        "number of test images (accuracy), or from the intervals of both ECEs. It leaves out that both runs see the "
        "same images, which makes it too wide, and that networks differ from seed to seed, which makes it too narrow.",
        "",
        "The paper's own tables have an average ECE of 1.65 % for plain training with a temperature and of 1.74 % for "
        "BalCAL: that BalCAL does not beat a temperature is its result too. What BalCAL has over a temperature: it "
        "needs no held-out image.",
        "",
    ]


def _lower_ece(pairs: list[tuple[Run, Run]]) -> tuple[str, float | None]:
    """Whether the first of each pair has a lower ECE than the second, and by how many points, on average."""
    if not pairs:
        return UNRUN, None
    difference = mean(ours["ece"] - theirs["ece"] for ours, theirs in pairs)
    error = sqrt(sum(_error(each) ** 2 for pair in pairs for each in pair)) / len(pairs)
    return HOLDS if difference < -1.96 * error else FAILS if difference > 1.96 * error else OPEN, 100 * difference


def _error(figures: Run) -> float:
    """Standard error of an ECE, from its 95 % interval."""
    low, high = figures["ece_interval"]
    return float(high - low) / 3.92


def main_table(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """All methods of the paper's main table, its numbers beside ours, and each against the baseline."""
    heads = ("", "seeds", "accuracy", "ECE", "NLL", "paper: accuracy, ECE", f"ECE against `{BASELINE}`")
    lines = ["## The paper's main table", ""]
    for place, (task, title) in enumerate(TITLES.items()):
        lines += [f"### {title}: all methods", "", _row(heads), _row(["---"] * len(heads))]
        plain = {run["seed"]: run["figures"]["last+ts"] for run in found.get((task, "vanilla"), [])}
        for method in ("vanilla", BASELINE, *(each for each in METHODS[task] if each not in ("vanilla", *PARTS))):
            trained, which = (method.removesuffix("+ts"), "last+ts" if method == BASELINE else "last")
            these = {run["seed"]: run["figures"][which] for run in found.get((task, trained), [])}
            word, difference = _lower_ece([(these[seed], plain[seed]) for seed in these if seed in plain])
            cells = [shown(each[key] for each in these.values()) for key in ("accuracy", "ece")]
            cells.append(shown((each["nll"] for each in these.values()), 3, 1.0))
            verdict = {HOLDS: "better", FAILS: "worse", OPEN: "cannot be told apart", UNRUN: NOTHING}[word]
            if difference is not None:
                verdict = "the baseline" if method == BASELINE else f"{verdict} ({difference:+.2f})"
            lines.append(_row([f"`{method}`", str(len(these) or NOTHING), *cells, _in_paper(method, place), verdict]))
        lines.append("")
    return [
        *lines,
        "Accuracy and ECE in %; in parentheses the difference in points. The paper's numbers are of a WRN-28-10. "
        "*Better* and *worse*: the 95 % interval of the difference, as above, does not hold 0.",
        "",
    ]


def _in_paper(method: str, place: int) -> str:
    """Accuracy and ECE, as printed, of the data set in this place."""
    if method == BASELINE:
        accuracy, ece = published.VARIANTS["learnable"][2 * place : 2 * place + 2]
        return f"{accuracy.value:.2f}, {ece.second:.2f}" if accuracy and ece else NOTHING
    accuracy, ece = published.MAIN[PAPER[method]][3 * place : 3 * place + 2] if method in PAPER else (None, None)
    return f"{accuracy.value:.2f}, {ece.value:.2f}" if accuracy and ece else NOTHING


def ood(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """Detection of the other two data sets, as in the paper's two tables."""
    heads = ("trained on", "", "seeds", "AUROC", "FPR95", "paper: AUROC, FPR95", "confidence on each")
    lines = []
    for place, (task, title) in enumerate(TITLES.items()):
        for method in (each for each in METHODS[task] if each not in PARTS):
            these = [run["ood"] for run in found.get((task, method), []) if run.get("ood")]
            if not these:
                continue
            means = [shown(mean(each[name][key] for name in OOD[task]) for each in these) for key in ("auroc", "fpr95")]
            printed = published.OOD.get(PAPER.get(method, ""), (None,) * 6)[2 * place : 2 * place + 2]
            paper = ", ".join(f"{number.value:.2f}" for number in printed if number) or NOTHING
            sure = ", ".join(f"{name} {shown(each[name]['confidence'] for each in these)}" for name in OOD[task])
            lines.append(_row([title, f"`{method}`", str(len(these)), *means, paper, sure]))
    if not lines:
        return []
    return [
        "## Out-of-distribution detection",
        "",
        "The score is confidence, in the last epoch. Mean over the two OOD sets, in %, as in the paper's table.",
        "",
        _row(heads),
        _row(["---"] * len(heads)),
        *lines,
        "",
    ]


VARIANTS = {
    "learnable": ("vanilla",),
    "ETF beta=1": ("etf-1",),
    "ETF beta=K": ("etf-k",),
    "ETF dynamic beta": ("balcal-beta",),
    "learnable + ETF beta=1": ("balcal-noadapter", f"balcal-noadapter {LOGITS}"),
    "learnable + ETF beta=1, dynamic gamma + adapter": ("balcal", "balcal-logits"),
}
"""rows of the paper's table, and the entries that stand for them: fused probabilities, then fused logits"""
GAMMAS = {
    "fixed fixed": ("balcal-fixed", f"balcal-fixed {LOGITS}"),
    "fixed dynamic": ("balcal-fixedloss", f"balcal-fixedloss {LOGITS}"),
    "dynamic dynamic": ("balcal", "balcal-logits"),
}
SWEPT = "cifar10-fast"


def parts(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """BalCAL without some of its parts, and with other deltas, as far as it was run."""
    if not any((SWEPT, entry) in found for entry in PARTS):
        return []
    return [
        "## The parts of BalCAL, CIFAR-10",
        "",
        "Rows with two lines have fused probabilities in the first and fused logits in the second.",
        "",
        *_ablation("variant", VARIANTS, published.VARIANTS, found),
        "Gamma of the loss and of the prediction; fixed is 0.5. With fixed gamma and beta = 1, fused probabilities "
        "cannot exceed 0.63: the paper's row must be of fused logits.",
        "",
        *_ablation("gamma", GAMMAS, published.GAMMA, found),
        *_deltas(found),
    ]


def _ablation(
    title: str,
    rows: Mapping[str, tuple[str, ...]],
    printed: published.Numbers,
    found: dict[tuple[str, str], list[Run]],
) -> list[str]:
    heads = (title, "", "seeds", "accuracy", "ECE (with `ts`)", "NLL", "paper: accuracy, ECE (with `ts`)")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for row, entries in rows.items():
        accuracy, ece = printed[row][:2]
        tempered = f" ({ece.second:.2f})" if ece and ece.second is not None else ""
        paper = f"{accuracy.value:.2f}, {ece.value:.2f}{tempered}" if accuracy and ece else NOTHING
        for entry in entries:
            these = found.get((SWEPT, entry), [])
            last = [run["figures"]["last"] for run in these]
            after = shown(run["figures"]["last+ts"]["ece"] for run in these)
            cells = [shown(each["accuracy"] for each in last), f"{shown(each['ece'] for each in last)} ({after})"]
            cells = [*cells, shown((each["nll"] for each in last), 3, 1.0)] if these else [NOTHING] * 3
            lines.append(_row([row, f"`{entry}`", str(len(these) or NOTHING), *cells, paper]))
    return [*lines, ""]


def _deltas(found: dict[tuple[str, str], list[Run]]) -> list[str]:
    """ECE by delta; the paper's figure has no numbers."""
    lines = ["Delta, seed 0: the share of the accuracy that mean confidence on training images is to meet.", ""]
    heads = ("delta", *(f"`{name}`: {what}" for name in CLAIMED for what in ("accuracy", "ECE", "last gamma")))
    lines += [_row(heads), _row(["---"] * len(heads))]
    for delta in sorted((*DELTAS, 0.95)):
        cells = []
        for name in CLAIMED:
            entry = name if delta == 0.95 else f"{name} head.delta={delta:g}"
            these = [run for run in found.get((SWEPT, entry), []) if run["seed"] == 0]
            last = [run["figures"]["last"] for run in these]
            cells += [shown(each["accuracy"] for each in last), shown(each["ece"] for each in last)]
            cells.append(shown((run["history"]["gamma"][-1] for run in these), 2, 1.0))
        lines.append(_row([f"{delta:g}", *cells]))
    return [*lines, ""]


def items() -> list[str]:
    if not any((FOLDER / f"paper-{name}.json").exists() for name in ITEMS):
        return []
    lines = ["## Corrupted images", "", "As `balcal paper --tier fast` has it.", ""]
    for name in ITEMS:
        if (path := FOLDER / f"paper-{name}.json").exists():
            answered = ItemResult.of(json.loads(path.read_text()))
            pictures = [FOLDER / f"fast-{name}.png"] if answered.data else []
            text = in_markdown(answered, pictures).replace("](fast-", "](results/fast-")
            lines.append(text.replace("## ", "### ", 1))
    return lines


def headline(joined: Sequence[Mapping[str, str]]) -> str:
    """The README's table; `joined`: rows of ensembles.csv."""
    found = runs()
    lines = [
        "All images, a small network that memorises them (12 to 19 minutes on two CPU cores), last epoch, mean ± "
        "standard deviation over seeds:",
        "",
        _row(["", "", "seeds", "accuracy %", "ECE %", "NLL"]),
        _row(["---"] * 6),
    ]
    unrun = [title for task, title in TITLES.items() if (task, "vanilla") not in found]
    for task, title in TITLES.items():
        for name, (method, which) in HEADLINE.items() if title not in unrun else ():
            these = found.get((task, method), [])
            last = [run["figures"][which] for run in these]
            figures = [shown(each[key] for each in last) for key in ("accuracy", "ece")]
            nll = shown((each["nll"] for each in last), 3, 1.0)
            lines.append(_row([title, f"`{name}`", str(len(these) or NOTHING), *figures, nll]))
        lines += [_row([title, *cells]) for cells in _largest(task, joined)]
    return "\n".join(
        [
            *lines,
            "",
            *([f"Not run yet: {', '.join(unrun)}.", ""] if unrun else []),
            "`balcal-logits` is the paper's method as released: it needs no held-out image. `vanilla+ts` and "
            "`balcal-auto` use 5,000. [All methods, intervals, and which claims of the paper hold](docs/results.md).",
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
    return "\n".join(
        [TOP, *regime(found), *at_work(found), *claims(found), *main_table(found), *ood(found), *parts(found), *items()]
    )
