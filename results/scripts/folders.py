"""Where the scripts write: figures of runs to results/data, pictures and pages to docs."""

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
DOCS = Path(__file__).parents[2] / "docs"
