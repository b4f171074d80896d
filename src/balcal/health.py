"""Notices bad numbers before they do harm: images, labels and losses that are not what they should be."""

from __future__ import annotations

import torch
from torch import Tensor

from balcal.core import BalcalError, check_labels


class Health:
    """Flags live on the device, so that looking costs no waiting; on a CPU they are read after every batch."""

    def __init__(self, device: torch.device, num_classes: int) -> None:
        self.num_classes = num_classes
        self.at_once = device.type == "cpu"
        self.bad_images = torch.zeros((), dtype=torch.bool, device=device)
        self.bad_loss = torch.zeros((), dtype=torch.bool, device=device)

    def look(self, images: Tensor, labels: Tensor, where: str) -> None:
        """Before the network sees the batch."""
        if len(labels) == 0:
            raise BalcalError(f"{where} is empty")
        check_labels(labels, self.num_classes, where)
        if images.is_floating_point():
            self.bad_images |= ~images.isfinite().all()
        if self.at_once and bool(self.bad_images):
            first = int((~images.isfinite()).flatten(1).any(1).nonzero()[0])
            raise BalcalError(
                f"image {first} of {where} has NaN or infinite values: mend the data, or leave that image out"
            )

    def loss(self, loss: Tensor) -> None:
        """Before the weights are changed."""
        self.bad_loss |= ~loss.detach().isfinite()
        if self.at_once:
            self.check()

    def check(self) -> None:
        """Nothing is saved that came of bad numbers."""
        if bool(self.bad_images):
            raise BalcalError("some images of this epoch have NaN or infinite values: mend the data, or leave them out")
        if bool(self.bad_loss):
            raise BalcalError(
                "the loss is no longer finite: lower the learning rate (plan.lr) or clip gradients (plan.clip=1)"
            )
