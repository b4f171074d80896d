"""Train a Hugging Face classification model by a method of ours, with the unchanged Trainer.

    calibrated = Calibrated(model, "balcal-auto")
    Trainer(model, ..., compute_loss_func=calibrated.loss, callbacks=[calibrated]).train()

`model(...).logits` become calibrated log-probabilities, which are valid logits: pipelines need no change. Methods that
solve for gamma on the validation split use the batches of the Trainer's evaluations (eval_strategy="epoch").
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from balcal.adapters.classifier_slot import AdaptedNetwork
from balcal.core import BalcalError, Record
from balcal.recipe import Method

try:
    from transformers import TrainerCallback
except ImportError:
    raise BalcalError("transformers is not installed: pip install 'balcal[huggingface]'") from None


class Calibrated(TrainerCallback):
    """The loss for `compute_loss_func`, and the callback that solves for the method's gamma or beta."""

    def __init__(self, model: nn.Module, method: Method | str = "balcal-auto", num_classes: int | None = None) -> None:
        self.adapted = AdaptedNetwork(model, method, num_classes)
        self.records: list[Record] = []

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The method's loss of a batch; with accumulated gradients, its share of the step's loss."""
        loss = self.adapted.loss(labels)
        return loss if num_items_in_batch is None else loss * len(labels) / num_items_in_batch

    def calibrate(self, log_probs: Any, labels: Any, method: str = "ts") -> None:
        """Fit a post-hoc method on `trainer.predict(held_out)`: its `predictions` and `label_ids`."""
        self.adapted.calibrate(log_probs, labels, method)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("train")

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("val")

    def _end(self, split: Any) -> None:
        record = self.adapted.end(split)
        if record:
            self.records.append(record)
