"""What the pages on the `-fast` tasks share, and three of their sections: OOD detection, corrupted images, parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from statistics import mean, stdev
from typing import Any

from fast_asked import CORRUPTED, DELTAS, LOGITS, METHODS, OOD, PARTS, SHIFTED, SWEPT, USUAL, with_delta
from folders import DATA

from balcal.data.corruptions import SEVERITIES
from balcal.paper import published
from balcal.paper.items import NAMES

FOLDER = DATA / "fast"
CLAIMED = ("balcal", "balcal-logits")
"""what the paper calls Ours: as printed, and as released"""
BASELINE = "vanilla+ts"
OURS = ("balcal", "balcal-logits", "balcal-auto")
NOTHING = "–"
PAPER = {here: there for there, here in NAMES.items() if there in published.MAIN} | {"balcal-logits": "Ours"}
"""method -> its row in the paper's tables"""
TITLES = {"cifar10-fast": "CIFAR-10", "cifar100-fast": "CIFAR-100", "svhn-fast": "SVHN, rebuilt"}
Run = dict[str, Any]
Runs = dict[tuple[str, str], list[Run]]
"""by task and method, those that ended, by seed"""


def runs() -> Runs:
    """What results/data/fast has."""
    found: Runs = {}
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


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def trained(entry: str) -> str:
    """The method whose runs are behind a row."""
    return entry.removesuffix("+ts")


def last_epoch(found: Runs, task: str, entry: str) -> list[Run]:
    """What a row is about: figures of the last epoch, by seed; of the baseline those with a temperature."""
    which = "last+ts" if entry == BASELINE else "last"
    return [run["figures"][which] for run in found.get((task, trained(entry)), [])]


def with_fitted_delta(entries: Iterable[str], task: str, found: Runs) -> list[str]:
    """Behind `balcal-logits` also the delta that validation images prefer, if it is another one."""
    fitted = by_validation(task, found) or "balcal-logits"
    return list(dict.fromkeys(each for entry in entries for each in (entry, *[fitted] * (entry == "balcal-logits"))))


def ood(found: Runs) -> list[str]:
    """Detection of the other two data sets, as in the paper's two tables."""
    heads = ("trained on", "", "seeds", "AUROC", "FPR95", "paper: AUROC, FPR95", "confidence on each")
    lines = []
    for place, (task, title) in enumerate(TITLES.items()):
        fitted = by_validation(task, found)
        for method in (each for each in METHODS[task] if each not in PARTS or each == fitted):
            these = [run["ood"] for run in found.get((task, method), []) if run.get("ood")]
            if not these:
                continue
            means = [shown(mean(each[name][key] for name in OOD[task]) for each in these) for key in ("auroc", "fpr95")]
            printed = published.OOD.get(PAPER.get(method.split(maxsplit=1)[0], ""), ())[2 * place : 2 * place + 2]
            paper = ", ".join(f"{number.value:.2f}" for number in printed if number) or NOTHING
            sure = ", ".join(f"{name} {shown(each[name]['confidence'] for each in these)}" for name in OOD[task])
            lines.append(row([title, titled(method), str(len(these)), *means, paper, sure]))
    if not lines:
        return []
    return [
        "## Out-of-distribution detection",
        "",
        "The score is confidence, in the last epoch. Mean over the two OOD sets, in %, as in the paper's table.",
        "",
        row(heads),
        row(["---"] * len(heads)),
        *lines,
        "",
    ]


def shift(found: Runs) -> list[str]:
    """ECE on corrupted test images, by severity."""
    first = {key: run for key, these in found.items() for run in these if run["seed"] == 0 and run.get("shift")}
    if not first:
        return []
    lines = []
    for task, methods in SHIFTED.items():
        for method in methods:
            if (task, method) not in first:
                continue
            last, tempered = (first[task, method]["shift"][which] for which in ("last", "last+ts"))
            eces = [shown([last["ece"][severity - 1]]) for severity in SEVERITIES[::2]]
            eces[-1] += f" [{100 * last['ece_low'][-1]:.1f}, {100 * last['ece_high'][-1]:.1f}]"
            cells = [shown([last["accuracy"][-1]]), *eces, shown([tempered["ece"][-1]])]
            lines.append(row([f"`{method}`", *cells]))
    heads = ("", "accuracy, severity 5", "ECE, 1", "ECE, 3", "ECE, 5", "ECE with `ts`, 5")
    return [
        "## Corrupted images, CIFAR-10",
        "",
        f"Means over the 15 corruptions of CIFAR-10-C, made here of the first {CORRUPTED:,} test images. Last epoch, "
        "seed 0, in %; the number in a column's name is the severity.",
        "",
        row(heads),
        row(["---"] * len(heads)),
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
DISMANTLED = "cifar10-fast"


def parts(found: Runs) -> list[str]:
    """The paper's two tables of BalCAL without some of its parts."""
    return [
        "`balcal-logits` is `balcal` with fused logits; *logits* behind another name says the same.",
        "",
        *_ablation("variant", VARIANTS, published.VARIANTS, found),
        "Gamma of the loss and of the prediction; fixed is 0.5. With fixed gamma and beta = 1, fused probabilities "
        "cannot exceed 0.63: the paper's row must be of fused logits.",
        "",
        *_ablation("gamma", GAMMAS, published.GAMMA, found),
    ]


def _ablation(
    title: str,
    rows: Mapping[str, tuple[str, ...]],
    printed: published.Numbers,
    found: Runs,
) -> list[str]:
    heads = (title, "", "seeds", "accuracy", "ECE (with `ts`)", "NLL", "paper: accuracy, ECE (with `ts`)")
    lines = [row(heads), row(["---"] * len(heads))]
    for name, entries in rows.items():
        accuracy, ece = printed[name][:2]
        tempered = f" ({ece.second:.2f})" if ece and ece.second is not None else ""
        paper = f"{accuracy.value:.2f}, {ece.value:.2f}{tempered}" if accuracy and ece else NOTHING
        for entry in entries:
            these = found.get((DISMANTLED, entry), [])
            last = [run["figures"]["last"] for run in these]
            after = shown(run["figures"]["last+ts"]["ece"] for run in these)
            cells = [shown(each["accuracy"] for each in last), f"{shown(each['ece'] for each in last)} ({after})"]
            cells = [*cells, shown((each["nll"] for each in last), 3, 1.0)] if these else [NOTHING] * 3
            lines.append(row([name, titled(entry), str(len(these) or NOTHING), *cells, paper]))
    return [*lines, ""]


def deltas(found: Runs) -> list[str]:
    """ECE by delta, as far as it was run; the paper's figure has no numbers."""
    lines = []
    for task, title in TITLES.items():
        if any((task, entry) in found for entry in SWEPT):
            asked = [each for each in DELTAS if with_delta(CLAIMED[0], each) in METHODS[task]]
            lines += [
                row([title, f"`{name}`", f"{delta:g}", *_at(name, delta, task, found)])
                for name in CLAIMED
                for delta in sorted((*asked, USUAL))
            ]
    if not lines:
        return []
    heads = ("", "", "delta", "accuracy", "ECE", "last gamma", "validation NLL")
    return [
        "## Delta",
        "",
        "The share of the accuracy that mean confidence on training images is to meet. Seed 0, last epoch. The paper "
        "recommends 0.91 to 0.99 and does not say which it took for which data set. Bars in the picture are 95 % "
        "intervals.",
        "",
        "![ECE by delta, and gamma after each epoch for each delta](results/fast-delta.png)",
        "",
        row(heads),
        row(["---"] * len(heads)),
        *lines,
        "",
    ]


def by_validation(task: str, found: Runs) -> str:
    """`balcal-logits` with the delta of lowest validation NLL, of several that were run with seed 0; else no name."""
    entries = [with_delta("balcal-logits", delta) for delta in (USUAL, *DELTAS)]
    losses = {
        entry: run["history"]["val_nll"][-1]
        for entry in entries
        for run in found.get((task, entry), [])
        if run["seed"] == 0
    }
    return min(losses, key=lambda entry: losses[entry]) if len(losses) > 1 else ""


def titled(entry: str) -> str:
    """As a row begins."""
    name, _, setting = entry.partition(" head.")
    return f"`{name}`" + {"": "", "fusion=logits": ", logits"}.get(setting, f", {setting.replace('=', ' = ')}")


def _at(name: str, delta: float, task: str, found: Runs) -> list[str]:
    """Figures, or dashes."""
    these = [run for run in found.get((task, with_delta(name, delta)), []) if run["seed"] == 0]
    return [
        *(shown(run["figures"]["last"][key] for run in these) for key in ("accuracy", "ece")),
        shown((run["history"]["gamma"][-1] for run in these), 2, 1.0),
        shown((run["history"]["val_nll"][-1] for run in these), 3, 1.0),
    ]
