"""Post-hoc calibration: a scikit-learn estimator for arrays, and a function for trained models.

    Calibrator(inputs="logits").fit(z_held_out, y_held_out).predict_proba(z_test)
    calibrate(model, held_out_loader)

Post-hoc methods go by their names: see `balcal list methods`. Without a name cross-validation chooses one (`auto`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from balcal.build import spec_of
from balcal.core import BalcalError, Outputs
from balcal.data.loaders import LoaderBatches, Reading
from balcal.data.splits import few_samples
from balcal.evaluation.predict import fit_posthoc
from balcal.methods.parts.fitted_map import PositiveMap
from balcal.methods.parts.held_out import check_size, large, piece_by_piece
from balcal.metrics.inputs import read_logits, read_unlabelled
from balcal.metrics.reading import read_labels
from balcal.model import Model
from balcal.runtime.values import as_tensor
from balcal.training.own_data import known_samples

Inputs = Literal["probs", "log_probs", "logits"]


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A post-hoc method on arrays (N, K).

    Parameters
    ----------
    method
        Its name; "auto" chooses by cross-validation, and says what in `chosen` and why in `why`.
    inputs
        What the arrays are: "probs", "log_probs" or "logits".
    settings
        Of the method, by name.

    Of four samples at odds of e^2, three are right: the calibrated odds are three to one. `prior=0` fits just these
    samples; by default a few imagined ones keep a small set from being taken at its word.

    >>> z = np.array([[2.0, 0.0]] * 120 + [[0.0, 2.0]] * 120)
    >>> y = [0] * 90 + [1] * 30 + [1] * 90 + [0] * 30
    >>> exact = Calibrator("ts", inputs="logits", settings={"prior": 0})
    >>> exact.fit(z, y).predict_proba([[2.0, 0.0]]).round(4)
    array([[0.75, 0.25]])
    >>> Calibrator(inputs="logits").fit(z, y).chosen
    'ts'
    """

    def __init__(
        self, method: str = "auto", inputs: Inputs = "probs", settings: Mapping[str, Any] | None = None
    ) -> None:
        self.method = method
        self.inputs = inputs
        self.settings = settings

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Calibrator:  # noqa: N803
        """Fit on held-out predictions.

        Parameters
        ----------
        X
            (N, K), or the one column of two classes (N,).
        y
            (N,) class indices, also as whole floats or digits as text; or one-hot rows (N, K).
        sample_weight
            (N,); a weight of 2 counts as two samples.
        groups
            (N,) names; samples of a group share a fold where the method cross-validates.
        """
        table, to_scores = self._read(X)
        scores = to_scores(table)
        labels = read_labels(y, scores)
        given: dict[str, Tensor] = {}
        if sample_weight is not None:
            given["weights"] = as_tensor(sample_weight, "the sample weights")
        if groups is not None:
            given["groups"] = torch.from_numpy(np.unique(np.asarray(groups), return_inverse=True)[1])
        self.map_ = spec_of(self.method, self.settings).fit(Outputs.of(scores), labels, **given)
        if sentence := few_samples(len(labels), self.method):
            warnings.warn(sentence, stacklevel=2)
        self.classes_ = np.arange(scores.shape[1])
        self.n_features_in_ = scores.shape[1]
        return self

    @property
    def chosen(self) -> str:
        """The name of the method in use: what `auto` chose, else the one that was asked for."""
        check_is_fitted(self, "map_")
        return str(getattr(self.map_, "chosen", self.method))

    @property
    def why(self) -> str:
        """Why `auto` chose it, in a sentence; empty for other methods."""
        check_is_fitted(self, "map_")
        return str(getattr(self.map_, "why", ""))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        check_is_fitted(self, "map_")
        table, to_scores = self._read(X)
        if table.shape[1] != self.n_features_in_:
            raise BalcalError(f"fitted on {self.n_features_in_} classes, asked about {table.shape[1]}")
        if spec_of(self.method, self.settings).as_they_are:
            check_size(to_scores(table), self.method)
        with torch.no_grad():
            probs = piece_by_piece(lambda rows: self._probs(Outputs.of(to_scores(rows))), table)
        return probs.numpy()

    def predict(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        chosen: NDArray[np.int64] = self.predict_proba(X).argmax(1)
        return chosen

    def export(self, path: str | Path) -> Path:
        """Write the fitted map as an ONNX graph: what `inputs` says in, calibrated probabilities out.

        The graph is run and compared with `predict_proba` before the file is written.
        """
        from balcal.deploy.export_map import export_map

        check_is_fitted(self, "map_")
        return export_map(self.map_, self.n_features_in_, self.inputs, self.predict_proba, self.method, Path(path))

    def _probs(self, outputs: Outputs) -> Tensor:
        probs: Tensor = self.map_.probs(outputs) if isinstance(self.map_, PositiveMap) else self.map_(outputs).exp()
        return probs

    def _read(self, given: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """What was given, checked; and what makes scores of its rows: log-probabilities or logits in float64."""
        if self.inputs == "logits":
            return read_logits(given).cpu(), Tensor.double
        if self.inputs not in ("probs", "log_probs"):
            raise BalcalError(f'inputs must be "probs", "log_probs" or "logits", not "{self.inputs}"')
        table = {"probs": None, "log_probs": None} | {self.inputs: given}
        rows = read_unlabelled(table["probs"], table["log_probs"])
        return rows.whole().cpu(), Tensor.double if rows.logs else _log


def _log(probs: Tensor) -> Tensor:
    return torch.log(probs.double(), out=large(*probs.shape))


def calibrate(
    model: Model,
    loader: Iterable[Any],
    method: str = "auto",
    train_loader: Iterable[Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """Fit a post-hoc method on held-out data and make it part of the model: `model(x)` is calibrated from now on.

    Parameters
    ----------
    model
        Made by `balcal.wrap` or `balcal.join`, and trained.
    loader
        Held-out batches, as `balcal.fit` takes them.
    method
        The name of a post-hoc method; "auto" chooses by cross-validation.
    train_loader
        The training batches, not augmented, for a method that needs them (`laplace`).
    settings
        Of the method, by name.

    >>> from balcal.build import wrap
    >>> model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), 3, "vanilla")
    >>> data = [(torch.randn(120, 4), torch.arange(120) % 3)]
    >>> bool(calibrate(model, data, "laplace", train_loader=data).posthoc.prior_precision > 0)
    True
    """
    if not isinstance(model, Model):
        raise BalcalError(f"calibrate takes a model of balcal.wrap, not a {type(model).__name__}: wrap it first")
    device = model.head.weights.device
    batches = LoaderBatches(loader, device, 0, Reading(model.num_classes))
    spec = spec_of(method, settings)
    train = None if train_loader is None else LoaderBatches(train_loader, device, 0, Reading(model.num_classes))
    model.posthoc = fit_posthoc(model, spec, batches, train).to(device)
    model.method = replace(model.method, posthoc=spec)
    count = known_samples(loader, batches.reading)
    if method == "gamma":
        model.solved_on = {"split": "held-out", "samples": float(count or math.nan)}
    if count and (sentence := few_samples(count, method)):
        warnings.warn(sentence, stacklevel=2)
    return model
