"""`tta` on a run: the mean over views, flipped only if training flipped, and a temperature after it."""

import json

import numpy as np
import pytest
import torch
from runs_helper import trained

import balcal
from balcal.registry import recipe

SMALL = ["plan.epochs=1"]


def test_flips_follow_the_augmentation_and_predictions_are_kept_apart(tmp_path):
    plain = trained("vanilla+tta+ts", tmp_path, settings=SMALL)
    flips = trained("vanilla+tta", tmp_path, settings=[*SMALL, "task.augment=flip"])
    asked = trained("vanilla+tta", tmp_path, settings=[*SMALL, "views.flip=true", "views.shift=2", "plan.lr=0.01"])
    views = {}
    for run, count in ((plain, 5), (flips, 10), (asked, 10)):
        with np.load(run / "predictions" / "test+tta.npz") as seen, np.load(run / "predictions" / "test.npz") as alone:
            assert not np.allclose(seen["log_probs"], alone["log_probs"], atol=1e-3)
            views[run] = seen["log_probs"]
        model = balcal.load(run, posthoc="tta") if run != asked else None
        assert model is None or len(model.head.weights) == count
    figures = json.loads((plain / "metrics+tta+ts.json").read_text())
    assert figures["method"] == "vanilla+tta+ts"
    assert figures["posthoc"]["name"] == "ts"
    held_out = np.load(plain / "predictions" / "val+tta.npz")
    fitted = balcal.Calibrator("ts", "log_probs").fit(held_out["log_probs"], held_out["labels"])
    labels = torch.from_numpy(np.load(plain / "predictions" / "test.npz")["labels"])
    nll = balcal.metrics.nll(probs=fitted.predict_proba(views[plain]), labels=labels)
    assert figures["metrics"]["nll"] == pytest.approx(nll, rel=1e-5)
    assert recipe("digits", "vanilla+tta", 0, SMALL).address() == recipe("digits", "vanilla", 0, SMALL).address()
