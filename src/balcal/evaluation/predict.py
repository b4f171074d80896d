"""From a model and batches to predictions, and the post-hoc map that is fitted on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from balcal.core import BalcalError, Outputs, PostHoc, Predictions
from balcal.data.batches import Batches, LoaderBatches
from balcal.model import Model, evaluating
from balcal.runtime.randomness import own_randomness


def predict(model: Model, loader: Iterable[Any], role: str | None = None) -> Predictions:
    """Predictions of the model for a loader of (x, y): log-probabilities and labels, in the loader's order.

    With `role="test"` the predictions refuse to be fitted on.
    """
    return predict_batches(model, LoaderBatches(loader, model.head.weights.device, seed=0), role=role)


@torch.no_grad()
def predict_batches(model: Model, batches: Batches, posthoc: bool = True, role: str | None = None) -> Predictions:
    """The same for batches; `posthoc=False` leaves the post-hoc map out."""
    predicted, labels = [], []
    with evaluating(model), own_randomness():
        for x, y in batches.epoch(0):
            predicted.append((model(x) if posthoc else model(x, branches=True).log_probs()).float().cpu())
            labels.append(y.cpu())
    if not predicted:
        raise BalcalError("there is nothing to predict: the loader is empty")
    log_probs = torch.cat(predicted)
    if bool(log_probs.isnan().any()):
        first = int(log_probs.isnan().any(1).nonzero()[0])
        raise BalcalError(
            f"the prediction for sample {first} is NaN: its input has NaN or infinite values, or the weights do"
        )
    return Predictions(log_probs, torch.cat(labels), role)


@torch.no_grad()
def fit_posthoc(model: Model, spec: PostHoc, batches: Batches) -> nn.Module:
    """Fit a post-hoc map on held-out batches. Branches are kept only for a role that reads them."""
    if not spec.reads_branches:
        held_out = predict_batches(model, batches, posthoc=False)
        return spec.fit(Outputs.of(held_out.log_probs), held_out.labels)
    with evaluating(model), own_randomness():
        seen: list[tuple[Outputs, torch.Tensor]] = [(model(x, branches=True), y.cpu()) for x, y in batches.epoch(0)]
    if not seen:
        raise BalcalError("there is nothing to calibrate on: the loader is empty")
    logits = torch.cat([outputs.logits.cpu() for outputs, _ in seen], dim=1)
    first = seen[0][0]
    outputs = replace(first, logits=logits, weights=first.weights.cpu(), loss_weights=first.loss_weights.cpu())
    return spec.fit(outputs, torch.cat([y for _, y in seen]))
