"""A trained network keeps its body; only what stands on it is trained, for a few epochs, in seconds.

That a classifier can be trained after its features, and be better calibrated for it, is the finding of

    Jordahn, Olmos: Decoupling Feature Extraction and Classification Layers for Calibrated Neural Networks. ICML 2024.

Here it serves to give any method's head to a network that is there already: `balcal+retrofit` starts from the run of
`vanilla`, keeps its body and its classifier, and trains classifier, adapter and gamma on

    f_i = body(x_i),  body as in use:  no dropout, BatchNorm by its stored statistics, images not augmented

so that f_i never changes. It is computed once; an epoch costs what the head costs. Of the body no weight and no
statistic changes. Methods that mix images ask the body for every mixture: slower, and otherwise the same.

`--set parent.method=fl` starts from the run of `fl`; `balcal retrofit RUN` from a run by its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from balcal.core import Classifier
from balcal.methods.tst import FrozenBody
from balcal.recipe import Method


@dataclass(frozen=True)
class StillBody:
    """Only the head is trained, on a body that is as in use."""

    still: ClassVar[bool] = True
    """what the body makes of an image stays the same, so that it may be kept"""
    keeps_classifier: ClassVar[bool] = True
    """a classifier of the parent's that fits into the new head goes on from where it was"""

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> None:
        FrozenBody(freeze_bn=True)(model, epoch, epochs)


METHODS = {
    "retrofit": Method(
        "retrofit",
        before_epoch=StillBody(),
        parent="vanilla",
        settings={"task.augment": "none", "plan.epochs": 5, "plan.lr": 1e-3, "plan.schedule": "cosine"},
        about="after vanilla: its body kept still, the head trained on kept features",
        paper="Jordahn, Olmos",
        venue="ICML 2024",
        cost="epochs of the head alone, on kept features",
    )
}
