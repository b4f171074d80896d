"""docs/results-posthoc.md, from results/data/posthoc.csv alone; `python results/scripts/write.py` writes it."""

from __future__ import annotations

import csv
from collections import Counter

from posthoc import BINARY, FIRST, REST, SIZES, TABLE

NOTHING = "–"
TOP = """# Calibrators after training

What each calibrator does to the NLL of a trained model, against temperature scaling (`ts`) on the same samples. Each is
fitted on n samples, 20 times drawn anew, and measured on all others. Made by `python results/scripts/posthoc.py` and
`python results/scripts/write.py`; Brier score, ECE, accuracy, seconds and intervals are in
[posthoc.csv](../results/data/posthoc.csv).

- A minus is good. `=` marks a difference whose 95 % interval contains 0 (paired over splits; splits overlap, so
  intervals are rather too narrow).
- `auto` chooses among `ts`, `svs`, `sms` and doing nothing (with two classes also `platt`, `beta`, `quadratic`). Its
  margins were set on these sets: first on the four networks, by this table; then once more on all sets, where eleven
  variants were compared on other splits (n = 200 to 1,000). So for `auto` this table is no independent test, except
  on our own `vanilla` runs, which were added afterwards.
- `vs`, `ms` and `dirichlet` are left out in part where there are more than 50 classes: a fit takes seconds to minutes
  there.
"""
Row = dict[str, str]


def rows() -> dict[tuple[str, str, int], Row]:
    """By set, method and number of samples."""
    with TABLE.open() as file:
        return {(row["set"], row["method"], int(row["n"])): row for row in csv.DictReader(file)}


def verdict(row: Row) -> str:
    """better, worse or even, against `ts`"""
    return "better" if float(row["high"]) < 0 else "worse" if float(row["low"]) > 0 else "even"


def cell(row: Row | None) -> str:
    """The change of NLL in percent of that of `ts`."""
    if row is None:
        return NOTHING
    if not row["nll"]:
        return "refused"
    away = float(row["nll_minus_ts"])
    return f"{100 * away / (float(row['nll']) - away):+.1f} %{' =' if verdict(row) == 'even' else ''}"


def count(found: dict[tuple[str, str, int], Row]) -> list[str]:
    """How often each is better, even or worse."""
    lines = ["## Summary", "", "Cells of all tables below.", ""]
    lines += ["| | better than `ts` | even | worse |", "|---|---|---|---|"]
    for method in (*FIRST, *BINARY, *REST):
        if method == "ts":
            continue
        seen = Counter(verdict(row) for (_, name, _), row in found.items() if name == method and row["nll"])
        lines.append(f"| `{method}` | {seen['better']} | {seen['even']} | {seen['worse']} |")
    return [*lines, ""]


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
