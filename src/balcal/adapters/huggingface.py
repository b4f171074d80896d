"""Hugging Face: a classification model in, a calibrated one out, trained by the Trainer as it is.

    calibrated = Calibrated(model, "balcal-auto")
    Trainer(model, ..., compute_loss_func=calibrated.loss, callbacks=[calibrated]).train()

`model(...).logits` are calibrated log-probabilities from then on: valid logits, so that pipelines work as they are.
Methods that balance on validation count the batches of the Trainer's evaluations (eval_strategy="epoch").
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from balcal.adapters.classifier_slot import Seated
from balcal.core import BalcalError, Record
from balcal.recipe import Method

try:
    from transformers import TrainerCallback
except ImportError:
    raise BalcalError("transformers is not installed: pip install 'balcal[huggingface]'") from None


class Calibrated(TrainerCallback):
    """The loss for `compute_loss_func`, and the callback that sets the method's dials."""

    def __init__(self, model: nn.Module, method: Method | str = "balcal-auto", num_classes: int | None = None) -> None:
        self.seated = Seated(model, method, num_classes)
        self.records: list[Record] = []

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The method's loss of a batch; with accumulated gradients, its share of the whole step's."""
        loss = self.seated.loss(labels)
        return loss if num_items_in_batch is None else loss * len(labels) / num_items_in_batch

    def calibrate(self, log_probs: Any, labels: Any, method: str = "ts") -> None:
        """Fit a post-hoc method on `trainer.predict(held_out)`: its `predictions` and `label_ids`."""
        self.seated.calibrate(log_probs, labels, method)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("train")

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("val")

    def _end(self, split: Any) -> None:
        record = self.seated.end(split)
        if record:
            self.records.append(record)
