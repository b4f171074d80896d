"""How often does a 95 % interval of ECE hold the true value? Simulated models whose calibration is known.

python results/scripts/interval_coverage.py        (about three minutes on two cores)
"""

from __future__ import annotations

import csv
from collections.abc import Callable

import numpy as np
import torch
from folders import DATA
from joblib import Parallel, delayed

from balcal.metrics import bootstrap as resample
from balcal.metrics.bins import bin_table
from balcal.metrics.inputs import TopLabels

TRIALS = 400
MODELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "perfect": lambda c: c,
    "over-confident by 1 %": lambda c: c - 0.01,
    "over-confident by 5 %": lambda c: (c - 0.05).clip(0, 1),
    "odds 1.5 times too high": lambda c: c / (c + 1.5 * (1 - c)),
    "both ways": lambda c: (c + 0.04 * np.sin(6 * c)).clip(0, 1),
}
SHAPES = {"mostly sure": (6.0, 1.0), "often in doubt": (2.0, 1.5)}


def cover(model: str, shape: str, n: int) -> dict[str, object]:
    accuracy, rng = MODELS[model], np.random.default_rng(0)

    def confidences(count: int) -> np.ndarray:
        return 0.1 + 0.9 * rng.beta(*SHAPES[shape], count)

    many = confidences(4_000_000)
    gaps = np.bincount(np.ceil(many * 15).astype(int) - 1, many - accuracy(many), minlength=15)
    truth = np.abs(gaps).sum() / len(many)
    held = {"percentile": 0, "ours": 0, "below floor": 0}
    for trial in range(TRIALS):
        conf = confidences(n)
        top = TopLabels(torch.from_numpy(conf), torch.from_numpy(rng.random(n) < accuracy(conf)))
        ece = bin_table(top, 15).ece()
        draws = resample.Resamples([top], {}, resamples=400, seed=trial).ece[0]
        floor = resample.noise_floor(top, resamples=800, seed=trial)
        plain, ours = resample.percentile(ece, draws), resample.ece_interval(ece, draws, floor)
        held["percentile"] += plain.low <= truth <= plain.high
        held["ours"] += ours.low <= truth <= ours.high
        held["below floor"] += ece <= np.quantile(floor, 0.975)
    shares = {name: round(float(count) / TRIALS, 3) for name, count in held.items()}
    return {
        "model": model,
        "confidences": shape,
        "n": n,
        "true ECE": round(float(truth), 4),
        "trials": TRIALS,
        **shares,
    }


jobs = [delayed(cover)(model, shape, n) for n in (1000, 10_000) for shape in SHAPES for model in MODELS]
rows = Parallel(n_jobs=2)(jobs)
with open(DATA / "interval-coverage.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
for row in rows:
    print(row)
