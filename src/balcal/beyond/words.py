"""Tables beyond the test split, as text of at most 120 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FIGURES = ("auroc", "fpr95", "aupr_in", "aupr_out")
Told = dict[str, Any]


def in_words(told: dict[str, Told]) -> str:
    """One block of text for each thing that was asked."""
    ways = {"shift": shift_in_words, "ood": outside_in_words, "human": human_in_words}
    return "\n\n".join(ways[name](figures) for name, figures in told.items())


def shift_in_words(told: Told) -> str:
    severities = [row["severity"] for row in told["by_severity"]]
    ece = {(row["corruption"], row["severity"]): row["ece"] for row in told["sets"]}
    rows = [
        [name, *(_percent(ece[name, s]) for s in severities), _mean(by, "ece"), _mean(by, "accuracy")]
        for by in told["by_corruption"]
        for name in (by["corruption"],)
    ]
    for label, figure, ends in (("mean ECE", "ece", (0, 1)), ("mean accuracy", "accuracy", ())):
        means = {"ece": "", "accuracy": ""} | {figure: _mean(told["mean"], figure)}
        rows.append([label, *(_percent(row[figure]) for row in told["by_severity"]), *means.values()])
        for end in ends:
            bounds = [_percent(row["ece_interval"][end]) for row in told["by_severity"]]
            rows.append([("  from", "  to")[end], *bounds, "", ""])
    pooled = told["pooled"]
    return "\n".join(
        [
            f"Shift: {told['images']:,} images, {told['from']}; ECE with {told['bins']} bins.",
            _table(["ECE %", *map(str, severities), "mean ECE", "mean accuracy"], rows),
            "The mean of a row is over severities, that of a column over corruptions; intervals resample the images,",
            f"the same ones in every set. All {pooled['samples']:,} predictions in one: {_percent(pooled['ece'])} %.",
        ]
    )


def outside_in_words(told: Told) -> str:
    scores = list(told["mean"]["scores"])
    rows = [[told["inside"], "inside", *[""] * 4, _percent(told["mean_confidence"]), f"{told['mean_entropy']:.3f}"]]
    for name, one in told["sets"].items():
        for score in scores:
            figures = one["scores"][score]
            about = [_percent(one["mean_confidence"]), f"{one['mean_entropy']:.3f}"] if score == scores[0] else ["", ""]
            label = name if score == scores[0] else ""
            rows.append([label, score, *(_mean(figures, f) for f in FIGURES), *about])
    for number, score in enumerate(scores):
        mean = told["mean"]["scores"][score]
        label = f"mean of {len(told['sets'])}" if number == 0 else ""
        rows.append([label, score, *(_percent(mean[f]) for f in FIGURES), "", ""])
    titles = ["set", "score", "AUROC %", "FPR95 %", "AUPR in %", "AUPR out %", "conf. %", "entropy"]
    missing = "".join(f"\nLeft out, and not in the mean: {why}." for why in told["missing"].values())
    title = f"Outside sets, each against {told['images']:,} test images of {told['inside']}"
    return f"{title}\n{_table(titles, rows)}{missing}"


def human_in_words(told: Told) -> str:
    people = told["people"]
    return (
        f"People, who were asked about the same {told['images']:,} images: cross-entropy to their answers "
        f"{told['cross_entropy']:.4f} (theirs to themselves {people['entropy']:.4f}), KL {told['kl']:.4f}.\n"
        f"Mean confidence {_percent(told['mean_confidence'])} %; "
        f"on average {_percent(people['mean_share_of_first_choice'])} % of them agree on their first choice."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _mean(row: Told, figure: str) -> str:
    low, high = row[f"{figure}_interval"]
    return f"{_percent(row[figure])} [{100 * low:.1f}, {100 * high:.1f}]"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left the names, right the numbers."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    words = {i for i in range(len(titles)) if any(row[i][:1].isalpha() for row in rows)}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [titles, *rows]
    )
