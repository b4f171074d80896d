"""Put a method into any network: only its last linear layer is replaced, all other names stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from balcal.backbones.classifiers import find_classifier
from balcal.build import as_method
from balcal.core import BalcalError, Head, Outputs, Parent, Record, Split, Sums, Term, check_labels
from balcal.metrics.inputs import read
from balcal.model import Model, finish_tally, terms_loss
from balcal.posthoc import spec_of
from balcal.recipe import Method
from balcal.runtime.devices import current_world
from balcal.runtime.values import as_tensor

POSSIBLE = {"loss", "head", "tally", "posthoc"}
"""roles of a method that need neither the images nor our training loop"""


class ClassifierSlot(nn.Module):
    """Replaces the classifier: features in, calibrated log-probabilities out, which are valid logits.

    It keeps the outputs of the last batch for the loss. Weights of the original network can be loaded: those of its
    classifier become those of the learnable classifier.
    """

    takes_a_classifiers_place: ClassVar[bool] = True

    def __init__(self, head: Head, posthoc: nn.Module) -> None:
        super().__init__()
        self.head, self.posthoc = head, posthoc
        self.outputs: Outputs | None = None

    def forward(self, features: Tensor) -> Tensor:
        kind = features.device.type
        with torch.autocast(kind, enabled=False):
            outputs: Outputs = self.head(features.to(self.head.weights.dtype), None)
            self.outputs = outputs
            log_probs: Tensor = self.posthoc(outputs)
        return log_probs

    def take_outputs(self) -> Outputs:
        """The outputs of the last batch; each can be taken once."""
        outputs, self.outputs = self.outputs, None
        if outputs is None:
            raise BalcalError("the batch did not pass through the classifier: is it the network that was adapted?")
        return outputs

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}weight" in state_dict:
            for name in ("weight", "bias"):
                if f"{prefix}{name}" in state_dict:
                    state_dict[f"{prefix}head.classifier.{name}"] = state_dict.pop(f"{prefix}{name}")
            for name, own in self.state_dict().items():
                state_dict.setdefault(f"{prefix}{name}", own)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class AdaptedNetwork:
    """A network with a `ClassifierSlot`: computes the method's loss, and solves for its gamma or beta."""

    parent: Parent | None = None

    def __init__(self, network: nn.Module, method: Method | str, num_classes: int | None = None) -> None:
        self.method = as_method(method)
        too_much = set(self.method.changes) - POSSIBLE
        if too_much or self.method.head.needs_map:
            what = ", ".join(sorted(too_much)) or "a head on maps"
            raise BalcalError(
                f"`{self.method.name}` changes {what}, which needs a loop of ours: use balcal.fit, or model.loss(x, y)"
            )
        path = find_classifier(network, num_classes, convolutions=False)
        classifier = cast(nn.Linear, network.get_submodule(path))
        self.num_classes = num_classes or classifier.out_features
        kept = classifier if classifier.out_features == self.num_classes else None
        head = self.method.head(classifier.in_features, self.num_classes, kept, None)
        self.slot = ClassifierSlot(head, self.method.posthoc.identity(self.num_classes)).to(classifier.weight.device)
        where, _, name = path.rpartition(".")
        network.get_submodule(where).register_module(name, self.slot)
        self.backbone, self.head = network, head
        self._sums: Sums | None = None

    def loss(self, labels: Tensor) -> Tensor:
        """Loss of the batch that the network has just seen; the batch is also counted for gamma or beta."""
        outputs = self.slot.take_outputs()
        check_labels(labels, self.num_classes, "this batch")
        self._count(outputs, labels)
        return terms_loss(self.method, outputs, [Term(1.0, outputs, labels.long())])

    def count(self, labels: Tensor) -> None:
        """Count the batch that the network has just seen for gamma or beta, without a loss."""
        outputs = self.slot.take_outputs()
        check_labels(labels, self.num_classes, "this batch")
        self._count(outputs, labels)

    def _count(self, outputs: Outputs, labels: Tensor) -> None:
        tally = self.method.tally
        if tally and tally.on == ("train" if self.slot.training else "val"):
            self._sums = tally.start(self) if self._sums is None else self._sums
            tally.add(self._sums, outputs, labels.long())

    def end(self, split: Split) -> Record:
        """End an epoch's training or validation: solve for gamma or beta if its batches were counted there."""
        tally, sums = self.method.tally, self._sums
        if tally is None or tally.on != split or sums is None:
            return {}
        self._sums = None
        return finish_tally(cast(Model, self), tally, sums, current_world(control=False))

    def calibrate(self, log_probs: Tensor, labels: Tensor, method: str = "ts") -> None:
        """Fit a post-hoc method on predictions for held-out data; it is part of the network from now on."""
        held_out = read(None, as_tensor(log_probs).cpu(), labels)
        fitted = spec_of(method).fit(Outputs.of(held_out.log_probs()), held_out.labels)
        self.slot.posthoc = fitted.to(self.head.weights.device)

    def state_dict(self) -> dict[str, Any]:
        return self.backbone.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        return self.backbone.load_state_dict(state_dict)
