"""An arena's result as a table: Markdown, LaTeX, CSV, JSON. Percent where a person reads, fractions in CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

from balcal.arena.columns import FIGURES, Difference, Figure, Format, Judgement
from balcal.arena.result import ArenaResult
from balcal.core import BalcalError
from balcal.runtime.names import as_code, in_latex, in_markdown, plain, unknown

EMPTY = "—"
Row = dict[str, Any]
Named = Callable[[str], str]


def rows(result: ArenaResult) -> list[Row]:
    """One row per entry; `None` where there is nothing."""
    against = result.against(result.reference)
    best = {figure.name: (result.best(figure.name), result.against_best(figure.name)) for figure in FIGURES}
    return [_row(result, entry, against.get(entry, {}), best) for entry in result.entries]


def _row(result: ArenaResult, entry: str, against: dict[str, Difference], best: dict[str, Any]) -> Row:
    cells = [result.cell(entry, seed) for seed in result.seeds]
    there = [cell.figures for cell in cells if cell.figures is not None]
    row: Row = {
        "entry": entry,
        "method": cells[0].method,
        "posthoc": cells[0].posthoc,
        "seeds": len(there),
        "asked": len(cells),
        "floor_mean": mean(figures["floor_mean"] for figures in there) if there else None,
        "floor_high": mean(figures["floor_high"] for figures in there) if there else None,
        "ece_interval": [mean(f["ece_interval"][end] for f in there) for end in (0, 1)] if there else None,
    }
    for figure in FIGURES:
        values = [figures[figure.name] for figures in there]
        leader, behind = best[figure.name]
        row[figure.name] = {
            "mean": mean(values) if values else None,
            "std": stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None,
            "values": result.values(entry, figure.name),
            "against": _plain(against.get(figure.name)),
            "against_best": _plain(behind.get(entry)),
            "best": entry == leader,
            "ties_best": entry == leader or _ties(behind.get(entry)),
        }
    return row


def _plain(found: Difference | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _ties(found: Difference | None) -> bool:
    return found is not None and found.judgement in (Judgement.TIE, Judgement.SAME)


def table(result: ArenaResult, format: Format) -> str:
    if format not in FORMATS:
        raise BalcalError(unknown("format", format, FORMATS))
    return FORMATS[format](result)


def markdown(result: ArenaResult) -> str:
    one = len(result.seeds) == 1
    titles = ["method"]
    for figure in FIGURES:
        titles.append(f"{figure.title}{' %' if figure.percent else ''}")
        titles += ["floor %"] if figure.name == "ece" else []
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows(result):
        cells = [as_code(row["entry"], cell=True) + _seeds_left(row)]
        for figure in FIGURES:
            cells.append(_cell(row, figure, one, "± ", lambda text: f"**{text}**", lambda found: found.mark))
            cells += [_floor(row)] if figure.name == "ece" else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *legend(result)])


def _seeds_left(row: Row) -> str:
    return f" ({row['seeds']} of {row['asked']} seeds)" if row["seeds"] < row["asked"] else ""


def _cell(
    row: Row, figure: Figure, one: bool, pm: str, bold: Callable[[str], str], marked: Callable[[Judgement], str]
) -> str:
    found = row[figure.name]
    if found["mean"] is None:
        return EMPTY
    text = figure.shown(found["mean"]) + (f" {pm}{figure.shown(found['std'])}" if found["std"] is not None else "")
    text = bold(text) if found["ties_best"] and not one else text
    if figure.name == "ece":
        text += " [" + ", ".join(figure.shown(end) for end in row["ece_interval"]) + "]"
    mark = marked(found["against"]["judgement"]) if found["against"] else ""
    return f"{text} {mark}" if mark else text


def _floor(row: Row) -> str:
    return EMPTY if row["floor_mean"] is None else f"{row['floor_mean'] * 100:.2f}"


def legend(result: ArenaResult, name: Named = as_code, text: Named = in_markdown) -> list[str]:
    """What the table says and what it does not; in Markdown, unless names and settings are to be written otherwise."""
    seeds, others, reference = len(result.seeds), len(result.entries) - 1, name(result.reference)
    lines = [
        f"{name(result.task)}, {result.samples:,} test images, {seeds} {'seed' if seeds == 1 else 'seeds'}"
        + (": mean ± standard deviation over seeds." if seeds > 1 else "."),
        "ECE and AECE: 15 bins. In brackets the 95 % interval that so many images leave to a run's ECE"
        + (" (mean over seeds)" if seeds > 1 else "")
        + "; it begins at 0 where the run cannot be told from a perfect one. floor: the ECE that a perfect model with "
        "the same confidences scores on average.",
    ]
    if seeds == 1:
        lines.append(
            f"Against the run of {reference} on the same images: (▲) better, (▼) worse, = a tie, ≡ no image "
            f"tells them apart; at the 5 % level, in each column corrected (Holm) for {others} comparisons. One seed "
            "speaks of these runs only, not of the methods."
        )
    else:
        lines.append(
            f"Against {reference}, paired over seeds and images: ▲ better, ▼ worse, = a tie, ≡ no image tells "
            f"them apart; at the 5 % level, in each column corrected (Holm) for {others} comparisons. Bold: the best "
            f"mean, and all that tie with it (Holm over all {others * (others + 1) // 2} pairs, as the best one was "
            "picked afterwards)."
        )
    lines += [_search_sentence(search, name, text) for search in result.searches]
    return lines + _found_otherwise(result)


def _found_otherwise(result: ArenaResult) -> list[str]:
    """Runs that this arena would have trained with other last bits."""
    asked = result.made.get("threads")
    other = [run for run in result.runs if run.found and run.environment.get("threads") != asked]
    if not other:
        return []
    return [f"{len(other)} of {len(result.runs)} runs were found, trained with another number of threads than {asked}."]


def _search_sentence(search: Any, name: Named, text: Named) -> str:
    method, tried = name(search["method"]), ", ".join(text(" ".join(each["settings"])) for each in search["tried"])
    if search["chosen"] is None:
        return f"{method}: no candidate of {tried} has all its seeds."
    chosen = text(" ".join(search["chosen"]))
    return f"{method}: {chosen}, chosen among {tried} on the validation split ({search['by']})."


def latex(result: ArenaResult) -> str:
    r"""A `tabular` for the booktabs package; the legend follows as comments, for the caption."""
    one = len(result.seeds) == 1
    titles = ["method"]
    for figure in FIGURES:
        titles.append(figure.title + (r" (\%)" if figure.percent else ""))
        titles += [r"floor (\%)"] if figure.name == "ece" else []
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}", r"\toprule", " & ".join(titles) + r" \\", r"\midrule"]
    for row in rows(result):
        cells = [rf"\texttt{{{in_latex(row['entry'])}}}" + _seeds_left(row)]
        for figure in FIGURES:
            told = _cell(row, figure, one, r"$\pm$ ", lambda text: rf"\textbf{{{text}}}", _superscript)
            cells.append(told.replace(EMPTY, "---"))
            cells += [_floor(row).replace(EMPTY, "---")] if figure.name == "ece" else []
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *(f"% {plain(line)}" for line in legend(result))])


def _superscript(found: Judgement) -> str:
    return f"$^{{{found.latex}}}$" if found.latex else ""


def per_entry(result: ArenaResult) -> str:
    """CSV, a line per entry: fractions."""
    lines = []
    for row in rows(result):
        line = {name: row[name] for name in ("entry", "method", "posthoc", "seeds", "asked")}
        for figure in FIGURES:
            found, name = row[figure.name], figure.name
            line |= {name: found["mean"], f"{name}_std": found["std"]}
            if name == "ece":
                low, high = row["ece_interval"] or (None, None)
                line |= {"ece_low": low, "ece_high": high}
                line |= {"floor_mean": row["floor_mean"], "floor_high": row["floor_high"]}
            for title, key in (("against", "against"), ("best", "against_best")):
                told = found[key] or {}
                line |= {f"{name}_{title}_{part}": told.get(part) for part in ("value", "low", "high", "p", "adjusted")}
                line |= {f"{name}_{title}": told.get("judgement")}
        lines.append(line)
    return _csv(lines)


def per_run(result: ArenaResult) -> str:
    """CSV, a line per entry and seed: fractions, and nothing where a run failed."""
    runs = {run.run: run for run in result.runs}
    lines = []
    for cell in result.cells:
        figures, run = cell.figures or {}, runs.get(cell.run)  # none, where a search found nothing to train
        low, high = figures.get("ece_interval") or (None, None)
        lines.append(
            {"entry": cell.entry, "method": cell.method, "posthoc": cell.posthoc, "seed": cell.seed}
            | {"epoch": run.epoch + 1 if run and run.epoch is not None else None, "val_nll": run and run.val_nll}
            | {figure.name: figures.get(figure.name) for figure in FIGURES}
            | {"ece_low": low, "ece_high": high}
            | {name: figures.get(name) for name in ("floor_mean", "floor_high", "mean_confidence")}
            | {"seconds": run and run.seconds, "run": cell.run, "error": cell.error}
        )
    return _csv(lines)


def _csv(lines: Iterable[Row]) -> str:
    lines = list(lines)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _in_csv(value) for name, value in line.items()} for line in lines)
    return buffer.getvalue().rstrip("\n")


def _in_csv(value: Any) -> Any:
    """Six digits; text on one line, as many readers want it."""
    if isinstance(value, str):
        return plain(value)
    return f"{value:.6g}" if isinstance(value, float) else value


def as_json(result: ArenaResult) -> str:
    """Everything: what `ArenaResult.load` reads, and the rows of the table."""
    return json.dumps(result.as_dict() | {"rows": rows(result)}, indent=1)


FORMATS: dict[str, Callable[[ArenaResult], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": per_entry,
    "runs": per_run,
    "json": as_json,
}
SUFFIXES: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}


def format_for(format: str | None, out: Path | None) -> Format:
    """As asked for, or as the file's name says."""
    if format is None:
        return SUFFIXES.get(out.suffix, "markdown") if out else "markdown"
    if format not in FORMATS:
        raise BalcalError(unknown("format", format, FORMATS))
    return cast(Format, format)
