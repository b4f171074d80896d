"""Tables: our scikit-learn estimator against scikit-learn's own, calibrated by its temperature; on four real sets.

    OMP_NUM_THREADS=1 python results/scripts/tabular.py          # a few minutes; writes results/data/tabular.csv
    python results/scripts/tabular.py --table                    # prints the tables of docs/tables.md from it

Eight splits of each set, 30 % of the rows for the test, stratified; all models see the same rows. Nothing is tuned.
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import balcal

DATA = Path(__file__).parents[1] / "data" / "tabular.csv"
SETS = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
SPLITS = 8
OURS = ("vanilla", "vanilla+ts", "balcal-auto")
FIELDS = ("set", "split", "model", "rows", "test_rows", "accuracy", "nll", "ece", "seconds")


def ours(method: str) -> Callable[[int], Any]:
    return lambda split: balcal.BalCALClassifier(method=method, random_state=split)


def linear(split: int) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def mlp(split: int) -> Any:
    return make_pipeline(StandardScaler(), MLPClassifier((64, 64), max_iter=200, random_state=split))


def with_temperature(make: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda split: CalibratedClassifierCV(make(split), method="temperature", cv=5)


MODELS: dict[str, Callable[[int], Any]] = {
    **{f"balcal {method}": ours(method) for method in OURS},
    "LogisticRegression": linear,
    "LogisticRegression, temperature": with_temperature(linear),
    "MLPClassifier": mlp,
    "MLPClassifier, temperature": with_temperature(mlp),
}


def measured() -> Iterator[dict[str, Any]]:
    for name, load in SETS.items():
        x, y = load(return_X_y=True)
        for split in range(SPLITS):
            parts = train_test_split(x, y, test_size=0.3, stratify=y, random_state=split)
            for model, make in MODELS.items():
                yield {"set": name, "split": split, "model": model} | score(make(split), *parts)


def score(model: Any, learn: Any, test: Any, labels: Any, truth: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an MLP of 200 epochs, as scikit-learn has it
        probs = model.fit(learn, labels).predict_proba(test)
    found = {
        metric: getattr(balcal.metrics, metric)(probs=probs, labels=truth) for metric in ("accuracy", "nll", "ece")
    }
    return {"rows": len(learn), "test_rows": len(test), **found, "seconds": time.perf_counter() - begun}


def table() -> str:
    """NLL of each model, mean and standard deviation over the splits; the best mean is bold; then accuracy and ECE."""
    with open(DATA, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    models, sets = list(dict.fromkeys(row["model"] for row in rows)), list(dict.fromkeys(row["set"] for row in rows))
    lines = []
    for metric, better, scale, digits in (("nll", min, 1, 3), ("accuracy", max, 100, 1), ("ece", min, 100, 1)):
        title = {"nll": "NLL", "accuracy": "accuracy %", "ece": "ECE %"}[metric]
        lines += [f"| {title} | {' | '.join(sets)} |", "|---|" + "---|" * len(sets)]
        means = {
            (m, s): [scale * float(r[metric]) for r in rows if (r["model"], r["set"]) == (m, s)]
            for m in models
            for s in sets
        }
        for model in models:
            cells = []
            for name in sets:
                values = means[model, name]
                text = f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
                best = better(mean(means[m, name]) for m in models)
                cells.append(f"**{text}**" if mean(values) == best else text)
            lines.append(f"| {model.replace('balcal ', 'ours, ')} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    if "--table" in sys.argv:
        print(table())
        return
    with open(DATA, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for row in measured():
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float | np.floating) else v for k, v in row.items()})
            file.flush()


if __name__ == "__main__":
    main()
