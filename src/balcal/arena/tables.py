"""An arena's result as a table: Markdown, LaTeX, CSV, JSON. Percent where a person reads, fractions in CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

from balcal.arena.columns import Column, Judgement, ResampledBins
from balcal.arena.headline import headline
from balcal.arena.records import Difference, Row, Summary
from balcal.arena.result import ArenaResult, Format
from balcal.core import BalcalError
from balcal.runtime.names import as_code, in_latex, in_markdown, plain, unknown

EMPTY = "—"
TIED = "≈"
"""stands after a mean that cannot be told from the best"""
Named = Callable[[str], str]


def rows(result: ArenaResult) -> list[Row]:
    """One row per entry."""
    against = result.against(result.reference)
    best = {column.name: result.against_best(column.name) for column in result.columns}
    made = []
    for entry in result.entries:
        cells = [result.cell(entry, seed) for seed in result.seeds]
        there = [cell.figures for cell in cells if cell.figures is not None]
        columns = {
            name: _summary(result, entry, column, there, against.get(entry, {}).get(name), best[name].get(entry))
            for name, column in ((column.name, column) for column in result.columns)
        }
        of, after = cells[0].method, cells[0].posthoc
        made.append(Row(entry, of, after, len(there), len(cells), cells[0].trainings, columns))
    return made


def _summary(
    result: ArenaResult,
    entry: str,
    column: Column,
    figures: list[Mapping[str, Any]],
    against: Difference | None,
    against_best: Difference | None,
) -> Summary:
    """`figures` are those of the runs that there are."""
    figures = [each for each in figures if column.name in each]  # a file may be older than the column
    values = [each[column.name] for each in figures]
    ties = against_best is not None and against_best.judgement in (Judgement.TIE, Judgement.SAME)
    best = entry == result.best(column.name)
    interval, floor = column.interval, column.floor
    return Summary(
        column,
        mean=mean(values) if values else None,
        std=stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None,
        values=result.values(entry, column.name),
        against=against,
        against_best=against_best,
        best=best,
        ties_best=ties or (best and column in result.compared),
        interval=[mean(each[interval][end] for each in figures) for end in (0, 1)] if interval and figures else None,
        floor=[mean(each[name] for each in figures) for name in floor] if floor and figures else None,
    )


def table(result: ArenaResult, format: Format) -> str:
    if format not in FORMATS:
        raise BalcalError(unknown("format", format, FORMATS))
    return FORMATS[format](result)


@dataclass(frozen=True)
class Markup:
    """How a format writes the parts of a cell."""

    name: Named
    percent: str
    plus_minus: str
    bold: Callable[[str], str]
    mark: Callable[[Judgement], str]
    tied: str = TIED
    empty: str = EMPTY

    def grid(self, result: ArenaResult) -> list[list[str]]:
        """Titles, then a list of texts per entry."""
        titles = ["method"]
        for column in result.columns:
            unit = self.percent if column.percent else ""
            titles += [column.title + unit, f"floor{unit}"] if column.floor else [column.title + unit]
        lines = [titles + ["trainings"] * bool(result.trainings)]
        for row in rows(result):
            left = f" ({row.seeds} of {row.asked} seeds)" if row.seeds < row.asked else ""
            lines.append([self.name(row.entry) + left])
            for found in row.columns.values():
                lines[-1].append(self.cell(found, bold=row.asked > 1))
                if found.column.floor:
                    lines[-1].append(self.empty if found.floor is None else found.column.shown(found.floor[0]))
            lines[-1] += [str(row.trainings)] * bool(result.trainings)
        return lines

    def cell(self, found: Summary, bold: bool) -> str:
        shown = found.column.shown
        if found.mean is None:
            return self.empty
        text = shown(found.mean) + (f" {self.plus_minus} {shown(found.std)}" if found.std is not None else "")
        if found.ties_best and bold:
            text = self.bold(text) if found.best else text + self.tied
        text += f" {found.column.between(found.interval)}" if found.interval else ""
        mark = self.mark(found.against.judgement) if found.against else ""
        return f"{text} {mark}" if mark else text


MARKDOWN = Markup(
    name=lambda entry: as_code(entry, cell=True),
    percent=" %",
    plus_minus="±",
    bold=lambda text: f"**{text}**",
    mark=lambda judgement: judgement.mark,
)
LATEX = Markup(
    name=lambda entry: rf"\texttt{{{in_latex(entry)}}}",
    percent=r" (\%)",
    plus_minus=r"$\pm$",
    bold=lambda text: rf"\textbf{{{text}}}",
    mark=lambda judgement: f"$^{{{judgement.latex}}}$" if judgement.latex else "",
    tied=r"$^{\approx}$",
    empty="---",
)


def markdown(result: ArenaResult) -> str:
    titles, *lines = ["| " + " | ".join(line) + " |" for line in MARKDOWN.grid(result)]
    answer = f"{in_markdown(headline(result, rows(result)))}."
    return "\n".join([titles, "|" + "---|" * (titles.count(" | ") + 1), *lines, "", answer, *legend(result)])


def latex(result: ArenaResult) -> str:
    r"""A `tabular` for the booktabs package; the legend follows as comments, for the caption."""
    titles, *lines = LATEX.grid(result)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
            *(r"\toprule", " & ".join(titles) + r" \\", r"\midrule"),
            *(" & ".join(line) + r" \\" for line in lines),
            *(r"\bottomrule", r"\end{tabular}"),
            *(f"% {plain(line)}" for line in legend(result)),
        ]
    )


def legend(result: ArenaResult, name: Named = as_code, text: Named = in_markdown) -> list[str]:
    """What the table says and what it does not; in Markdown, unless names and settings are to be written otherwise."""
    seeds, others, reference = len(result.seeds), len(result.entries) - 1, name(result.reference)
    lines = [
        f"{name(result.task)}, {result.samples:,} test images, {seeds} {'seed' if seeds == 1 else 'seeds'}"
        + (": mean ± standard deviation over seeds." if seeds > 1 else "."),
        _column_sentence(result, " (mean over seeds)" if seeds > 1 else ""),
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
            f"mean; {TIED} cannot be told from it (Holm over all {others * (others + 1) // 2} pairs, as the best one "
            "was picked afterwards)."
        )
    if any("*" in entry for entry in result.entries) and seeds > 1:
        lines.append(
            "trainings: of all runs behind a prediction. Joined runs of neighbouring seeds share members, so their "
            "deviation over seeds is smaller than that of independent ones."
        )
    lines += [_search_sentence(search, name, text) for search in result.searches]
    return lines + _found_otherwise(result)


def _column_sentence(result: ArenaResult, over: str) -> str:
    """What bins, brackets, floors and missing marks mean, of those columns that have them."""
    has: list[tuple[Callable[[Column], object], str]] = [
        (lambda c: isinstance(c.compared, ResampledBins), "{}: 15 bins."),
        (
            lambda c: c.interval,
            f"In brackets the 95 % interval that so many images leave to a run's {{}}{over}; it begins at 0 where the "
            "run cannot be told from a perfect one.",
        ),
        (lambda c: c.floor, "floor: the {} that a perfect model with the same confidences scores on average."),
        (lambda c: c not in result.compared, "No comparison in {}."),
    ]
    titles = [" and ".join(c.title for c in result.columns if of(c)) for of, _ in has]
    return " ".join(sentence.format(found) for found, (_, sentence) in zip(titles, has, strict=True) if found)


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


def per_entry(result: ArenaResult) -> str:
    """CSV, a line per entry: fractions."""
    lines = []
    for row in rows(result):
        line = {name: getattr(row, name) for name in ("entry", "method", "posthoc", "seeds", "asked", "trainings")}
        for name, found in row.columns.items():
            line |= {name: found.mean, f"{name}_std": found.std}
            line |= found.column.in_csv(found.interval, found.floor)
            for title, difference in (("against", found.against), ("best", found.against_best)):
                for part in ("value", "low", "high", "p", "adjusted"):
                    line[f"{name}_{title}_{part}"] = difference and getattr(difference, part)
                line[f"{name}_{title}"] = difference and difference.judgement
        lines.append(line)
    return _csv(lines)


def per_run(result: ArenaResult) -> str:
    """CSV, a line per entry and seed: fractions, and nothing where a run failed."""
    runs = {run.run: run for run in result.runs}
    lines = []
    for cell in result.cells:
        figures, run = cell.figures or {}, runs.get(cell.run)  # none, where a search found nothing to train
        line: dict[str, Any] = {"entry": cell.entry, "method": cell.method, "posthoc": cell.posthoc, "seed": cell.seed}
        line |= {"epoch": run.epoch + 1 if run and run.epoch is not None else None, "val_nll": run and run.val_nll}
        line |= {column.name: figures.get(column.name) for column in result.columns}
        for column in result.columns:
            floor = [figures.get(name) for name in column.floor or ()]
            line |= column.in_csv(figures.get(column.interval or ""), floor)
        line |= {"mean_confidence": figures.get("mean_confidence")}
        lines.append(line | {"seconds": run and run.seconds, "run": cell.run, "error": cell.error})
    return _csv(lines)


def _csv(lines: Iterable[dict[str, Any]]) -> str:
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
    return json.dumps(result.as_dict() | {"rows": result.rows()}, indent=1)


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
