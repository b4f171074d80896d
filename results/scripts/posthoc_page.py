"""docs/results-posthoc.md, from results/data/posthoc.csv alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

import csv
from collections import Counter
from typing import cast

import numpy as np
from posthoc import BINARY, FIRST, REST, SIZES, SPLITS, TABLE
from scipy import stats

from balcal.metrics.over_seeds import holm

NOTHING = "–"
TOP = """# Calibrators after training

What each calibrator does to the NLL of a trained model, against temperature scaling (`ts`) on the same samples. Each is
fitted on n samples, 20 times drawn anew, and measured on all others. Made by `python results/scripts/posthoc.py` and
`python results/scripts/write.py`; Brier score, ECE, accuracy, seconds and intervals are in
[posthoc.csv](../results/data/posthoc.csv).

- A minus is good. `=` marks a difference that cannot be told from 0 at the 5 % level: a t test paired over splits,
  corrected by Holm over all sets and sizes of a calibrator. Splits overlap, so the test is rather too sure.
- `auto` chooses among `ts`, `ts-uniform`, `svs`, `sms` with six penalties, `ms` and doing nothing; with two classes
  among `ts`, `platt`, `beta`, `quadratic` and doing nothing. Its rule was chosen on these sets, on other splits, and
  `ts-uniform` because of SVHN ([decisions](decisions.md)). So for `auto` this table is no independent test, except on
  our own CIFAR-10 and CIFAR-100 runs, which took no part.
- `ts-uniform` mixes in a fitted share of the uniform distribution. It pays where errors are made at full confidence.
- `ms` and `auto` share the form of a matrix for CLINC150, and not its penalty: `ms` searches from strong to weak, and
  can stop too early.
- A dash stands where nothing was run.
"""
Row = dict[str, str]
Key = tuple[str, str, int]
LEVEL = 0.05


def rows() -> dict[Key, Row]:
    """By set, method and number of samples; each with its verdict against `ts`: better, worse or even."""
    with TABLE.open() as file:
        found = {(row["set"], row["method"], int(row["n"])): row for row in csv.DictReader(file)}
    for method in {key[1] for key in found} - {"ts"}:
        these = [row for key, row in found.items() if key[1] == method and row["nll"]]
        for row, p in zip(these, holm(np.array([p_value(row) for row in these])), strict=True):
            sign = "better" if float(row["nll_minus_ts"]) < 0 else "worse"
            row["verdict"] = sign if p < LEVEL else "even"
    return found


def p_value(row: Row) -> float:
    """Of the t test whose 95 % interval the row has."""
    low, high = float(row["low"]), float(row["high"])
    if low == high:  # the same predictions
        return 1.0 if low == 0 else 0.0
    error = (high - low) / 2 / stats.t.ppf(0.975, SPLITS - 1)
    return cast(float, 2 * stats.t.sf(abs(float(row["nll_minus_ts"])) / error, SPLITS - 1))


def cell(row: Row | None) -> str:
    """The change of NLL in percent of that of `ts`."""
    if row is None:
        return NOTHING
    if not row["nll"]:
        return "refused"
    away = float(row["nll_minus_ts"])
    return f"{100 * away / (float(row['nll']) - away):+.1f} %{' =' if row['verdict'] == 'even' else ''}"


def count(found: dict[Key, Row]) -> list[str]:
    """How often each is better, even or worse."""
    lines = ["## Summary", "", "Cells of all tables below.", ""]
    lines += ["| | better than `ts` | even | worse |", "|---|---|---|---|"]
    for method in (*FIRST, *BINARY, *REST):
        if method == "ts":
            continue
        seen = Counter(row["verdict"] for (_, name, _), row in found.items() if name == method and row["nll"])
        lines.append(f"| `{method}` | {seen['better']} | {seen['even']} | {seen['worse']} |")
    chosen = [row for (_, name, _), row in found.items() if name == "auto" and row["nll"]]
    alone = sum(float(row["low"]) > 0 for row in chosen)
    behind = ", ".join(f"{100 * behind_best(found, n):.1f} % ({n:,})" for n in SIZES)
    return [
        *lines,
        "",
        f"Without Holm's correction `auto` would be worse in {alone} of {len(chosen)} cells. Its NLL is above that "
        f"of the calibrator that is best there, which nobody knows beforehand, by at most {behind}.",
        "",
    ]


def behind_best(found: dict[Key, Row], n: int) -> float:
    """How far `auto` is above the best single calibrator, on the set where it is farthest."""
    nlls: dict[str, dict[str, float]] = {}
    for (name, method, size), row in found.items():
        if size == n and row["nll"]:
            nlls.setdefault(name, {})[method] = float(row["nll"])
    return max(each["auto"] / min(each.values()) - 1 for each in nlls.values() if "auto" in each)


def page() -> str:
    found = rows()
    lines = [TOP, *count(found)]
    for name in dict.fromkeys(key[0] for key in found):
        sizes = [n for n in SIZES if (name, "ts", n) in found]
        lines += [f"## {name[0].upper()}{name[1:]}", "", f"| n | {' | '.join(f'{n:,}' for n in sizes)} |"]
        lines.append("|---" * (1 + len(sizes)) + "|")
        nll = [f"{float(found[name, 'ts', n]['nll']):.4f}" for n in sizes]
        lines.append(f"| NLL of `ts` | {' | '.join(nll)} |")
        for method in (*FIRST, *BINARY, *REST):
            cells = [found.get((name, method, n)) for n in sizes]
            if method != "ts" and any(cells):
                lines.append(f"| `{method}` | {' | '.join(map(cell, cells))} |")
        lines.append("")
    return "\n".join(lines)
