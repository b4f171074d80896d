"""A Lightning callback that trains any LightningModule with a linear classifier by a method of ours.

    Trainer(callbacks=[Calibrated("balcal-auto")]).fit(module, train_loader, val_loader)

The module's own `training_step` runs with its logging; its loss is replaced by the method's. Its logits become
calibrated log-probabilities. Methods that solve for gamma on the validation split use the module's validation batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from balcal.adapters.classifier_slot import AdaptedNetwork
from balcal.core import BalcalError
from balcal.recipe import Method

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError:
    raise BalcalError("Lightning is not installed: pip install 'balcal[lightning]'") from None


class Calibrated(Callback):
    """The callback.

    `network` names the submodule that ends in the classifier; by default, it is the module as a whole. `labels` is
    where a batch has its labels: a place in (x, y, ...), or a key.
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
            part = pl_module.get_submodule(self.network) if self.network else pl_module
            self.adapted = AdaptedNetwork(part, self.method, self.num_classes)
            vars(pl_module)["training_step"] = self._around(pl_module.training_step)

    def _around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """The module's step with the method's loss. `wraps` keeps the signature, which Lightning reads."""

        @wraps(own)
        def step(batch: Any, *more: Any, **named: Any) -> Any:
            result = own(batch, *more, **named)
            loss = self._adapted.loss(batch[self.labels])
            return {**result, "loss": loss} if isinstance(result, dict) else loss

        return step

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
            self._adapted.count(batch[self.labels])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log(pl_module, self._adapted.end("val"))

    def _log(self, pl_module: LightningModule, record: dict[str, Any]) -> None:
        if "gamma" in record:
            pl_module.log("gamma", record["gamma"])
