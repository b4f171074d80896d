"""What the paper claims, and whether it holds in the runs of the `-fast` tasks."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from statistics import mean, variance

from fast_asked import DELTAS, LOGITS, OOD, PLAIN, USUAL, WITH_PART, with_delta
from fast_tables import CLAIMED, DISMANTLED, NOTHING, TITLES, Run, Runs, by_validation, row
from scipy.special import stdtrit

HOLDS, FAILS, OPEN, UNRUN = "holds", "**does not hold**", "cannot be told", "not run"
IMAGES = {"cifar10-fast": 10_000, "cifar100-fast": 10_000, "svhn-fast": 26_032}
"""to test on"""
FITTED = "`balcal-logits`, delta by validation"
Pairs = list[tuple[Run, Run]]
"""ours and the other's, which is plain training's if nothing else is said, with the same seed"""
Difference = tuple[float, float, float]
"""value and 95 % interval, in points"""


def paired(found: Runs, task: str, method: str, other: str = "vanilla") -> Pairs:
    others = {run["seed"]: run for run in found.get((task, other), [])}
    return [(run, others[run["seed"]]) for run in found.get((task, method), []) if run["seed"] in others]


def difference(pairs: Pairs, figure: str, of: str = "vanilla") -> Difference | None:
    """Ours minus the other's: the mean over seeds, and its 95 % interval.

    The interval allows for other test images (the mean over seeds of each pair's own interval, as all seeds see the
    same images) and, where there are several seeds, for other seeds.
    """
    if not pairs:
        return None
    each = [
        ours.get("against", {}).get(of, {}).get(figure) or _unpaired(ours, plain, figure, of) for ours, plain in pairs
    ]
    values = [value for value, _, _ in each]
    value, count = mean(values), len(values)
    seeds = float(stdtrit(count - 1, 0.975)) ** 2 * variance(values) / count if count > 1 else 0.0
    below, above = (mean((one[0] - one[end]) ** 2 for one in each) for end in (1, 2))
    return 100 * value, 100 * (value - sqrt(below + seeds)), 100 * (value + sqrt(above + seeds))


def _unpaired(ours: Run, plain: Run, figure: str, of: str) -> Difference:
    """As if both had seen images of their own: for files that do not have the comparison image by image."""
    both = ours["figures"]["last"], plain["figures"][PLAIN[of].strip("+")]
    value = both[0][figure] - both[1][figure]
    if figure == "ece":
        squares = [(high - low) ** 2 / 4 for low, high in (each["ece_interval"] for each in both)]
    else:
        squares = [1.96**2 * p * (1 - p) / IMAGES[ours["task"]] for p in (each["accuracy"] for each in both)]
    return value, value - sqrt(sum(squares)), value + sqrt(sum(squares))


def lower(pairs: Pairs, of: str = "vanilla") -> tuple[str, float | None]:
    """Whether ECE is lower, and by how many points."""
    found = difference(pairs, "ece", of)
    return (UNRUN, None) if found is None else (below(found), found[0])


def below(found: Difference) -> str:
    """Whether ours is the smaller one."""
    _, low, high = found
    return HOLDS if high < 0 else FAILS if low > 0 else OPEN


def lower_ece(pairs: Pairs, of: str = "vanilla") -> str:
    word, value = lower(pairs, of)
    return word if value is None else f"{word} ({value:+.2f})"


def accuracy_kept(pairs: Pairs) -> str:
    found = difference(pairs, "accuracy")
    if found is None:
        return UNRUN
    value, _, high = found
    return f"{HOLDS if value >= 0 else FAILS if high < 0 else OPEN} ({value:+.2f})"


def gamma_falls(pairs: Pairs) -> str:
    courses = [ours["history"]["gamma"] for ours, _ in pairs]
    return UNRUN if not courses else HOLDS if all(c[-1] < 0.9 for c in courses) else FAILS


def detects(pairs: Pairs) -> str:
    """AUROC, mean over the OOD sets."""
    both = [pair for pair in pairs if all(run.get("ood") for run in pair)]
    if not both:
        return UNRUN
    task = both[0][0]["task"]
    rates = [[[run["ood"][name]["auroc"] for name in OOD[task]] for run in pair] for pair in both]
    gained = mean(mean(ours) - mean(plain) for ours, plain in rates)
    errors = [
        mean(
            _auroc_error(rate, IMAGES[task], IMAGES[f"{name}-fast"]) for name, rate in zip(OOD[task], run, strict=True)
        )
        for pair in rates
        for run in pair
    ]
    error = sqrt(sum(each**2 for each in errors)) / len(both)
    word = HOLDS if gained > 1.96 * error else FAILS if gained < -1.96 * error else OPEN
    return f"{word} ({100 * gained:+.2f})"


def _auroc_error(rate: float, inside: int, outside: int) -> float:
    """Hanley and McNeil's standard error, 1982."""
    q1, q2 = rate / (2 - rate), 2 * rate**2 / (1 + rate)
    spread = rate * (1 - rate) + (inside - 1) * (q1 - rate**2) + (outside - 1) * (q2 - rate**2)
    return sqrt(spread / (inside * outside))


def robust(pairs: Pairs, of: str = "vanilla") -> str:
    """ECE at the strongest corruption."""
    both = [pair for pair in pairs if all(run.get("shift") for run in pair)]
    return lower_ece([(_strongest(ours, "vanilla"), _strongest(plain, of)) for ours, plain in both], of)


def _strongest(run: Run, of: str) -> Run:
    """The run, as if its test images were the corrupted ones."""
    which = PLAIN[of].strip("+")
    at = {name: values[-1] for name, values in run["shift"][which].items()}
    figures = {"ece": at["ece"], "ece_interval": (at["ece_low"], at["ece_high"])}
    return {"task": run["task"], "figures": {which: figures}}


def _exceptions(found: Runs) -> str:
    """How many runs cannot be compared image by image, as a sentence."""
    runs = [run for these in found.values() for run in these]
    count = sum("against" not in run for run in runs)
    if not count:
        return ""
    return (
        f"{count} of {len(runs)} runs are older: their predictions were not kept, so their ECE and accuracy are "
        "compared as if each had seen images of its own. "
    )


ASKED: dict[str, Callable[[Pairs], str]] = {
    "ECE is lower than that of plain training": lower_ece,
    "ECE is lower than that of plain training with a temperature": lambda pairs: lower_ece(pairs, "vanilla+ts"),
    "Accuracy is not below plain training's": accuracy_kept,
    "Gamma falls below 0.9: the fixed classifier is needed": gamma_falls,
    "OOD detection (AUROC) is better than plain training's": detects,
    "On corrupted images, severity 5, ECE is lower than that of plain training": robust,
    "On corrupted images, severity 5, ECE is lower than with a temperature": lambda pairs: robust(pairs, "vanilla+ts"),
}


def every_delta(found: Runs, task: str, method: str) -> str:
    """Whether ECE is below plain training's with each delta of the paper's range; open until all of them are run."""
    each = [lower(paired(found, task, with_delta(method, delta))) for delta in (USUAL, *DELTAS)]
    words, values = zip(*each, strict=True)
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return UNRUN
    word = FAILS if FAILS in words else HOLDS if set(words) == {HOLDS} else OPEN
    return f"{word} ({len(known)} of {len(each)} deltas: {min(known):+.2f} to {max(known):+.2f})"


def claims(found: Runs) -> list[str]:
    """The paper's claims, one by one: holds here, does not, or cannot be told."""
    entries = {f"`{method}`": dict.fromkeys(TITLES, method) for method in CLAIMED}
    entries[FITTED] = {task: by_validation(task, found) for task in TITLES}

    lines = [
        "## What the paper claims, and what holds here",
        "",
        row(["claim", "", *TITLES.values()]),
        row(["---"] * (2 + len(TITLES))),
    ]
    for claim, rule in ASKED.items():
        for title, methods in entries.items():
            cells = [rule(paired(found, task, method)) for task, method in methods.items()]
            if title != FITTED or set(cells) != {UNRUN}:
                lines.append(row([claim, title, *cells]))
    every = "ECE is lower than that of plain training for every delta from 0.91 to 0.99"
    lines += [row([every, f"`{name}`", *(every_delta(found, task, name) for task in TITLES)]) for name in CLAIMED]
    return [
        *lines,
        "",
        "In parentheses the mean difference in points, over pairs of runs with the same seed. A claim holds, or does "
        "not, where the 95 % interval of that difference lies on one side of 0. That of accuracy also holds where the "
        "mean is not below.",
        "",
        "The interval allows for other test images, and for other seeds where there are several. Runs are compared "
        f"image by image. {_exceptions(found)}AUROC and figures on corrupted images are compared as if each run had "
        "seen images of its own. That makes an interval too wide.",
        "",
        "The paper's own tables have an average ECE of 1.65 % for plain training with a temperature and of 1.74 % for "
        "BalCAL: that BalCAL does not beat a temperature is its result too. What BalCAL has over a temperature: it "
        "needs no held-out image.",
        "",
    ]


LOWER, NOT_LOWER = "lower", "not lower"
PARTS_ASKED = (
    ("ETF classifier alone, beta = 1", NOT_LOWER, "", "etf-1", "vanilla"),
    ("ETF classifier alone, beta = K", NOT_LOWER, "", "etf-k", "vanilla"),
    ("ETF classifier alone, beta solved", LOWER, "", "balcal-beta", "vanilla"),
    *(
        (part, LOWER, fusion, first, second)
        for part, pairs in {
            "+ learnable classifier, adapter": (("balcal", "balcal-beta"), ("balcal-logits", "balcal-beta")),
            "+ adapter": (("balcal", "balcal-noadapter"), ("balcal-logits", f"balcal-noadapter {LOGITS}")),
            "+ gamma solved for the prediction": (
                ("balcal-fixedloss", "balcal-fixed"),
                (f"balcal-fixedloss {LOGITS}", f"balcal-fixed {LOGITS}"),
            ),
            "+ gamma solved for the loss, too": (
                ("balcal", "balcal-fixedloss"),
                ("balcal-logits", f"balcal-fixedloss {LOGITS}"),
            ),
        }.items()
        for fusion, (first, second) in zip(("probabilities", "logits"), pairs, strict=True)
    ),
)
"""what is added; what the paper says of ECE; fusion; with it and without it"""


def part_claims(found: Runs) -> list[str]:
    """What the paper says of each part of BalCAL: ECE, NLL and accuracy with it minus those without it."""
    heads = ("", "fusion", "ECE", "NLL", "accuracy", "the paper: ECE is", "here")
    lines = ["## The parts of BalCAL, CIFAR-10", "", row(heads), row(["---"] * len(heads))]
    for part, claim, fusion, first, second in PARTS_ASKED:
        ece, nll, accuracy = (subtracted(found, first, second, figure) for figure in ("ece", "nll", "accuracy"))
        word = UNRUN if ece is None else below(ece)
        if claim == NOT_LOWER:
            word = {HOLDS: FAILS, FAILS: HOLDS, OPEN: HOLDS}.get(word, word)
        interval = f" [{ece[1]:+z.2f}, {ece[2]:+z.2f}]" if ece else ""
        cells = [_signed(ece, 2) + interval, _signed(nll, 3, 0.01), _signed(accuracy, 2)]
        lines.append(row([part, fusion, *cells, claim, word]))
    return [
        *lines,
        "",
        "With the part minus without it: last epoch, seed 0, image by image; ECE and accuracy in points. An ETF "
        "classifier alone is compared with plain training. The 95 % intervals allow for other test images, not for "
        "other seeds. A claim holds, or does not, where the interval lies on one side of 0; *not lower* holds where "
        "ECE cannot be told apart, too.",
        "",
    ]


def subtracted(found: Runs, first: str, second: str, figure: str) -> Difference | None:
    """First minus second; whichever of the two lacks a part has the comparison in its file."""
    if first in WITH_PART.get(second, ()):
        swapped = subtracted(found, second, first, figure)
        return swapped and (-swapped[0], -swapped[2], -swapped[1])
    pairs = [pair for pair in paired(found, DISMANTLED, first, second) if second in pair[0].get("against", {})]
    return difference(pairs, figure, second)


def _signed(found: Difference | None, digits: int, scale: float = 1.0) -> str:
    return NOTHING if found is None else f"{scale * found[0]:+z.{digits}f}"
