"""Runs and stories for pages and figures: one small arena per process, and names that want to break out of a page."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from samples import draw

from balcal import arena
from balcal.core import Predictions
from balcal.metrics.verdict import verdict
from balcal.report.content import Content, Mistake, View

PIXEL = "data:image/png;base64," + (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</title></style></svg><script>alert(3)</script>",
    "'; alert(4); //</script>",
]
HISTORY = [
    {"epoch": e, "loss": 1 / (e + 1), "gamma": 1 - 0.1 * e, "conf": 0.7 + 0.05 * e, "acc": 0.72 + 0.06 * e}
    | {
        "gap": 0.01 * e,
        "branch": "root",
        "val_acc": 0.7 + 0.02 * e,
        "val_nll": 0.9 - 0.1 * e,
        "val_nll_ts": 0.8 - 0.1 * e,
    }
    | {"val_conf": 0.71 + 0.03 * e, "val_ece": 0.05 - 0.01 * e}
    for e in range(4)
]


@cache
def small_arena():
    """(its folder of runs, its result): two methods, two seeds, two epochs of digits."""
    runs = Path(mkdtemp(prefix="balcal-arena-"))
    result = arena.run("digits", ["vanilla", "balcal"], 2, settings=["plan.epochs=2"], runs=runs, quiet=True)
    return runs, result


def balcal_run():
    runs, result = small_arena()
    return runs / result.cell("balcal", 0).run


def predictions(seed=0, n=400, k=4):
    p, y = draw(seed, n, k)
    y = np.where(np.random.default_rng(seed).random(n) < 0.6, p.argmax(1), y)
    return Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))


def shift_table(names=("fog", "snow")):
    def row(ece, **about):
        bounds = {"accuracy_interval": [0.6, 0.8], "ece_interval": [ece / 2, ece * 1.5], "floor_mean": 0.02}
        return about | {"accuracy": 0.7, "ece": ece, "nll": 1.0, "mean_confidence": 0.75, "sets": 2} | bounds

    severities = (1, 2, 3, 4, 5)
    return {
        "images": 400,
        "bins": 15,
        "from": "made from the test split, seed 0",
        "sets": [row(0.02 * s, corruption=name, severity=s) for name in names for s in severities],
        "by_severity": [row(0.02 * s, severity=s) for s in severities],
        "by_corruption": [row(0.06, corruption=name) for name in names],
    }


def outside_table(names):
    score = {"auroc": 0.9, "auroc_interval": [0.8, 0.95], "fpr95": 0.4, "aupr_in": 0.9, "aupr_out": 0.8}
    told = {"images": 50, "mean_confidence": 0.4, "mean_entropy": 1.0, "scores": {"confidence": score}}
    return {"inside": "digits", "images": 400, "sets": dict.fromkeys(names, told)}


def hostile_story():
    """Everything that a user, a data set or a file may name is hostile."""
    told, bad = predictions(), HOSTILE[1]
    view = {
        "verdict": verdict(told),
        "note": bad,
        "shift": shift_table(HOSTILE[:2]) | {"from": bad},
        "ood": outside_table(HOSTILE),
        "ood_sets": {name: predictions(n) for n, name in enumerate(HOSTILE)},
        "mistakes": [Mistake(0, 0.9, 1, PIXEL)],
    }
    return Content(
        name=HOSTILE[0],
        kicker=HOSTILE[2],
        classes=HOSTILE,
        views=[View("trained", "as trained", told, **view), View("after", HOSTILE[3], told, **view)],
        branches={name: predictions(9) for name in HOSTILE[:2]},
        history=HISTORY,
        chosen=2,
        facts={HOSTILE[0]: {HOSTILE[1]: HOSTILE[2]}},
        data={"roles": {bad: {"samples": 3, "use": bad, "digest": bad}}, "shared": {bad: 0}},
        command=HOSTILE[3],
        notes=[HOSTILE[2]],
    )
