"""A threshold and prediction sets of a million samples, beside MAPIE (and TorchCP, if it is installed).

    OMP_NUM_THREADS=1 python bench/decisions.py [--samples 1000000] [--classes 100]

TorchCP asks for torchvision, which has no CPU build; its sets do not need it. It was installed beside us by
`pip install --no-deps --target DIR torchcp torch_geometric xxhash`, and torchsort with `--no-build-isolation`.

Each is measured in a process of its own: seconds (of the clock and of the processor, which other programs do not
slow down), and the most memory beyond the table of probabilities.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

TASKS = ("ours: threshold", "ours: lac", "ours: aps", "mapie: lac", "mapie: aps", "torchcp: lac", "torchcp: aps")


def data(samples, classes):
    """Float32, made in pieces, so that making it takes no more memory than it has."""
    rng = np.random.default_rng(0)
    table, step = np.empty((samples, classes), np.float32), 20_000
    for start in range(0, samples, step):
        part = rng.standard_normal((min(step, samples - start), classes), dtype=np.float32) * 2.5
        np.exp(part, out=part)
        table[start : start + step] = part / part.sum(1, keepdims=True)
    return table, rng.integers(0, classes, samples)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepared(task):
    """Libraries imported, and the function to measure."""
    if task.startswith("ours"):
        from balcal import decisions

        if task == "ours: threshold":
            return lambda p, y: decisions.threshold(probs=p, labels=y, accuracy=0.5)
        return lambda p, y: decisions.prediction_sets(probs=p, labels=y, method=task[-3:], seed=0).predict(p, seed=1)
    if task.startswith("mapie"):
        from mapie.classification import SplitConformalClassifier
        from sklearn.base import BaseEstimator, ClassifierMixin

        class AsTheyAre(ClassifierMixin, BaseEstimator):
            def predict_proba(self, X):  # noqa: N803
                return X

            def predict(self, X):  # noqa: N803
                return X.argmax(1)

        def run(p, y):
            model = AsTheyAre()
            model.classes_ = np.arange(p.shape[1])
            sets = SplitConformalClassifier(model, conformity_score=task[-3:], prefit=True, random_state=0)
            sets.conformalize(p, y)
            more = {"include_last_label": "randomized"} if task.endswith("aps") else {}
            return sets.predict_set(p, conformity_score_params=more)

        return run
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import APS, LAC

    score = {"lac": LAC, "aps": APS}[task[-3:]]

    def run_torchcp(p, y):
        sets = SplitPredictor(score(score_type="identity"))
        sets.calculate_threshold(torch.from_numpy(p), torch.from_numpy(y), 0.1)
        return sets.predict_with_logits(torch.from_numpy(p))

    return run_torchcp


def measured(task, samples, classes):
    run = prepared(task)
    run(*data(2000, classes))
    table, labels = data(samples, classes)
    before, start, busy = peak(), time.perf_counter(), time.process_time()
    result = run(table, labels)
    seconds, cpu = time.perf_counter() - start, time.process_time() - busy
    kept = result.nbytes / 2**20 if isinstance(result, np.ndarray) else 0.0
    memory = {"MiB beyond the data": round(max(0.0, peak() - before)), "of which the sets": round(kept)}
    return {"seconds": round(seconds, 2), "CPU seconds": round(cpu, 2), **memory}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--samples", type=int, default=1_000_000)
    options.add_argument("--classes", type=int, default=100)
    options.add_argument("--only", choices=TASKS)
    given = options.parse_args()
    if given.only:
        print(json.dumps(measured(given.only, given.samples, given.classes)))
        return
    found = {}
    for task in TASKS:
        size = [f"--samples={given.samples}", f"--classes={given.classes}", f"--only={task}"]
        done = subprocess.run([sys.executable, __file__, *size], capture_output=True, text=True, check=False)
        last = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:]
        found[task] = {"failed": last or done.returncode} if done.returncode else json.loads(last[0])
        print(task, found[task], flush=True)
    from side_by_side import report

    report("decisions", "python bench/decisions.py", {"samples": given.samples, "classes": given.classes, **found})


if __name__ == "__main__":
    main()
