"""Asking a trained run about other images than its test split, and keeping what it said.

Every set of predictions is stored in the run as soon as it is there, before any post-hoc map that works on predictions;
so an evaluation that was interrupted goes on where it was, and another post-hoc method asks the network nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from balcal.core import OutputsMap, Predictions, ReadsOutputs
from balcal.data.images import ImageSet, Splits
from balcal.evaluate import (
    batches_of,
    calibrated_model,
    calibrated_predictions,
    load_chosen,
    load_splits,
    predict_batches,
)
from balcal.model import Model, as_method
from balcal.recipe import Method
from balcal.runs import Run


class Sitting:
    """One run under one method, on one device. The network is loaded when it is first needed."""

    def __init__(self, run: Run, method: Method, device: torch.device) -> None:
        self.run, self.method, self.device = run, as_method(method), device
        history = run.history()
        epoch, usual = (as_method(m).select(history) for m in (method, run.recipe.method))
        self.suffix = "" if epoch == usual else f"-e{epoch:04d}"
        if isinstance(self.method.posthoc, ReadsOutputs):
            self.suffix += f"+{self.method.changes['posthoc']}"
        self.splits: Splits = load_splits(run.recipe.task)
        self._model: Model | None = None
        self._map: nn.Module | None = None

    @property
    def model(self) -> Model:
        if self._model is None:
            if isinstance(self.method.posthoc, ReadsOutputs):
                self._model, _ = calibrated_model(self.run, self.method, self.device)
            else:
                self._model = load_chosen(self.run, self.method, self.device)
        return self._model

    @property
    def map(self) -> nn.Module:
        """What is applied to stored predictions."""
        if self._map is None:
            fitted, _, _ = calibrated_predictions(self.run, self.method, self.device)
            self._map = nn.Identity() if isinstance(fitted, OutputsMap) else fitted
        return self._map

    def predictions(self, name: str, images: Callable[[], ImageSet]) -> Predictions:
        """What the run says of these images, after its post-hoc map."""
        stem = f"{name}{self.suffix}"
        told = self.run.load_predictions(stem)
        if told is None:
            part = images()
            told = predict_batches(self.model, batches_of(self.run, part, self.device), role=name)
            self.run.save_predictions(stem, told)
        with torch.no_grad():
            return replace(told, log_probs=self.map(told.log_probs))
