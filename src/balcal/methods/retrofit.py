"""Freeze the backbone of a trained network and train only the head, for a few epochs, in seconds.

That a classifier can be trained after its features, and be better calibrated for it, is the finding of

    Jordahn, Olmos: Decoupling Feature Extraction and Classification Layers for Calibrated Neural Networks. ICML 2024.

Here it gives any method's head to a trained network: `balcal+retrofit` starts from the run of `vanilla`, keeps its
backbone and its classifier, and trains classifier, adapter and gamma on

    f_i = backbone(x_i)  in eval mode:  no dropout, BatchNorm by its stored statistics, images not augmented

so that f_i never changes. It is computed once; an epoch costs what the head costs. No weight and no statistic of the
backbone changes. Methods that mix images run the backbone for every mixture: slower, with the same result.

`--set parent.method=fl` starts from the run of `fl`; `balcal retrofit RUN` from a run by its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from balcal.core import BeforeEpoch, Classifier
from balcal.methods.tst import FrozenBody
from balcal.recipe import Method


@dataclass(frozen=True)
class StillBody(BeforeEpoch):
    """Only the head is trained, on a backbone in eval mode."""

    still: ClassVar[bool] = True
    keeps_classifier: ClassVar[bool] = True

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> None:
        FrozenBody(freeze_bn=True)(model, epoch, epochs)


METHODS = {
    "retrofit": Method(
        "retrofit",
        before_epoch=StillBody(),
        parent="vanilla",
        settings={"task.augment": "none", "plan.epochs": 5, "plan.lr": 1e-3, "plan.schedule": "cosine"},
        about="after vanilla: its backbone frozen, the head trained on cached features",
        when="The backbone must not change, or training is expensive: it takes seconds.",
        paper="Jordahn, Olmos",
        venue="ICML 2024",
        cost="epochs of the head alone, on cached features",
    )
}
