"""balcal: classifiers whose confidence can be trusted.

import balcal
model = balcal.wrap(network, num_classes=10, method="balcal")
balcal.fit(model, train_loader, val_loader, epochs=30)
print(balcal.verdict(balcal.predict(model, test_loader)))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from balcal import decisions as decisions
    from balcal import metrics as metrics
    from balcal import plots as plots
    from balcal import posthoc as posthoc
    from balcal.adapters.estimator import BalCALClassifier as BalCALClassifier
    from balcal.adapters.joining import join as join
    from balcal.adapters.joining import tta as tta
    from balcal.adapters.text import TextClassifier as TextClassifier
    from balcal.build import wrap as wrap
    from balcal.core import BalcalError as BalcalError
    from balcal.core import Predictions as Predictions
    from balcal.deploy.monitor import Monitor as Monitor
    from balcal.deploy.own_card import card as card
    from balcal.deploy.own_model import export as export
    from balcal.deploy.own_model import save as save
    from balcal.deploy.predictor import load as load
    from balcal.evaluation.predict import predict as predict
    from balcal.metrics.comparison import compare as compare
    from balcal.metrics.verdict import verdict as verdict
    from balcal.model import Model as Model
    from balcal.posthoc import Calibrator as Calibrator
    from balcal.posthoc import calibrate as calibrate
    from balcal.recipe import Method as Method
    from balcal.registry import backbone as backbone
    from balcal.registry import method as method
    from balcal.training.fit import fit as fit
    from balcal.training.retrofit import retrofit as retrofit

_HOMES = {
    "BalCALClassifier": "adapters.estimator",
    "BalcalError": "core",
    "Calibrator": "posthoc",
    "Method": "recipe",
    "Model": "model",
    "Monitor": "deploy.monitor",
    "Predictions": "core",
    "TextClassifier": "adapters.text",
    "backbone": "registry",
    "calibrate": "posthoc",
    "card": "deploy.own_card",
    "compare": "metrics.comparison",
    "decisions": "decisions",
    "export": "deploy.own_model",
    "fit": "training.fit",
    "join": "adapters.joining",
    "load": "deploy.predictor",
    "method": "registry",
    "metrics": "metrics",
    "plots": "plots",
    "posthoc": "posthoc",
    "predict": "evaluation.predict",
    "report": "report",
    "retrofit": "training.retrofit",
    "save": "deploy.own_model",
    "tta": "adapters.joining",
    "verdict": "metrics.verdict",
    "wrap": "build",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """torch is imported when something is used, so that `balcal --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'balcal' has no attribute '{name}'")
    module = importlib.import_module(f"balcal.{_HOMES[name]}")
    return module if name in ("decisions", "metrics", "plots", "posthoc", "report") else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
