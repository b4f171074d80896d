"""A calibrated classifier as a scikit-learn estimator.

    BalCALClassifier(method="balcal-auto").fit(X, y).predict_proba(X_new)

It works in pipelines, cross-validation and `CalibrationDisplay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from balcal import registry
from balcal.build import wrap
from balcal.core import BalcalError
from balcal.model import Model
from balcal.runtime.devices import pick_device
from balcal.runtime.progress import Progress
from balcal.runtime.randomness import generator, own_randomness, seed_torch
from balcal.runtime.values import check_number
from balcal.training.fit import fit_batches
from balcal.training.optimise import plan_of
from balcal.training.parents import FeatureBatches

AT_ONCE = 4096
"""rows that are predicted in one batch"""


class Standardised(nn.Module):
    """Columns with mean 0 and deviation 1, as the training rows had them."""

    mean: Tensor
    scale: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        spread = rows.std(0, unbiased=False)
        self.register_buffer("scale", torch.where(spread > 0, spread, torch.ones_like(spread)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


def small_mlp(rows: Tensor, num_classes: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """For tables: standardised columns, hidden layers with ReLU, a linear classifier."""
    layers: list[nn.Module] = [Standardised(rows)]
    width = rows.shape[1]
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


class BalCALClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Any method on any network, as an estimator.

    `backbone`: None for tables, a small network with `hidden` layers; an `nn.Module` classifier, copied for every fit;
    or the name of a backbone, for images (N, C, H, W). `validation_fraction` of the rows, drawn per class, is held
    out to choose the epoch, and to solve for gamma if the method does so on validation. If that leaves fewer than two
    rows per class, nothing is held out. `settings` are further ones of a `Plan`, such as `{"clip": 1.0}`.

    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = BalCALClassifier(random_state=0).fit(X, np.where(X[:, 0] > X[:, 1], "over", "under"))
    >>> model.predict([[2.0, -1.0], [0.0, 3.0]]).tolist()
    ['over', 'under']
    """

    def __init__(
        self,
        method: str = "balcal-auto",
        backbone: nn.Module | str | None = None,
        hidden: tuple[int, ...] = (64, 64),
        epochs: int = 40,
        batch_size: int = 64,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        device: str | None = None,
        random_state: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any) -> BalCALClassifier:  # noqa: N803
        X, y = validate_data(self, X, y, dtype=np.float64, allow_nd=self.backbone is not None)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, encoded = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least 2 classes, and y has one class: {self.classes_[0]!r}")
        if not 0 <= check_number(self.validation_fraction, "validation_fraction") < 1:
            raise BalcalError(f"validation_fraction must be at least 0 and below 1, not {self.validation_fraction}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        device = pick_device(self.device or "cpu")
        rows, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(encoded)
        train, val = self._divided(labels, seed)
        with own_randomness():
            seed_torch(seed, "weights")
            model = self._model(rows[train]).to(device)
        learn, check = (rows[part].to(device) for part in (train, val))
        size = min(self.batch_size, len(train))
        given = {"epochs": self.epochs, "batch_size": size, "lr": self.lr, "weight_decay": self.weight_decay}
        usual = {"optimiser": "adamw", "schedule": "cosine"}
        plan = plan_of(model.method, device, given, self.settings or {}, usual)
        self.history_ = fit_batches(
            model,
            FeatureBatches(learn, labels[train].to(device), size, seed),
            FeatureBatches(check, labels[val].to(device), AT_ONCE),
            plan,
            seed,
            Progress(self.method, quiet=True),
        )
        self.model_ = model.double().cpu().eval()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities (N, K). In float64, so that those of a row do not depend on the other rows."""
        check_is_fitted(self, "model_")
        X = validate_data(self, X, reset=False, dtype=np.float64, allow_nd=self.backbone is not None)
        rows = torch.tensor(X)
        with torch.no_grad():
            probs = torch.cat([self.model_(part) for part in torch.split(rows, AT_ONCE)]).exp()
        return (probs / probs.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        best = self.predict_proba(X).argmax(1)
        chosen: NDArray[Any] = self.classes_[best]
        return chosen

    def _divided(self, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Rows for training and for validation; all rows for both, if that leaves fewer than two per class."""
        n, k = len(labels), len(self.classes_)
        order = torch.randperm(n, generator=generator(seed, "split"))
        held = [order[labels[order] == c] for c in range(k)]
        val = torch.cat([rows[: round(len(rows) * self.validation_fraction)] for rows in held])
        if len(val) < 2 * k:
            return torch.arange(n), torch.arange(n)
        chosen = torch.zeros(n, dtype=torch.bool)
        chosen[val] = True
        return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]

    def _model(self, rows: Tensor) -> Model:
        k = len(self.classes_)
        if self.backbone is None:
            return wrap(small_mlp(rows, k, self.hidden), k, self.method, quiet=True)
        if isinstance(self.backbone, str):
            return wrap(registry.backbone(self.backbone, rows.shape[1]), k, self.method, quiet=True)
        return wrap(deepcopy(self.backbone), k, self.method, quiet=True)
