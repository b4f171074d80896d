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
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
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
from balcal.training.own_data import plan_of
from balcal.training.parents import FeatureBatches

MOST, LEAST = 64, 8
"""rows in a batch, unless a user says how many"""
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


def has_categories(table: Any) -> bool:
    """Whether a table is a DataFrame with columns that are no numbers."""
    return hasattr(table, "iloc") and hasattr(table, "dtypes") and any(not _is_number(kind) for kind in table.dtypes)


def _is_number(kind: Any) -> bool:
    return getattr(kind, "kind", "O") in "iuf"


def plain_columns(table: Any) -> Any:
    """A DataFrame with truth values as numbers and gaps as NaN, in pandas' nullable columns too; dates are refused."""
    changed = {}
    for place, kind in enumerate(table.dtypes):
        letter, column = getattr(kind, "kind", "O"), table.iloc[:, place]
        if letter in "Mmc":
            name = table.columns[place]
            raise ValueError(f"column `{name}` has {kind}: make numbers of it, such as the days since a date")
        if letter == "b":
            changed[place] = column.astype("float64")
        elif not _is_number(kind) and column.isna().any():
            changed[place] = column.astype(object).where(column.notna(), np.nan)
    made = table.copy()
    for place, column in changed.items():
        made.isetitem(place, column)
    return made


def column_transformer(table: Any) -> ColumnTransformer:
    """Numbers as they are, missing ones as the median and a column of flags; categories as columns of 0 and 1."""
    numbers = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    kinds = list(table.dtypes) if has_categories(table) else [np.dtype(np.float64)] * table.shape[1]
    numeric = [place for place, kind in enumerate(kinds) if _is_number(kind)]
    others = [place for place, kind in enumerate(kinds) if not _is_number(kind)]
    coded = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    parts = [("numbers", numbers, numeric), ("categories", coded, others)]
    return ColumnTransformer([part for part in parts if part[2]])


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
    rows per class, nothing is held out. `batch_size`: None for 64, or an eighth of the rows where they are few, so that
    an epoch has steps enough. `settings` are further ones of a `Plan`, such as `{"clip": 1.0}`. `class_weight`:
    "balanced", or weights by class. `epochs`, `lr`, `weight_decay`: of the training, on `device` ("cpu", "cuda", ...;
    None chooses).

    A table may be a DataFrame with categories (text, bool, categorical columns) and missing values: categories become
    columns of 0 and 1, missing numbers the median and a column that says so. Sparse matrices are refused.

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
        batch_size: int | None = None,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        device: str | None = None,
        random_state: Any = None,
        settings: Mapping[str, Any] | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
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
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BalCALClassifier:  # noqa: N803
        """Fit on rows and their labels; `sample_weight` says how much each row counts, relative to the others."""
        y = column_or_1d(y, warn=True) if y is not None else y
        X, y = self._read(X, y)
        check_classification_targets(y)
        self.classes_, encoded = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least 2 classes, and y has one class: {self.classes_[0]}")
        if not 0 <= check_number(self.validation_fraction, "validation_fraction") < 1:
            raise BalcalError(f"validation_fraction must be at least 0 and below 1, not {self.validation_fraction}")
        seed = int(check_random_state(self.random_state).randint(2**31))
        device = pick_device(self.device or "cpu")
        weights = self._weights(X, y, sample_weight)
        rows, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(encoded)
        train, val = self._divided(labels, seed)
        with own_randomness():
            seed_torch(seed, "weights")
            model = self._model(rows[train]).to(device)
        learn, check = (rows[part].to(device) for part in (train, val))
        size = min(MOST, max(LEAST, len(train) // 8)) if self.batch_size is None else self.batch_size
        size = min(size, len(train))

        def of(part: Tensor) -> Tensor | None:
            return None if weights is None else weights[part].to(device)

        given = {"epochs": self.epochs, "batch_size": size, "lr": self.lr, "weight_decay": self.weight_decay}
        usual = {"optimiser": "adamw", "schedule": "cosine"}
        plan = plan_of(model.method, device, given, self.settings or {}, usual, others=self.get_params(deep=False))
        self.history_ = fit_batches(
            model,
            FeatureBatches(learn, labels[train].to(device), size, seed, weights=of(train)),
            FeatureBatches(check, labels[val].to(device), AT_ONCE, weights=of(val)),
            plan,
            seed,
            Progress(self.method, quiet=True),
        )
        self.model_ = model.double().cpu().eval()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities (N, K). In float64, so that those of a row do not depend on the other rows."""
        probs = np.exp(self.predict_log_proba(X))
        found: NDArray[np.float64] = probs / probs.sum(1, keepdims=True)
        return found

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Logarithms of the probabilities (N, K): finite also where a probability is too small to be stored."""
        check_is_fitted(self, "model_")
        rows = torch.tensor(self._read(X)[0])
        with torch.no_grad():
            scores = torch.cat([self.model_(part) for part in torch.split(rows, AT_ONCE)])
        found: NDArray[np.float64] = scores.log_softmax(1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        best = self.predict_proba(X).argmax(1)
        chosen: NDArray[Any] = self.classes_[best]
        return chosen

    def _read(self, X: Any, y: Any = None) -> tuple[NDArray[np.float64], Any]:  # noqa: N803
        """Rows of numbers, and labels where the estimator is being fitted. Tables may have gaps and categories."""
        fitting = y is not None or not hasattr(self, "model_")
        both = (X, y) if fitting else (X,)
        if self.backbone is not None:
            read = validate_data(self, *both, reset=fitting, dtype=np.float64, allow_nd=True)
        elif has_categories(X):
            both = (plain_columns(X), *both[1:])
            read = validate_data(self, *both, reset=fitting, skip_check_array=True)
        else:
            read = self._numbers(both, fitting)
        X, y = read if fitting else (read, None)
        if self.backbone is not None:
            return X, y
        if fitting:
            self.columns_ = column_transformer(X).fit(X)
        table = np.asarray(self.columns_.transform(X), dtype=np.float64)
        if not np.isfinite(table).all():
            raise ValueError("X contains infinity, or a value too large for float64: correct those rows")
        return table, y

    def _numbers(self, both: tuple[Any, ...], fitting: bool) -> Any:
        try:
            return validate_data(self, *both, reset=fitting, dtype=np.float64, ensure_all_finite="allow-nan")
        except ValueError as error:
            if "could not convert string" not in str(error):
                raise
            raise ValueError(f"{error}: pass a DataFrame, whose columns tell numbers from categories") from None

    def _weights(self, X: Any, y: Any, sample_weight: Any) -> Tensor | None:  # noqa: N803
        """Of each row, with mean 1; None if all count the same."""
        if sample_weight is None and self.class_weight is None:
            return None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, y)
            if not (np.isfinite(weights).all() and (weights >= 0).all()):
                raise ValueError("class_weight must be finite and not negative")
        if not weights.sum() > 0:
            raise ValueError("all rows have weight 0: there is nothing to fit on")
        return torch.tensor(weights / weights.mean(), dtype=torch.float32)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.backbone is None
        tags.input_tags.categorical = self.backbone is None
        return tags

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
