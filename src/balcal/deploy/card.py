"""The calibration card of an exported model: its figures, the data they are from, and where they hold."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

from balcal.core import Predictions
from balcal.decisions import Threshold
from balcal.deploy.monitor import LEAST, Monitor
from balcal.evaluation.judge import RunFigures
from balcal.runs import Run
from balcal.runtime.names import as_code
from balcal.runtime.names import in_markdown as text
from balcal.runtime.provenance import describe


def card_of(run: Run, figures: RunFigures, test: Predictions, shape: tuple[int, ...], classes: Any) -> dict[str, Any]:
    """Plain data, from the figures of a run on its test role."""
    from balcal import __version__

    confidence = test.log_probs.amax(1).exp().double().clamp(max=1.0)
    low, high = (round(float(confidence.quantile(q)), 4) for q in (0.01, 0.99))
    recipe = run.recipe
    return {
        "what": f"{figures['task']} {figures['method']} seed {figures['seed']}",
        "balcal": __version__,
        "date": _now().isoformat(timespec="seconds"),
        "classes": list(classes),
        "input": {
            "name": "images",
            "type": "uint8",
            "shape": ["N", *shape],
            "meaning": "raw pixels, 0 to 255, RGB or grey",
        },
        "output": {
            "probs": "(N, K) float32",
            "log_probs": "(N, K) float32, their logarithms",
            "accept": "(N,) bool, whether the confidence reaches the promised threshold",
            "set": "(N, K) bool, the classes in the prediction set",
        },
        "calibration": {k: v for k, v in figures["test"].items() if k not in ("resamples", "seed")},
        "specification": figures["specification"]["ece"],
        "posthoc": figures["posthoc"],
        "fusion": figures["fusion"],
        "dials": figures["dials"],
        "valid": {
            "for": "images drawn as those of the test role were; shifted or foreign images are not covered",
            "confidences": [low, high],
            "meaning": "98 % of the test images had a confidence in this range: outside of it there is little evidence",
        },
        "data": figures["data"],
        "members": figures.get("members", []),
        "names": {
            "task": recipe.task.name,
            "method": recipe.method.name,
            "seed": recipe.seed,
            "overrides": list(recipe.overrides),
            "posthoc": figures["method"].removeprefix(recipe.method.name).strip("+") or None,
        },
        "recipe": describe(recipe),
        "monitor": reference(test),
        "run": recipe.address(),
    }


def _decisions(found: dict[str, Any] | None) -> list[str]:
    """What `accept` and `set` promise, and how they did on the test role."""
    if found is None:
        return []
    limit, checked, sets = found["threshold"], found["checked"], found["sets_checked"]
    if limit["threshold"] is None:
        needed = "" if limit["needed"] is None else f": it would take about {limit['needed']:,} held-out samples"
        first = f"nothing, because {limit['target']:.1%} accuracy cannot be promised{needed}."
    else:
        first = (
            f"confidence from {limit['threshold']:.6g} on, which promises an accuracy of {limit['target']:.1%} with "
            f"probability {limit['confidence']:g}; on the test role {_held(checked)}."
        )
    second = (
        f"every class ({'; '.join(found['notes'])})."
        if sets is None
        else f"classes that hold the label in {sets['promised']:.1%}; on the test role in {sets['coverage']:.1%}, "
        f"{sets['mean_size']:.2f} classes on average."
    )
    return [f"- **Accepts** {first}", f"- **Set** of {second}", *(f"- {remark}" for remark in found["remarks"])]


def _held(checked: dict[str, Any]) -> str:
    if checked["accuracy"] is None:
        return "none is accepted"
    low, high = checked["accuracy_interval"]
    return (
        f"{checked['coverage']:.1%} are accepted and {checked['accuracy']:.2%} [{low:.2%}, {high:.2%}] of these right"
    )


def _now() -> datetime.datetime:
    """SOURCE_DATE_EPOCH, if set, makes two exports of one run the same file (reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.datetime.fromtimestamp(int(epoch) if epoch.isdigit() else time.time(), datetime.UTC)


def reference(test: Predictions, promise: Threshold | None = None) -> dict[str, Any] | None:
    """The state of a new monitor, for `balcal.Monitor.of`; None if there are too few samples."""
    top = test.log_probs.max(1)
    confidence = top.values.exp().double().clamp(max=1.0)
    right = (top.indices == test.labels).numpy()
    return Monitor(confidence.numpy(), right, promise=promise).as_dict() if len(test) >= LEAST else None


def _after(posthoc: dict[str, Any]) -> str:
    """The post-hoc method; of `auto` also what it chose."""
    name = posthoc["name"] or "nothing"
    return f"{name} ({posthoc['chosen']})" if "chosen" in posthoc else name


def render_card(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    figures = card["calibration"]
    nll, low, high = ("infinite" if x is None else f"{x:.4f}" for x in (figures["nll"], *figures["nll_interval"]))

    def percent(value: float) -> str:
        return f"{value * 100:.2f} %"

    def bounds(name: str) -> str:
        low, high = figures[f"{name}_interval"]
        return f"[{percent(low)}, {percent(high)}]"

    lines = [
        f"# {text(card['what'])}",
        "",
        f"Exported {card['date']} by balcal {card['balcal']} from {as_code(card['run'])}.",
        "",
        *([f"- **Mean of** {', '.join(map(as_code, card['members']))}"] if card.get("members") else []),
        f"- **Input** `{card['input']['name']}`: {card['input']['type']} {tuple(card['input']['shape'])}, "
        f"{card['input']['meaning']}. Normalisation is inside.",
        f"- **Output** `probs` (N, {len(card['classes'])}), calibrated; `log_probs`, their logarithms.",
        *_decisions(card.get("decisions")),
        f"- **Classes** {', '.join(map(text, card['classes']))}",
        f"- **Fusion** {card['fusion']}; **after training** {text(_after(card['posthoc']))}; "
        f"**gamma or beta** {card['dials'] or 'none'}",
        "",
        "| on the test role | | 95 % interval |",
        "|---|---|---|",
        f"| samples | {figures['samples']:,} | |",
        f"| accuracy | {percent(figures['accuracy'])} | {bounds('accuracy')} |",
        f"| mean confidence | {percent(figures['mean_confidence'])} | |",
        f"| ECE, {figures['bins']} bins | {percent(figures['ece'])} | {bounds('ece')} |",
        f"| ECE of a perfect model | {percent(figures['floor_mean'])} | up to {percent(figures['floor_high'])} |",
        f"| NLL | {nll} | [{low}, {high}] |",
        "",
        f"**Where this holds.** For {card['valid']['for']}. Confidences from {card['valid']['confidences'][0]} to "
        f"{card['valid']['confidences'][1]}: {card['valid']['meaning']}.",
        "",
        "| role | samples | digest | use |",
        "|---|---|---|---|",
    ]
    roles = card["data"]["roles"] if card["data"] else {}
    lines += [
        f"| {text(name)} | {r['samples']:,} | {as_code(r['digest'], cell=True)} | {text(r['use'])} |"
        for name, r in roles.items()
    ]
    checked = card.get("verified")
    if checked:
        sizes = ", ".join(map(str, checked["batch_sizes"]))
        lines += [
            "",
            f"Verified against the live model on {checked['images']:,} test images, in batches of {sizes}: no "
            f"probability differs by more than {checked['largest_difference']:.1e}.",
        ]
    return "\n".join(lines) + "\n"
