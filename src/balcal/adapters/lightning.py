"""A Lightning callback that trains any LightningModule with a linear classifier by a method of ours.

    Trainer(callbacks=[Calibrated("balcal-auto")]).fit(module, train_loader, val_loader)

The module's own `training_step` runs with its logging. The cross-entropy in its loss is replaced by the method's loss;
what it adds to the cross-entropy of its logits is kept. Its logits become calibrated log-probabilities. Methods that
solve for gamma on the validation split use the module's validation batches, and so does a post-hoc map (`vanilla+ts`).
Where this module is imported, `load_from_checkpoint` builds the calibrated classifier before it loads its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch.nn import functional as F

from balcal.adapters.classifier_slot import AdaptedNetwork, DescribedSlot
from balcal.core import BalcalError
from balcal.recipe import Method

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError:
    raise BalcalError("Lightning is not installed: pip install 'balcal[lightning]'") from None


class Calibrated(Callback):
    """The callback for a Trainer: the last layer of its module becomes calibrated, by this `method`.

    `num_classes` is that of the layer, if left out. `network` names the submodule that ends in the classifier; by
    default, it is the module as a whole. `labels` is where a batch has its labels: a place in (x, y, ...), or a key.

    >>> callback = Calibrated("balcal-auto")  # Trainer(callbacks=[callback]).fit(module, train_loader, val_loader)
    >>> callback.method
    'balcal-auto'
    """

    def __init__(
        self,
        method: Method | str = "balcal-auto",
        num_classes: int | None = None,
        network: str | None = None,
        labels: int | str = 1,
    ) -> None:
        self.method, self.num_classes, self.network, self.labels = method, num_classes, network, labels
        self.adapted: AdaptedNetwork | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.adapted is None:
            if not pl_module.automatic_optimization:
                raise BalcalError(
                    "this module optimises by itself (automatic_optimization = False), so its loss cannot be replaced: "
                    "use balcal.wrap and model.loss(x, y) in its training_step"
                )
            part = pl_module.get_submodule(self.network) if self.network else pl_module
            self.adapted = AdaptedNetwork(part, self.method, self.num_classes, slot=DescribedSlot)
            self._describe()
            vars(pl_module)["training_step"] = self._around(pl_module.training_step)

    def _around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """The module's step with the method's loss. `wraps` keeps the signature, which Lightning reads."""

        @wraps(own)
        def step(batch: Any, *more: Any, **named: Any) -> Any:
            result = own(batch, *more, **named)
            labels, log_probs = self._labels(batch), self._adapted.slot.log_probs
            loss = self._adapted.loss(labels)
            given: Any = result["loss"] if isinstance(result, dict) else result
            if given is not None and log_probs is not None:
                extra = given - F.cross_entropy(log_probs, labels.long())
                if float(extra.detach().abs()) > 1e-5 * (1 + float(given.detach().abs())):
                    loss = loss + extra
            return {**result, "loss": loss} if isinstance(result, dict) else loss

        return step

    def _labels(self, batch: Any) -> Any:
        try:
            return batch[self.labels]
        except (KeyError, IndexError, TypeError):
            raise BalcalError(
                f"a batch has no labels at {self.labels!r}: say where they are, Calibrated(method, labels='labels')"
            ) from None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._adapted.warn_if_unfitted("pass a validation loader to trainer.fit")

    def _describe(self) -> None:
        described = self._adapted.described()
        if described is not None and isinstance(self._adapted.slot, DescribedSlot):
            self._adapted.slot.description = described | {"network": self.network or ""}

    @property
    def _adapted(self) -> AdaptedNetwork:
        if self.adapted is None:
            raise BalcalError("this callback has not been set up: give it to a Trainer")
        return self.adapted

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *more: Any) -> None:
        if trainer.is_last_batch:
            self._log(pl_module, self._adapted.end("train"))

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *more: Any
    ) -> None:
        if not trainer.sanity_checking:
            self._adapted.count(self._labels(batch))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log(pl_module, self._adapted.end("val"))

    def _log(self, pl_module: LightningModule, record: dict[str, Any]) -> None:
        if "gamma" in record:
            pl_module.log("gamma", record["gamma"])


_load = LightningModule.load_state_dict


def _adapting_load(self: Any, state_dict: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
    """A module is adapted as its checkpoint was, before the weights are loaded: `load_from_checkpoint` works."""
    for name, described in state_dict.items():
        if name.endswith("._extra_state") and isinstance(described, dict) and "network" in described:
            part = self.get_submodule(described["network"]) if described["network"] else self
            if not any(getattr(module, "takes_a_classifiers_place", False) for module in part.modules()):
                made = AdaptedNetwork.of(part, described, DescribedSlot)
                vars(made.slot)["description"] = described
    return _load(self, state_dict, *rest, **more)


LightningModule.load_state_dict = _adapting_load  # type: ignore[method-assign]
