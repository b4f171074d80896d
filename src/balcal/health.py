"""Notices bad numbers before they do harm: images, labels and losses that are not what they should be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from balcal.core import BalcalError, check_batch, check_labels


class Health:
    """On a CPU every batch is looked at before it is used. An accelerator only notes what it sees, and is asked later:
    before anything is saved."""

    def __init__(self, device: torch.device, num_classes: int) -> None:
        self.num_classes = num_classes
        self.at_once = device.type == "cpu"
        self.finite = {name: torch.ones((), dtype=torch.bool, device=device) for name in ("images", "loss")}

    def look(self, images: Tensor, labels: Tensor, where: str) -> None:
        """Before the network sees the batch."""
        check_batch(images, labels, where)
        if len(labels) == 0:
            raise BalcalError(f"{where} is empty")
        check_labels(labels, self.num_classes, where)
        if images.is_floating_point():
            total = images.sum()  # finite only if every pixel is, and costs next to nothing
            if not self.at_once:
                self.finite["images"] &= total.isfinite()
            elif not math.isfinite(total):
                spoilt = (~images.isfinite()).flatten(1).any(1).nonzero()
                first = f"image {int(spoilt[0])}" if len(spoilt) else "the sum"
                raise BalcalError(
                    f"{first} of {where} has NaN or infinite values: mend the data, or leave that image out"
                )

    def loss(self, loss: Tensor) -> None:
        """Before the weights are changed."""
        if not self.at_once:
            self.finite["loss"] &= loss.detach().isfinite()
        elif not math.isfinite(loss.detach()):
            self.finite["loss"].fill_(False)
            self.check()

    def check(self) -> None:
        """Nothing is saved that came of bad numbers."""
        if not self.finite["images"]:
            raise BalcalError("some images of this epoch have NaN or infinite values: mend the data, or leave them out")
        if not self.finite["loss"]:
            raise BalcalError(
                "the loss is no longer finite: lower the learning rate (plan.lr) or clip gradients (plan.clip=1)"
            )
