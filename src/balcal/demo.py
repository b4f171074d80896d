"""The first three minutes: train three methods on the embedded images, compare them, draw what came out."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from balcal import registry
from balcal.core import Predictions
from balcal.devices import pick_device
from balcal.evaluate import calibrated_predictions
from balcal.metrics.verdict import Verdict, verdict
from balcal.report.reliability import reliability_diagram
from balcal.runs import Run
from balcal.sessions import train_recipe

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
    reliability_diagram(told, picture, f"{task}: what confidence is worth")
    print(f"reliability diagram: {picture}", file=sys.stderr)


def comparison(verdicts: dict[str, Verdict], title: str) -> Table:
    """Percent, except NLL."""
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for name in ("accuracy", "ECE (15 bins)", "NLL", "confidence"):
        table.add_column(name, justify="right")
    for name, v in verdicts.items():
        table.add_row(name, f"{v.accuracy:.2%}", f"{v.ece:.2%}", f"{v.nll:.4f}", f"{v.mean_confidence:.2%}")
    return table
