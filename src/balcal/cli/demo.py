"""`balcal demo`: train three methods on the embedded images, compare them, draw a reliability diagram."""

from __future__ import annotations

import sys
from pathlib import Path

from balcal import registry
from balcal.cli.text import render_table, say
from balcal.core import Predictions
from balcal.evaluation.judge import calibrated_predictions
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.predictions import reliability_diagram
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.training.fit import train_recipe

SHOWN = ("vanilla", "vanilla+ts", "balcal", "balcal-auto")


def run_demo(out: Path, seed: int = 0, device: str | None = None, task: str = "fashion") -> None:
    """Train what is missing, print the comparison, save the diagram."""
    predictions: dict[str, Predictions] = {}
    for name in SHOWN:
        recipe = registry.recipe(task, name, seed)
        train_recipe(recipe, out, device)
        _, predictions[name], _ = calibrated_predictions(Run(out, recipe), recipe.method, pick_device(device))
    verdicts = {name: verdict(each) for name, each in predictions.items()}
    say(render_comparison(verdicts, f"{task}, {len(predictions['vanilla'])} test images, seed {seed}"))
    picture = out / task / f"reliability-seed{seed}.png"
    reliability_diagram(predictions, title=f"{task}: what confidence is worth").save(picture)
    say(f"reliability diagram: {picture}", file=sys.stderr)


WORDS = {
    "perfect": "like perfect",
    "few": "too few samples",
    "over": "over-confident",
    "under": "under-confident",
    "mixed": "over and under",
}


def render_comparison(verdicts: dict[str, Verdict], title: str) -> str:
    """Percent, except NLL. `perfect` is the highest ECE that a perfect model with these confidences may score."""
    rows = [
        [
            name,
            f"{v.accuracy:.2%}",
            f"{v.ece:.2%}",
            " to ".join(f"{bound * 100:.1f}" for bound in v.ece_interval),
            f"up to {v.floor_high * 100:.1f}",
            f"{v.nll:.4f}",
            WORDS[v.kind],
        ]
        for name, v in verdicts.items()
    ]
    return render_table(["method", "accuracy", "ECE", "95 %", "perfect", "NLL", "verdict"], rows, title)
