"""HTML pages of a run, an arena or plain predictions: one file that needs no network and no other file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from balcal.core import BalcalError


def write_report(source: str | Path, out: str | Path | None = None, posthoc: str = "ts") -> dict[str, Any]:
    """Write the page of a run's folder, of an arena's FILE.json or of FILE.npz with predictions; says where it is."""
    from balcal.arena.result import ArenaResult
    from balcal.evaluation.prediction_files import read_arrays
    from balcal.report.arena import arena_page
    from balcal.report.content import content_of_predictions, content_of_run
    from balcal.report.page import run_page, write_page
    from balcal.runs import Run

    path = Path(source)
    if os.path.isdir(path):
        page, place = run_page(content_of_run(Run.at(path), posthoc)), path / "report.html"
    elif path.suffix == ".json":
        page, place = arena_page(ArenaResult.load(path)), path.with_suffix(".html")
    elif os.path.exists(path):
        page = run_page(content_of_predictions(read_arrays(str(path)).predictions(), path.name))
        place = path.with_suffix(".html")
    else:
        raise BalcalError(f"{path} is neither a run's folder nor a file: name one that `balcal train` printed")
    place = Path(out) if out else place
    return {"report": str(place), "bytes": write_page(page, place)}
