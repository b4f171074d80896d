"""Lightning: a callback makes any LightningModule that ends in a linear classifier use a method.

    Trainer(callbacks=[Calibrated("balcal-auto")]).fit(module, train_loader, val_loader)

The module's own `training_step` runs as ever, with its logging; its loss is replaced by the method's. Its logits become
calibrated log-probabilities. Methods that balance on validation count the module's validation batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from balcal.adapters.classifier_slot import Seated
from balcal.core import BalcalError
from balcal.recipe import Method

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError:
    raise BalcalError("Lightning is not installed: pip install 'balcal[lightning]'") from None


class Calibrated(Callback):
    """`network` names the part of the module that is the classifier; none: the module as a whole.

    Batches are (x, y, ...), or mappings with the labels under `labels`.
    """

    def __init__(
        self,
        method: Method | str = "balcal-auto",
        num_classes: int | None = None,
        network: str | None = None,
        labels: int | str = 1,
    ) -> None:
        self.method, self.num_classes, self.network, self.labels = method, num_classes, network, labels
        self.seated: Seated | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.seated is None:
            part = pl_module.get_submodule(self.network) if self.network else pl_module
            self.seated = Seated(part, self.method, self.num_classes)
            vars(pl_module)["training_step"] = self._around(pl_module.training_step)

    def _around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """The module's step, then the method's loss in place of its own. Lightning reads the signature: it stays."""

        @wraps(own)
        def step(batch: Any, *more: Any, **named: Any) -> Any:
            told = own(batch, *more, **named)
            loss = self._seated.loss(batch[self.labels])
            return {**told, "loss": loss} if isinstance(told, dict) else loss

        return step

    @property
    def _seated(self) -> Seated:
        if self.seated is None:
            raise BalcalError("this callback has not been set up: give it to a Trainer")
        return self.seated

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *more: Any) -> None:
        if trainer.is_last_batch:
            self._log(pl_module, self._seated.end("train"))

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *more: Any
    ) -> None:
        if not trainer.sanity_checking:
            self._seated.count(batch[self.labels])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._log(pl_module, self._seated.end("val"))

    def _log(self, pl_module: LightningModule, record: dict[str, Any]) -> None:
        if "gamma" in record:
            pl_module.log("gamma", record["gamma"])
