"""A report of 50,000 predictions of 100 classes, as trained and after temperature scaling: seconds and bytes.

python bench/report.py
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from balcal import registry
from balcal.core import Outputs, Predictions
from balcal.metrics.verdict import verdict
from balcal.report.content import View, content_of_predictions
from balcal.report.page import run_page, write_page

N, K = 50_000, 100


def main() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(N, K, generator=rng)
    labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=rng)[:, 0]
    predictions = Predictions(logits.log_softmax(1), labels)
    wall, cpu = time.perf_counter(), time.process_time()
    content = content_of_predictions(predictions, "bench", [f"class number {k}" for k in range(K)])
    scaled = registry.method("ts").posthoc.fit(Outputs.of(predictions.log_probs), predictions.labels)
    after = Predictions(scaled(Outputs.of(predictions.log_probs)).detach(), labels)
    content = replace(
        content, views=[*content.views, View("after", "after temperature scaling", after, verdict(after))]
    )
    with TemporaryDirectory() as folder:
        size = write_page(run_page(content), Path(folder) / "report.html")
    figures = {
        "predictions": [N, K],
        "views": 2,
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "bytes": size,
    }
    (Path(__file__).parent / "results" / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(figures)


if __name__ == "__main__":
    main()
