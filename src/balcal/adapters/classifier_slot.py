"""Put a method into any network: only its last linear layer is replaced, all other names stay."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal import registry
from balcal.backbones.classifiers import find_classifier
from balcal.build import as_method, posthoc_of, spec_of
from balcal.core import BalcalError, Head, Outputs, Parent, Record, Split, Sums, Term
from balcal.metrics.inputs import read
from balcal.model import Model, finish_tally, in_float32, terms_loss
from balcal.recipe import Method
from balcal.runtime.devices import current_world
from balcal.runtime.labels import check_labels
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
        self.log_probs: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        kind = features.device.type
        with torch.autocast(kind, enabled=False):
            outputs: Outputs = self.head(features.to(self.head.weights.dtype), None)
            self.outputs = outputs
            log_probs: Tensor = self.posthoc(outputs)
            self.log_probs = log_probs
        return log_probs

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """The head and the post-hoc map stay in float32, also in a network of half precision."""
        return super()._apply(in_float32(fn), recurse)  # type: ignore[no-untyped-call]

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


class DescribedSlot(ClassifierSlot):
    """A slot whose `state_dict` says what it is, so that it can be built before it is loaded."""

    description: dict[str, Any] | None = None

    def get_extra_state(self) -> dict[str, Any] | None:
        return self.description

    def set_extra_state(self, state: Any) -> None:
        pass  # whoever loads has built the slot from it


class AdaptedNetwork:
    """A network with a `ClassifierSlot`: computes the method's loss, and solves for its gamma or beta."""

    parent: Parent | None = None

    def __init__(
        self,
        network: nn.Module,
        method: Method | str,
        num_classes: int | None = None,
        path: str | None = None,
        slot: type[ClassifierSlot] = ClassifierSlot,
    ) -> None:
        for module in network.modules():
            if getattr(module, "takes_a_classifiers_place", False):
                raise BalcalError("this network is adapted already: use it as it is, or a fresh one")
        self.method = as_method(method)
        too_much = set(self.method.changes) - POSSIBLE
        if too_much or self.method.head.needs_map:
            what = ", ".join(sorted(too_much)) or "a head on maps"
            raise BalcalError(
                f"`{self.method.name}` changes {what}, which needs a loop of ours: use balcal.fit, or model.loss(x, y)"
            )
        path = path or find_classifier(network, num_classes, convolutions=False)
        classifier = cast(nn.Linear, network.get_submodule(path))
        self.num_classes = num_classes or classifier.out_features
        kept = classifier if classifier.out_features == self.num_classes else None
        head = self.method.head(classifier.in_features, self.num_classes, kept, None)
        self.slot = slot(head, self.method.posthoc.identity(self.num_classes)).to(classifier.weight.device)
        where, _, name = path.rpartition(".")
        network.get_submodule(where).register_module(name, self.slot)
        self.backbone, self.head, self.path = network, head, path
        self._sums: Sums | None = None
        self._held_out: list[tuple[Outputs, Tensor]] = []
        """of the validation batches so far, if a post-hoc map is to be fitted on them"""
        self._validated = False
        if self.method.brings:
            names = ", ".join(self.method.brings)
            print(f"balcal: `{self.method.name}` is used without its {names}: balcal.fit has them", file=sys.stderr)

    def loss(self, labels: Tensor) -> Tensor:
        """Loss of the batch that the network has just seen; the batch is also counted for gamma or beta."""
        outputs = self.slot.take_outputs()
        check_labels(labels, self.num_classes, "this batch")
        self._count(outputs, labels)
        if not self.slot.training:
            return F.nll_loss(self.slot.posthoc(outputs), labels.long())
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
        if "posthoc" in self.method.changes and not self.slot.training:
            detached = replace(outputs, logits=outputs.logits.detach().cpu())
            self._held_out.append((detached, labels.long().cpu()))

    def end(self, split: Split) -> Record:
        """End an epoch's training or validation: solve for gamma or beta if its batches were counted there."""
        tally, sums = self.method.tally, self._sums
        self._validated = self._validated or split == "val"
        record: Record = {}
        if tally is not None and tally.on == split and sums is not None:
            self._sums = None
            record = finish_tally(cast(Model, self), tally, sums, current_world(control=False))
        if split == "val" and self._held_out:
            self._fit_map()
        return record

    def warn_if_unfitted(self, what_to_do: str) -> None:
        """After training: what the method fits on validation batches is as it began if there were none."""
        parts = ["gamma"] if self.method.tally is not None and self.method.tally.on == "val" else []
        parts += ["its post-hoc map"] if "posthoc" in self.method.changes else []
        if parts and not self._validated:
            lacks = f"has seen no validation batch, so nothing has fitted {' and '.join(parts)}"
            warnings.warn(f"`{self.method.name}` {lacks}: {what_to_do}", stacklevel=2)

    def _fit_map(self) -> None:
        """Fit the method's post-hoc map on the validation batches, with the head's weights as they are now."""
        seen, self._held_out = self._held_out, []
        weights, shares = self.head.weights.cpu(), self.head.loss_weights.cpu()
        logits = torch.cat([outputs.logits for outputs, _ in seen], dim=1)
        outputs = replace(seen[0][0], logits=logits, weights=weights, loss_weights=shares)
        spec = self.method.posthoc
        outputs = outputs if spec.reads_branches else Outputs.of(outputs.log_probs())
        fitted = spec.fit(outputs, torch.cat([labels for _, labels in seen]))
        self.slot.posthoc = current_world(control=False).broadcast(fitted).to(self.head.weights.device)

    def described(self) -> dict[str, Any] | None:
        """What is needed to adapt a fresh network in the same way; None for a method that has no name."""
        name = self.method.for_training().name
        try:
            known = registry.method(name)
        except BalcalError:
            return None
        if replace(known, posthoc=self.method.posthoc, name=self.method.name) != self.method:
            return None
        posthoc = posthoc_of(self.method.posthoc)
        return {"method": name, "num_classes": self.num_classes, "path": self.path, "posthoc": posthoc}

    @staticmethod
    def of(
        network: nn.Module, described: Mapping[str, Any], slot: type[ClassifierSlot] = ClassifierSlot
    ) -> AdaptedNetwork:
        """A fresh network adapted as described; its weights are still to be loaded."""
        method, posthoc = registry.method(described["method"]), described["posthoc"]
        if posthoc:
            method = replace(method, posthoc=spec_of(posthoc["name"], posthoc["settings"]))
        with redirect_stderr(io.StringIO()):
            return AdaptedNetwork(network, method, described["num_classes"], described["path"], slot)

    def calibrate(self, log_probs: Tensor, labels: Tensor, method: str = "ts") -> None:
        """Fit a post-hoc method on predictions for held-out data; it is part of the network from now on."""
        held_out = read(None, as_tensor(log_probs).cpu(), labels)
        spec = spec_of(method)
        fitted = spec.fit(Outputs.of(held_out.log_probs()), held_out.labels)
        self.slot.posthoc = fitted.to(self.head.weights.device)
        self.method = replace(self.method, posthoc=spec)

    def state_dict(self) -> dict[str, Any]:
        return self.backbone.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        return self.backbone.load_state_dict(state_dict)
