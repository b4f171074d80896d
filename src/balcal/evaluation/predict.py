"""From a model and batches to predictions, and the post-hoc map that is fitted on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from balcal.core import BalcalError, Outputs, PostHoc, Predictions
from balcal.data.batches import Batches
from balcal.data.loaders import LoaderBatches, Reading, as_inputs, pairs, to_device
from balcal.data.targets import Labels, Weighted, as_rows
from balcal.model import Model, evaluating
from balcal.runtime.randomness import own_randomness, seed_torch


def predict(
    model: Model, loader: Iterable[Any], role: str | None = None, target: Any = None, ignore_index: int | None = None
) -> Predictions:
    """Predictions of the model for a loader: log-probabilities and labels, in the loader's order.

    Parameters
    ----------
    model
        A model of `balcal.wrap`.
    loader
        Batches (x, y), (x, y, weight), dictionaries with `labels`, or inputs alone. One batch (x, y) is no loader: pass
        `[(x, y)]`. Weights are not kept: pass them to `verdict(..., sample_weight=)`.
    role
        With `"test"` the predictions refuse to be fitted on.
    target
        Where a batch has its labels: a key, or a place such as -1; `False` if there are none.
    ignore_index
        Samples with this label are left out.

    >>> from balcal.build import wrap
    >>> model = wrap(nn.Linear(4, 3), 3, features=lambda x: x, num_features=4)
    >>> len(predict(model, [torch.zeros(5, 4), torch.zeros(2, 4)]))
    7
    """
    if not isinstance(model, Model):
        raise BalcalError(f"predict takes a model of balcal.wrap, not a {type(model).__name__}: wrap it first")
    reading = Reading(model.num_classes, target, ignore_index, may_be_empty=True)
    return predict_batches(model, Inputs(loader, model.head.weights.device, 0, reading), role=role)


@dataclass(frozen=True, eq=False)
class Inputs(LoaderBatches):
    """Batches to predict: they may lack labels, and the loader need not know its length."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        seed_torch(self.seed, "order", epoch)
        for step, (x, y) in enumerate(pairs(self.loader, self.read)):
            if y is None or len(y) or self.reading.ignore_index is None:
                yield to_device(x, self.device), y
            seed_torch(self.seed, "load", epoch, step + 1)

    def read(self, batch: Any, where: str) -> tuple[Any, Any]:
        if self.reading.parts(batch)[1] is None:
            return as_inputs(self.reading.parts(batch)[0]), None
        return self.reading(batch, where)


class Unlabelled(Predictions):
    """Predictions for inputs without labels."""

    def __init__(self, log_probs: Tensor, role: str | None = None) -> None:
        object.__setattr__(self, "log_probs", log_probs)
        object.__setattr__(self, "role", role)

    @property
    def labels(self) -> Tensor:
        raise BalcalError(
            "these predictions have no labels, so nothing can be measured on them: predict a loader of (x, y)"
        )

    def __len__(self) -> int:
        return len(self.log_probs)


@torch.no_grad()
def predict_batches(model: Model, batches: Batches, posthoc: bool = True, role: str | None = None) -> Predictions:
    """The same for batches; `posthoc=False` leaves the post-hoc map out."""
    predicted, labels = [], []
    with evaluating(model), own_randomness():
        for x, y in batches.epoch(0):
            predicted.append((model(x) if posthoc else model(x, branches=True).log_probs()).float().cpu())
            labels.append(y.hard().cpu() if isinstance(y, Weighted) else y if y is None else y.cpu())
    if not predicted:
        raise BalcalError("there is nothing to predict: the loader is empty")
    log_probs = torch.cat(predicted)
    if bool(log_probs.isnan().any()):
        first = int(log_probs.isnan().any(1).nonzero()[0])
        raise BalcalError(
            f"the prediction for sample {first} is NaN: its input has NaN or infinite values, or the weights do"
        )
    known = [y for y in labels if y is not None]
    if known and len(known) < len(labels):
        raise BalcalError(
            "some batches have labels and others have none: give all of them labels, or pass target=False"
        )
    return Predictions(log_probs, torch.cat(known), role) if known else Unlabelled(log_probs, role)


@torch.no_grad()
def fit_posthoc(model: Model, spec: PostHoc, batches: Batches, train: Batches | None = None) -> nn.Module:
    """Fit a post-hoc map on held-out batches, weighted if they are. Branches are kept for a role that reads them.

    A role that reads features sees the training batches first.
    """
    if spec.reads_features:
        if train is None:
            raise BalcalError("this post-hoc method also needs the training data: pass train_loader=")
        outputs, labels = _seen(model, spec, train)
        if any(isinstance(each, Weighted) for each in labels):
            raise BalcalError("this post-hoc method takes class indices that count the same, not weighted samples")
        spec = spec.learn(model.head, outputs, torch.cat([each.cpu() for each in labels]))  # type: ignore[misc]
    whole, labels = _seen(model, spec, batches)
    if not any(isinstance(each, Weighted) for each in labels):
        return spec.fit(whole, torch.cat([each.cpu() for each in labels]))  # type: ignore[misc]
    row, label, weight = _rows(labels)
    features = None if whole.features is None else whole.features[row]
    return spec.fit(replace(whole, logits=whole.logits[:, row], features=features), label, weight)


def _seen(model: Model, spec: PostHoc, batches: Batches) -> tuple[Outputs, list[Labels]]:
    """What a post-hoc role reads of all batches."""
    kept: list[tuple[Outputs, Labels]] = []
    with evaluating(model), own_randomness():
        for x, y in batches.epoch(0):
            outputs: Outputs = model(x, branches=True)
            if not (spec.reads_branches or spec.reads_features):
                outputs = Outputs.of(outputs.log_probs().float())
            kept.append((outputs, y))
    if not kept:
        raise BalcalError("there is nothing to calibrate on: the loader is empty")
    logits = torch.cat([outputs.logits.cpu() for outputs, _ in kept], dim=1)
    if bool(logits.isnan().any()):
        sample = int(logits.isnan().any(2).any(0).nonzero()[0])
        raise BalcalError(f"the prediction for sample {sample} is NaN: its input has NaN or infinite values")
    first = kept[0][0]
    features = [outputs.features for outputs, _ in kept if outputs.features is not None]
    whole = replace(
        first,
        logits=logits,
        weights=first.weights.cpu(),
        loss_weights=first.loss_weights.cpu(),
        features=torch.cat(features).cpu() if spec.reads_features else None,
    )
    return whole, [y for _, y in kept]


def _rows(labels: Sequence[Labels]) -> tuple[Tensor, Tensor, Tensor]:
    """(row, label, weight) over all batches, without those of weight 0."""
    parts, start = [], 0
    for each in labels:
        row, label, weight = as_rows(each.cpu())
        number = torch.arange(len(each)) if row is None else row
        parts.append((number + start, label, torch.ones(len(label)) if weight is None else weight))
        start += len(each)
    rows, label, weight = (torch.cat(part) for part in zip(*parts, strict=True))
    if not bool((weight > 0).any()):
        raise BalcalError("all held-out samples have weight 0: there is nothing to calibrate on")
    counts = weight > 0
    return rows[counts], label[counts], weight[counts].double()
