"""Calibrators beside those of probmetrics, netcal and scikit-learn: fit and predict on 5,000 samples, in one run.

python bench/posthoc.py [ROUNDS]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from side_by_side import ratio, report, take_turns

from balcal import Calibrator

N = 5_000
CLASSES = (10, 100, 1000)
ROUNDS = 5


def data(classes: int) -> tuple[Any, Any]:
    """An over-confident model that favours some classes."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(N, classes)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    labels[: 2 * classes] = np.arange(2 * classes) % classes  # scikit-learn wants two of each
    z = 2 * true + rng.normal(size=classes) * 0.3
    z -= z.max(1, keepdims=True)
    probs = np.exp(z)
    return probs / probs.sum(1, keepdims=True), labels


class Given:
    """A classifier whose inputs are its probabilities, as scikit-learn's calibration needs one."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: Any) -> Given:
        return self

    def predict_proba(self, table: Any) -> Any:
        return table

    def predict(self, table: Any) -> Any:
        return table.argmax(1)


def contenders(probs: Any, labels: Any) -> dict[str, dict[str, Callable[[], Any]]]:
    """What is compared: our fit and predict, and theirs of the same method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal.scaling import TemperatureScaling
        from probmetrics.calibrators import SMSCalibrator, SVSCalibrator, TemperatureScalingCalibrator
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

    classes = probs.shape[1]
    kind = type("Given", (ClassifierMixin, BaseEstimator, Given), {})
    model = kind()
    model.classes_ = np.arange(classes)

    def ours(name: str) -> Callable[[], Any]:
        return lambda: Calibrator(name).fit(probs, labels).predict_proba(probs)

    def theirs(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: make().fit(probs, labels).predict_proba(probs)

    compared = {
        "ts": {
            "balcal": ours("ts"),
            "probmetrics": theirs(TemperatureScalingCalibrator),
            "netcal": lambda: TemperatureScaling().fit(probs, labels).transform(probs),
            "scikit-learn": theirs(lambda: CalibratedClassifierCV(FrozenEstimator(model), method="temperature", cv=2)),
        },
        "svs": {"balcal": ours("svs"), "probmetrics": theirs(lambda: SVSCalibrator(print_init_info=False))},
    }
    if classes <= 100:
        compared["sms"] = {"balcal": ours("sms"), "probmetrics": theirs(lambda: SMSCalibrator(print_init_info=False))}
    return compared


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for classes in CLASSES:
        for method, calls in contenders(*data(classes)).items():
            times = take_turns(calls, rounds, rest=0.3)
            line = {name: f"{np.median(each) * 1000:.0f} ms" for name, each in times.items()}
            ratios = {name: ratio(times, name, "balcal") for name in calls if name != "balcal"}
            found[f"{method}, K = {classes}"] = {"milliseconds": line, "times_as_long_as_balcal": ratios}
            print(method, classes, line, flush=True)
    report("posthoc", f"python bench/posthoc.py {rounds}", found)


if __name__ == "__main__":
    main()
