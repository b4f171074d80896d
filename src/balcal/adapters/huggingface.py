"""Train a Hugging Face classification model by a method of ours, with the unchanged Trainer.

    calibrated = Calibrated(model, "balcal-auto")
    Trainer(model, ..., compute_loss_func=calibrated.loss, callbacks=[calibrated]).train()

`model(...).logits` become calibrated log-probabilities, which are valid logits: pipelines need no change. Methods that
solve for gamma on the validation split use the batches of the Trainer's evaluations (eval_strategy="epoch"), and so
does a post-hoc map (`vanilla+ts`).

The model's config says how it was adapted. Where this module is imported, `from_pretrained` builds it so.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from balcal.adapters.classifier_slot import AdaptedNetwork
from balcal.backbones.classifiers import find_classifier
from balcal.core import BalcalError, Record
from balcal.recipe import Method

try:
    from transformers import PreTrainedModel, TrainerCallback
except ImportError:
    raise BalcalError("transformers is not installed: pip install 'balcal[huggingface]'") from None


class Calibrated(TrainerCallback):
    """The loss for `compute_loss_func`, and the callback that solves for the method's gamma or beta.

    The last linear layer of `model` is replaced, by this `method` and for `num_classes` (those of the layer, if left
    out).

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))  # or a classification model of transformers
    >>> calibrated = Calibrated(model)  # Trainer(model, compute_loss_func=calibrated.loss, callbacks=[calibrated])
    >>> model(torch.randn(2, 4)).exp().sum(1).allclose(torch.ones(2))
    True
    """

    def __init__(self, model: nn.Module, method: Method | str = "balcal-auto", num_classes: int | None = None) -> None:
        _check(model, num_classes)
        self.adapted = AdaptedNetwork(model, method, num_classes)
        self.records: list[Record] = []
        self._describe()

    def _describe(self) -> None:
        """Say in the model's config how it is adapted, so that it can be loaded."""
        config: Any = getattr(self.adapted.backbone, "config", None)
        described = self.adapted.described()
        if config is not None and described is not None:
            config.balcal = described | {"class": type(self.adapted.backbone).__name__}

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """The method's loss of a batch; with accumulated gradients, its share of the step's loss."""
        loss = self.adapted.loss(labels)
        return loss if num_items_in_batch is None else loss * len(labels) / num_items_in_batch

    def calibrate(self, log_probs: Any, labels: Any, method: str = "ts") -> None:
        """Fit a post-hoc method on `trainer.predict(held_out)`: its `predictions` and `label_ids`."""
        self.adapted.calibrate(log_probs, labels, method)
        self._describe()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.adapted.warn_if_unfitted('pass eval_dataset= and eval_strategy="epoch", or call trainer.evaluate()')

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end("val")

    def _end(self, split: Any) -> None:
        record = self.adapted.end(split)
        if record:
            self.records.append(record)


def _check(model: nn.Module, num_classes: int | None) -> None:
    """Refuse a model that is not for one class per sample, or has no classifier."""
    config: Any = getattr(model, "config", None)
    kind, labels = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
    if kind in ("multi_label_classification", "regression"):
        raise BalcalError(
            f'this model is for "{kind}", and balcal is for one class per sample: use another problem_type'
        )
    if num_classes is None and isinstance(labels, int) and labels > 1 and not _adapted(model):
        found: Any = model.get_submodule(find_classifier(model, labels, convolutions=False))
        if found.out_features != labels:
            raise BalcalError(
                f"{type(model).__name__} has no linear layer for its {labels} labels: take a model for classification, "
                "such as BertForSequenceClassification"
            )


_post_init: Any = PreTrainedModel.post_init


def _adapting_post_init(self: Any) -> None:
    """Every model calls this when it is built; one whose config says so gets the slot of its calibrated classifier."""
    described = getattr(self.config, "balcal", None)
    if isinstance(described, dict) and described.get("class") == type(self).__name__ and not _adapted(self):
        AdaptedNetwork.of(self, described)
    _post_init(self)


def _adapted(model: nn.Module) -> bool:
    return any(getattr(module, "takes_a_classifiers_place", False) for module in model.modules())


PreTrainedModel.post_init = _adapting_post_init  # type: ignore[method-assign]
