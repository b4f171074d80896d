"""The shortest form of the results on the `-fast` tasks: the README's table, and the top of docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from fast_claims import FAILS, FITTED, HOLDS, OPEN, lower, paired
from fast_tables import (
    BASELINE,
    NOTHING,
    OURS,
    TITLES,
    Runs,
    by_validation,
    last_epoch,
    row,
    runs,
    shown,
    titled,
    with_fitted_delta,
)

HEADLINE = ("vanilla", BASELINE, "balcal-logits", "balcal-auto")
SHORT = (("ece", 100, 2), ("nll", 1, 3))
"""figure, scale and digits"""


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
