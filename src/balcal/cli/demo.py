"""The first three minutes: train three methods on the embedded images, compare them, draw what came out."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from balcal import registry
from balcal.core import Predictions
from balcal.evaluation.judge import calibrated_predictions
from balcal.metrics.verdict import Verdict, verdict
from balcal.plots.predictions import reliability_diagram
from balcal.runs import Run
from balcal.runtime.devices import pick_device
from balcal.runtime.names import plain
from balcal.training.fit import train_recipe

SHOWN = ("vanilla", "vanilla+ts", "balcal", "balcal-auto")


def run_demo(out: Path, seed: int = 0, device: str | None = None, task: str = "fashion") -> None:
    told: dict[str, Predictions] = {}
    for name in SHOWN:
        recipe = registry.recipe(task, name, seed)
        train_recipe(recipe, out, device)
        _, told[name], _ = calibrated_predictions(Run(out, recipe), recipe.method, pick_device(device))
    verdicts = {name: verdict(predictions) for name, predictions in told.items()}
    Console().print(comparison(verdicts, f"{task}, {len(told['vanilla'])} test images, seed {seed}"))
    picture = out / task / f"reliability-seed{seed}.png"
    reliability_diagram(told, title=f"{task}: what confidence is worth").save(picture)
    print(f"reliability diagram: {plain(picture)}", file=sys.stderr)


WORDS = {"perfect": "like perfect", "over": "over-confident", "under": "under-confident", "mixed": "over and under"}


def comparison(verdicts: dict[str, Verdict], title: str) -> Table:
    """Percent, except NLL. `perfect` is what a perfect model with these confidences may score."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    for name in ("accuracy", "ECE", "95 %", "perfect", "NLL"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name, v in verdicts.items():
        bounds = " to ".join(f"{x * 100:.1f}" for x in v.ece_interval)
        figures = (f"{v.accuracy:.2%}", f"{v.ece:.2%}", bounds, f"up to {v.floor_high * 100:.1f}", f"{v.nll:.4f}")
        table.add_row(name, *figures, WORDS[v.kind])
    return table
