"""Test-time augmentation, as in Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural
Networks. NeurIPS 2012: the mean of the probabilities over views of each image.

    p(k | x) = mean over views v of p(k | v(x))

Views: the image, the image shifted by one pixel in each direction (its edge is repeated), and, where training flipped
images, the same five flipped. A network that never saw flipped images need not know them, so `views.flip` follows the
task's augmentation unless it is set. Costs a forward pass per view, and no training.

A post-hoc map such as `ts` is fitted to the mean. `balcal.tta` makes such a model of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn.functional import pad

from balcal.core import Views
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class FlipsAndShifts(Views):
    """The images, flipped and shifted."""

    flip: bool | None = None
    """none: if training flipped images"""
    shift: Annotated[int, at_least(0)] = 1
    """pixels; 0: no shifts"""

    def __post_init__(self) -> None:
        check_settings(self, "views")

    def __call__(self, images: Tensor, flipped: bool) -> list[Tensor]:
        """
        >>> import torch
        >>> image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
        >>> [view.flatten().tolist() for view in FlipsAndShifts()(image, flipped=False)][:2]
        [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 1.0, 2.0]]
        >>> len(FlipsAndShifts()(image, flipped=True))
        10
        """
        views, (height, width) = [images], images.shape[-2:]
        if self.shift:
            by = self.shift
            padded = pad(images, (by, by, by, by), mode="replicate")
            for top, left in ((0, by), (2 * by, by), (by, 0), (by, 2 * by)):
                views.append(padded[..., top : top + height, left : left + width])
        if flipped if self.flip is None else self.flip:
            views += [view.flip(-1) for view in views]
        return views


METHODS = {
    "tta": Method(
        "tta",
        views=FlipsAndShifts(),
        about="the mean over shifted and flipped images",
        when="Images that were flipped or shifted in training, and time for several forward passes in use.",
        paper="Krizhevsky, Sutskever, Hinton",
        venue="NeurIPS 2012",
        cost="5 or 10 forward passes in use",
    )
}
