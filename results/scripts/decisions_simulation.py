"""Promises of `balcal.decisions` against a known truth: how often they are broken, and what they cost.

    OMP_NUM_THREADS=1 python results/scripts/decisions_simulation.py [--draws 2000] [--only threshold]

Writes results/data/decisions-KIND.csv, a row for each setting. `loss` is the coverage of the oracle threshold less that
of ours, in points, on average; `unavoidable` is what a single exact test costs that knows where to look.
"""

import argparse
import csv
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from balcal import decisions, metrics
from balcal.metrics.exact import at_least

DATA = Path(__file__).parents[1] / "data"


def two_kinds(classes):
    """Confidences of a trained network: most samples are easy, the others spread out. Quantiles, so no noise."""
    share = (np.arange(200_000) + 0.5) / 200_000
    easy = 1 - 0.02 * stats.beta.ppf(share, 0.5, 3)
    hard = 1 / classes + (1 - 1 / classes) * stats.beta.ppf(share, 2, 2)
    return np.sort(np.concatenate([np.repeat(easy, 7), np.repeat(hard, 3)]))[::-1][::10]


def one_kind(classes):
    """Confidences that spread smoothly: the threshold lies where accuracy hardly changes, the hardest case."""
    share = (np.arange(200_000) + 0.5) / 200_000
    return (1 / classes + (1 - 1 / classes) * stats.beta.ppf(share, 1.5, 0.6))[::-1]


LAWS = {"two kinds": two_kinds, "one kind": one_kind}
CLAIMS = {
    "calibrated": lambda p: p,
    "over-confident": lambda p: 1 - (1 - p) ** 2,
    "under-confident": lambda p: p**1.5,
}
"""what the model says where it is right with probability p"""


def table_of(conf, classes):
    """Rows with this confidence in class 0 and the rest spread over the others; labels are 0 where it is right."""
    table = np.repeat(((1 - conf) / (classes - 1))[:, None], classes, axis=1)
    table[:, 0] = conf
    return table


def threshold_row(law, claim, classes, n, target, draws, rng):
    truth = LAWS[law](classes)
    said = np.maximum(CLAIMS[claim](truth), 1 / classes + 1e-6)
    accuracy = np.cumsum(truth) / np.arange(1, len(truth) + 1)
    oracle = np.flatnonzero(accuracy >= target)[-1] + 1
    sizes = np.unique((np.arange(1, 2001) / 2000 * n).round().astype(int).clip(1))
    at = (sizes / n * len(truth)).astype(int).clip(1) - 1
    passed = np.flatnonzero(at_least(np.floor(sizes * accuracy[at]), sizes, target) <= 0.05)
    single = sizes[passed[-1]] / n if len(passed) else 0.0
    broken, coverage, none, inside, held = 0, [], 0, 0, 0
    for _ in range(draws):
        pick = rng.integers(0, len(truth), n)
        right = rng.random(n) < truth[pick]
        found = decisions.threshold(probs=table_of(said[pick], classes), labels=(~right).astype(int), accuracy=target)
        accepted = 0 if found.threshold is None else int((said >= found.threshold).sum())
        coverage.append(accepted / len(truth))
        none += not accepted
        broken += bool(accepted) and bool(accuracy[accepted - 1] < target)
        inside += found.coverage_interval[0] <= coverage[-1] <= found.coverage_interval[1]
        held += not accepted or found.accuracy_interval[0] <= accuracy[accepted - 1] <= found.accuracy_interval[1]
    return {
        "law": law,
        "model": claim,
        "classes": classes,
        "n": n,
        "target": target,
        "draws": draws,
        "broken": broken / draws,
        "none": none / draws,
        "oracle": round(float(oracle / len(truth)), 4),
        "coverage": round(float(np.mean(coverage)), 4),
        "loss": round(100 * float(oracle / len(truth) - np.mean(coverage)), 2),
        "unavoidable": round(100 * float(oracle / len(truth) - single), 2),
        "coverage_interval": inside / draws,
        "accuracy_interval": float(held / draws),
    }


def threshold_rows(draws, rng):
    for law, target in (("two kinds", 0.95), ("two kinds", 0.99), ("one kind", 0.95)):
        for claim in CLAIMS:
            for classes in (2, 10, 100):
                for n in (100, 500, 2000, 10_000):
                    yield threshold_row(law, claim, classes, n, target, draws, rng)


def drawn(rng, n, classes, sharp):
    """Probabilities, and labels that are drawn from them (sharp 1) or from sharper ones."""
    logits = rng.normal(0, 2.5, (n, classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = probs**sharp / (probs**sharp).sum(1, keepdims=True)
    labels = (truth.cumsum(1) < rng.random(n)[:, None]).sum(1).clip(max=classes - 1)
    return probs, labels


def set_rows(draws, rng):
    settings = [(k, n) for k in (2, 10, 100) for n in (100, 1000)] + [(10, 10_000)]
    for classes, n in settings:
        for model, sharp in (("calibrated", 1.0), ("miscalibrated", 0.5)):
            new, held, outside = 500, {}, {}
            for seed in range(draws):
                probs, labels = drawn(rng, n + new, classes, sharp)
                for method in ("lac", "aps", "raps"):
                    sets = decisions.prediction_sets(probs=probs[:n], labels=labels[:n], method=method, seed=seed)
                    found = sets.predict(probs[n:], seed=draws + seed)[np.arange(new), labels[n:]].mean()
                    low, high = _band(n, new)
                    outside[method] = outside.get(method, 0) + (not low <= found <= high)
                    held.setdefault(method, []).append(found)
            for method, shares in held.items():
                yield {
                    "method": method,
                    "model": model,
                    "classes": classes,
                    "n": n,
                    "draws": draws,
                    "promised": 0.9,
                    "coverage": round(float(np.mean(shares)), 5),
                    "standard_error": round(float(np.std(shares) / np.sqrt(draws)), 5),
                    "outside_band": float(outside[method] / draws),
                }


@cache
def _band(n, new):
    """The middle 95 % of the coverage of new samples: beta-binomial, whatever the model is."""
    rank = int(np.ceil((n + 1) * 0.9 - 1e-9))
    return tuple(stats.betabinom.ppf((0.025, 0.975), new, rank, n + 1 - rank) / new)


def group_rows(draws, rng):
    for classes in (2, 10, 100):
        for n in (100, 1000, 10_000):
            for groups in (2, 10):
                blamed = 0
                for _ in range(draws):
                    conf = 1 / classes + (1 - 1 / classes) * rng.beta(4, 0.8, n)
                    right = rng.random(n) < conf
                    table = table_of(np.maximum(conf, 1 / classes + 1e-9), classes)
                    names = np.arange(n) % groups
                    top = metrics.inputs.read(table, None, (~right).astype(int)).top()
                    blamed += bool(metrics.groups.group_verdict(top, names).failing)
                yield {"classes": classes, "n": n, "groups": groups, "draws": draws, "blamed": blamed / draws}


def prior_rows(draws, rng):
    for classes, n, times in ((2, 500, 1), (2, 5000, 1), (10, 500, 1), (10, 5000, 1), (100, 5000, 20)):
        for method in ("em", "bbse") if classes < 100 else ("em",):
            spread = np.eye(classes) * (2.0 if classes == 2 else 3.0)
            holds, error = [], []
            for seed in range(draws // times):
                new = rng.dirichlet(np.full(classes, 3.0))
                labels = rng.choice(classes, n, p=new)
                probs = _gaussian(rng, labels, spread)
                old = np.full(classes, 1 / classes)
                held_labels = rng.integers(0, classes, n)
                held = {"held_out_probs": _gaussian(rng, held_labels, spread), "held_out_labels": held_labels}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # not identifiable: counted below
                    found = decisions.adjust_priors(
                        probs=probs, train_priors=old, method=method, seed=seed, **(held if method == "bbse" else {})
                    )
                holds.append(((found.interval[:, 0] <= new) & (new <= found.interval[:, 1])).mean())
                error.append(np.abs(found.priors - new).max())
            yield {
                "method": method,
                "classes": classes,
                "n": n,
                "draws": draws // times,
                "inside_interval": round(float(np.mean(holds)), 4),
                "largest_error": round(float(np.mean(error)), 4),
            }


def _gaussian(rng, labels, centres):
    """Exact probabilities, for equal frequencies, of classes that are Gaussian around their centres."""
    x = centres[labels] + rng.standard_normal((len(labels), centres.shape[1]))
    logits = x @ centres.T - (centres**2).sum(1) / 2
    logits -= logits.max(1, keepdims=True)
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


KINDS = {"threshold": threshold_rows, "sets": set_rows, "groups": group_rows, "priors": prior_rows}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=2000)
    options.add_argument("--only", choices=KINDS)
    options.add_argument("--out", type=Path, default=DATA)
    given = options.parse_args()
    for kind, rows in KINDS.items():
        if given.only in (None, kind):
            made = []
            for row in rows(given.draws, np.random.default_rng(0)):
                print(row, flush=True)
                made.append(row)
            with (given.out / f"decisions-{kind}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, made[0], lineterminator="\n")
                writer.writeheader()
                writer.writerows(made)


if __name__ == "__main__":
    main()
