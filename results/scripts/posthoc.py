"""Calibrators on outputs of real networks: how much each gains, by the number of calibration samples.

BALCAL_DATA=../shared/data python results/scripts/posthoc.py [METHOD ...]   what is missing of the table, or of these
... --only TEXT             on sets whose name has this text
... --runs DIR              also on test images of `vanilla` runs of the `-fast` tasks in DIR, last epoch, seed 0

Each cell fits a calibrator on n samples of a set, 20 times drawn anew (seed = number of the split), and measures it on
all other samples. It becomes a row of results/data/posthoc.csv: means over the splits, and the difference of NLL to
`ts` on the same splits with its 95 % interval (paired t). Splits overlap, so intervals are too narrow rather than too
wide.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from folders import DATA
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from balcal import Calibrator, metrics, registry
from balcal.core import BalcalError
from balcal.evaluation.judge import predictions_of
from balcal.runs import Run

TABLE = DATA / "posthoc.csv"
SPLITS = 20
SIZES = (200, 500, 1000, 2000, 5000)
FIRST = ("none", "ts", "ts-uniform", "svs", "sms", "auto")
BINARY = ("platt", "beta", "quadratic")
REST = ("ets", "isotonic", "isotonic-ovr", "histogram", "vs", "ms", "dirichlet")
NETWORKS = {
    "WRN-16-4, CIFAR-10": "wideresnet-16-4-cifar-10",
    "LeNet-5, CIFAR-10": "lenet-5-cifar-10",
    "DenseNet-BC-100, CIFAR-100": "densenet-bc-100-cifar-100",
}
TASKS = {"cifar10-fast": "CIFAR-10", "cifar100-fast": "CIFAR-100", "svhn-fast": "SVHN"}
LEFT = 300
"""fewest samples to measure on"""
COLUMNS = ("set", "n", "method", "nll", "brier", "ece", "accuracy", "seconds", "nll_minus_ts", "low", "high", "chosen")


Sets = dict[str, tuple[Any, Any]]
"""(probabilities, labels) of each"""


def sets(runs: Path | None) -> Sets:
    if not (place := os.environ.get("BALCAL_DATA")):
        sys.exit("BALCAL_DATA is not set: name the folder of netcal_predictions, cifar10_cv_probs and clinc150")
    files = Path(place)
    found = {}
    for name, stem in NETWORKS.items():
        file = np.load(files / "netcal_predictions" / f"{stem}.npz")
        found[name] = (file["predictions"].astype(np.float64), file["ground_truth"].ravel().astype(np.int64))
    probs = np.load(files / "cifar10_cv_probs" / "cifar10_test_cv_probs.npz")["probs"].astype(np.float64)
    labels = np.load(files / "cifar10" / "labels.npz")["test"].astype(np.int64)
    found["network of cleanlab, CIFAR-10"] = (probs, labels)
    return found | own(runs) | tables() | requests(files)


def own(runs: Path | None) -> Sets:
    found = {}
    for task, name in TASKS.items() if runs else ():
        run = Run(runs, registry.recipe(task, "vanilla", 0))
        if run.finished:
            _, test = predictions_of(run, registry.method("vanilla+last"), torch.device("cpu"))
            found[f"`vanilla`, {name}"] = (test.log_probs.double().exp().numpy(), test.labels.numpy())
    return found


def tables() -> Sets:
    """A small network on scikit-learn's tables: each sample is predicted by one that has not seen it."""
    found = {}
    for name, load in {"digits": load_digits, "tumours": load_breast_cancer}.items():
        x, y = load(return_X_y=True)
        model = make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=300, random_state=0))
        found[f"network on a table, {name}"] = (cross_val_predict(model, x, y, cv=5, method="predict_proba"), y)
    return found


def requests(files: Path) -> Sets:
    """CLINC150: requests in 150 intents, by words and pairs of words."""
    with gzip.open(files / "clinc150" / "data_full.json.gz") as file:
        content = json.load(file)
    names = sorted({intent for _, intent in content["train"]})
    texts = {part: [text for text, _ in content[part]] for part in ("train", "val", "test")}
    labels = {part: np.array([names.index(intent) for _, intent in content[part]]) for part in texts}
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=30, max_iter=100)
    ).fit(texts["train"], labels["train"])
    probs = model.predict_proba(texts["val"] + texts["test"])
    return {"words, CLINC150": (probs, np.concatenate([labels["val"], labels["test"]]))}


def measure(probs: Any, labels: Any, n: int, method: str) -> list[dict[str, Any]]:
    """The figures of each split; raises if the method refuses so few samples."""
    rows = []
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(labels))
        fit, rest = order[:n], order[n:]
        start = time.process_time()
        if method == "none":
            out, chosen = np.maximum(probs[rest], np.exp(-104)), ""
            out = out / out.sum(1, keepdims=True)
        else:
            calibrator = Calibrator(method).fit(probs[fit], labels[fit])
            seconds = time.process_time() - start
            out, chosen = calibrator.predict_proba(probs[rest]), calibrator.chosen
        asked: dict[str, Any] = {"probs": out, "labels": labels[rest]}
        rows.append(
            {name: getattr(metrics, name)(**asked) for name in ("nll", "brier", "ece", "accuracy")}
            | {"seconds": 0.0 if method == "none" else seconds, "chosen": chosen}
        )
    return rows


def row_of(name: str, n: int, method: str, rows: list[dict[str, Any]], plain: list[float]) -> dict[str, Any]:
    means = {key: np.mean([row[key] for row in rows]) for key in ("nll", "brier", "ece", "accuracy", "seconds")}
    away = np.array([row["nll"] for row in rows]) - np.array(plain)
    half = stats.t.ppf(0.975, SPLITS - 1) * away.std(ddof=1) / np.sqrt(SPLITS)
    chosen = [row["chosen"] for row in rows]
    counts = " ".join(f"{each}:{chosen.count(each)}" for each in dict.fromkeys(chosen)) if method == "auto" else ""
    shown = {key: f"{value:.5g}" for key, value in means.items()}
    interval = {"nll_minus_ts": away.mean(), "low": away.mean() - half, "high": away.mean() + half}
    return {
        "set": name,
        "n": n,
        "method": method,
        **shown,
        **{key: f"{value:.4g}" for key, value in interval.items()},
        "chosen": counts,
    }


def tried(method: str, n: int, samples: int, classes: int) -> bool:
    return n <= samples - LEFT and (classes == 2 or method not in BINARY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="all, if left out")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--only", default="", help="sets whose name has this text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = {(r["set"], int(r["n"]), r["method"]) for r in csv.DictReader(TABLE.open())} if TABLE.exists() else set()
    found = {name: table for name, table in sets(given.runs).items() if given.only in name}
    for method in given.methods or [*FIRST, *BINARY, *REST]:
        for name, (probs, labels) in found.items():
            for n in SIZES:
                if (name, n, method) in done or not tried(method, n, *probs.shape):
                    continue
                try:
                    rows = measure(probs, labels, n, method)
                    row = row_of(name, n, method, rows, [r["nll"] for r in measure(probs, labels, n, "ts")])
                except BalcalError as error:
                    row = {"set": name, "n": n, "method": method, "chosen": str(error)}
                with TABLE.open("a", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    if not file.tell():
                        writer.writeheader()
                    writer.writerow(row)
                print(row, flush=True)


if __name__ == "__main__":
    main()
