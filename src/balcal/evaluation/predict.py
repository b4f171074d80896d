"""From a model and batches to predictions, and the post-hoc map that is fitted on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from balcal.core import BalcalError, PostHoc, Predictions, ReadsOutputs
from balcal.data.batches import Batches, LoaderBatches
from balcal.model import Model
from balcal.runtime.randomness import own_randomness


def predict(model: Model, loader: Iterable[Any], role: str | None = None) -> Predictions:
    """What the model says of a loader of (x, y): log-probabilities and labels, in the loader's order.

    With `role="test"` the predictions refuse to be fitted on.
    """
    return predict_batches(model, LoaderBatches(loader, model.head.weights.device, seed=0), role=role)


@torch.no_grad()
def predict_batches(model: Model, batches: Batches, posthoc: bool = True, role: str | None = None) -> Predictions:
    was_training = model.training
    model.eval()
    try:
        told, labels = [], []
        with own_randomness():
            for x, y in batches.epoch(0):
                told.append((model(x) if posthoc else model(x, branches=True).log_probs()).float().cpu())
                labels.append(y.cpu())
    finally:
        model.train(was_training)
    if not told:
        raise BalcalError("there is nothing to predict: the loader is empty")
    log_probs = torch.cat(told)
    if bool(log_probs.isnan().any()):
        first = int(log_probs.isnan().any(1).nonzero()[0])
        raise BalcalError(
            f"the prediction for sample {first} is NaN: its input has NaN or infinite values, or the weights do"
        )
    return Predictions(log_probs, torch.cat(labels), role)


@torch.no_grad()
def fit_posthoc(model: Model, spec: PostHoc, batches: Batches) -> nn.Module:
    """The map that a post-hoc role makes of held-out batches. It sees the branches, if it asks for them."""
    if not isinstance(spec, ReadsOutputs):
        held_out = predict_batches(model, batches, posthoc=False)
        return spec.fit(held_out.log_probs, held_out.labels)
    was_training = model.training
    model.eval()
    try:
        with own_randomness():
            seen = [(model(x, branches=True), y.cpu()) for x, y in batches.epoch(0)]
    finally:
        model.train(was_training)
    if not seen:
        raise BalcalError("there is nothing to calibrate on: the loader is empty")
    logits = torch.cat([outputs.logits.cpu() for outputs, _ in seen], dim=1)
    first = seen[0][0]
    outputs = replace(first, logits=logits, weights=first.weights.cpu(), loss_weights=first.loss_weights.cpu())
    return spec.fit_outputs(outputs, torch.cat([y for _, y in seen]))
