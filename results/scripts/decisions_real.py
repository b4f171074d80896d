"""Promises of `balcal.decisions` on real data: promised against realised, also where shift breaks them.

    OMP_NUM_THREADS=1 python results/scripts/decisions_real.py DATA [--run RUN_OF_CIFAR10]

DATA is the folder with `netcal_predictions/` and `clinc150/`. Writes results/data/decisions-real.csv: thresholds and
sets are chosen on held-out samples, then used on the test samples as they are, or shifted. `alarm` says after how many
samples with labels a monitor noticed that the promise was broken.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path

import numpy as np
import torch

from balcal import Monitor, decisions
from balcal.build import as_method
from balcal.data.corruptions import corrupt
from balcal.data.dataset import ImageSet
from balcal.evaluation.judge import batches_of, calibrated_model
from balcal.evaluation.predict import predict_batches
from balcal.metrics.exact import clopper_pearson
from balcal.runs import Run

OUT = Path(__file__).parents[1] / "data" / "decisions-real.csv"
NETWORKS = {
    "wideresnet-16-4-cifar-10": ("WRN-16-4, CIFAR-10", 0.99),
    "densenet-bc-100-cifar-100": ("DenseNet, CIFAR-100", 0.95),
    "lenet-5-cifar-10": ("LeNet-5, CIFAR-10", 0.9),
}
SHIFTS = [(None, 0), ("gaussian_noise", 1), ("gaussian_noise", 3), ("fog", 3), ("fog", 5)]


def rows_of(name, held_out, tests, accuracy):
    """A row for each test set: (shift, probabilities, labels); a label of -1 is of no class, so always a mistake."""
    probs, labels = held_out
    found = decisions.threshold(probs=probs, labels=labels, accuracy=accuracy)
    sets = decisions.prediction_sets(probs=probs, labels=labels, alpha=0.1)
    conf, right = probs.max(1), probs.argmax(1) == labels
    for shift, given, known in tests:
        order = np.random.default_rng(0).permutation(len(known))
        table, truth = given[order], known[order]
        accepted = found.accept(probs=table)
        correct = table.argmax(1) == truth
        covered = sets.predict(table)[np.arange(len(truth)), truth] & (truth >= 0)
        monitor = Monitor(conf, right, promise=found, sets=sets)
        alarms = {alarm.what: alarm.at for alarm in monitor.learn(table.max(1), correct, covered)}
        hits, k = int(correct[accepted].sum()), int(accepted.sum())
        low, high = clopper_pearson(hits, k)
        yield {
            "data": name,
            "shift": shift,
            "held_out": len(labels),
            "samples": len(truth),
            "promised_accuracy": accuracy,
            "threshold": round(found.threshold, 6),
            "coverage": round(k / len(truth), 4),
            "accuracy": round(hits / k, 4),
            "accuracy_low": round(low, 4),
            "accuracy_high": round(high, 4),
            "kept": high >= accuracy,
            "alarm_accuracy": alarms.get("accepted accuracy", ""),
            "promised_sets": 0.9,
            "set_coverage": round(float(covered.mean()), 4),
            "set_size": round(float(sets.predict(table).sum(1).mean()), 2),
            "alarm_sets": alarms.get("set coverage", ""),
        }


def networks(data):
    for file, (name, accuracy) in NETWORKS.items():
        with np.load(data / "netcal_predictions" / f"{file}.npz") as stored:
            probs, labels = stored["predictions"].astype(np.float64), stored["ground_truth"].astype(int).ravel()
        probs /= probs.sum(1, keepdims=True)
        order = np.random.default_rng(0).permutation(len(labels))
        probs, labels = probs[order], labels[order]
        yield from rows_of(name, (probs[:5000], labels[:5000]), [("none", probs[5000:], labels[5000:])], accuracy)


def requests(data):
    """Requests in 150 intents, read by words and pairs of words; then as many as one in five belongs to none."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    with gzip.open(data / "clinc150" / "data_full.json.gz") as file:
        content = json.load(file)
    names = sorted({intent for _, intent in content["train"]})
    number = {name: k for k, name in enumerate(names)} | {"oos": -1}
    texts = {part: [text for text, _ in content[part]] for part in ("train", "val", "test", "oos_test")}
    labels = {part: np.array([number[intent] for _, intent in content[part]]) for part in texts}
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=30, max_iter=100)
    )
    model.fit(texts["train"], labels["train"])
    probs = {part: model.predict_proba(texts[part]) for part in ("val", "test", "oos_test")}
    both = np.concatenate([probs["test"], probs["oos_test"]]), np.concatenate([labels["test"], labels["oos_test"]])
    tests = [("none", probs["test"], labels["test"]), ("18 % out of scope", *both)]
    yield from rows_of("CLINC150, bag of words", (probs["val"], labels["val"]), tests, 0.97)


def images(path):
    """A run on CIFAR-10; its test images corrupted as those of CIFAR-10-C are."""
    run, cpu = Run.at(path), torch.device("cpu")
    model, splits = calibrated_model(run, as_method(run.recipe.method), cpu)

    def predicted(part):
        found = predict_batches(model, batches_of(run, part, cpu))
        return found.probs.double().numpy(), found.labels.numpy()

    tests = []
    for name, severity in SHIFTS:
        part = splits.test
        if name is not None:
            part = ImageSet(corrupt(part.images.cpu(), name, severity, 0), part.labels)
        tests.append((f"{name} {severity}" if name else "none", *predicted(part)))
    yield from rows_of(f"{run.recipe.method.name}, CIFAR-10", predicted(splits.calibrate), tests, 0.9)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--run", type=Path)
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    made = [*networks(given.data), *requests(given.data), *(images(given.run) if given.run else ())]
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, made[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)
    for row in made:
        print(row)


if __name__ == "__main__":
    main()
