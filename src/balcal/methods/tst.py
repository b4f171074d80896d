"""Jordahn, Olmos: Decoupling Feature Extraction and Classification Layers for Calibrated Neural Networks. ICML 2024.

Two stages. The first is plain training: the run of `vanilla`, which `tst` and `vtst` share. The second drops its
classifier, freezes the backbone and trains a new head from scratch, with 3Z and Z units and Z = 128:

    tst:   z = W3 h + b3,  h = W2 relu(W1 f + b1) + b2                                   (no activation between h and z)
    vtst:  h = mu + sigma eps,  eps ~ N(0, I),  mu as h above,  log sigma^2 = logsigmoid(W5 relu(W4 f + b4) + b5)
           L = Loss(z, y) + KL,  KL = mean_i( -1/2 sum_k( 1 + log sigma_k^2 - mu_k^2 - sigma_k^2 ) ) / Z

`vtst` draws one eps per image in training. In use it fuses the probabilities of S = 10 draws that were made once and
are in the checkpoint: the same image gets the same prediction, and post-hoc methods act on the log of the mean.

Frozen means no gradient: BatchNorm statistics of the backbone keep moving. freeze_bn=true puts it in eval mode, so that
neither they nor dropout disturb the features. The loss of the second stage may be any other (`tst+fl`). How many
epochs it has is for the task to say; `--set plan.epochs=` changes both stages, `--set parent.plan.epochs=` the first.

Paper and released code differ: both stages keep the epoch with the best validation loss, on which, the authors say,
their printed algorithm is wrong and the code right; for `vtst` that loss includes the KL in the code, here it is the
NLL of the prediction as for every method. Their evaluation draws a single eps by default, anew each time, and their
temperature scaling divides probabilities. Z is 128 in the BalCAL paper, 10 in its script, 256 in the authors' example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BeforeEpoch, Classifier, Head, HeadSpec, Outputs, at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings


def narrowing(features: int, latent: int) -> nn.Sequential:
    """D -> 3Z -> Z"""
    return nn.Sequential(nn.Linear(features, 3 * latent), nn.ReLU(), nn.Linear(3 * latent, latent))


def mean_kl(mu: Tensor, log_var: Tensor) -> Tensor:
    """How far N(mu, sigma^2) is from N(0, 1), on average over samples and dimensions.

    >>> float(mean_kl(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 2)))
    1.0
    """
    return -0.5 * (1 + log_var - mu.square() - log_var.exp()).mean()


class TwoStageHead(Head):
    """A deeper classifier: one branch."""

    def __init__(self, features: int, num_classes: int, latent: int) -> None:
        super().__init__([1.0])
        self.mean = narrowing(features, latent)
        self.classifier = nn.Linear(latent, num_classes)

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        return self.outputs(self.classifier(self.mean(features)))


class VariationalHead(Head):
    """One branch per draw: a fresh one for each image in training, the same few for all images in use."""

    draws: Tensor

    def __init__(self, features: int, num_classes: int, latent: int, samples: int) -> None:
        super().__init__([1 / samples] * samples)
        self.mean = narrowing(features, latent)
        self.spread = narrowing(features, latent)
        self.classifier = nn.Linear(latent, num_classes)
        self.register_buffer("draws", torch.randn(samples, latent))

    def forward(self, features: Tensor, feature_map: Tensor | None) -> Outputs:
        mu, log_var = self.mean(features), F.logsigmoid(self.spread(features))
        eps = torch.randn_like(mu)[None] if self.training else self.draws[:, None]
        logits = at_least_float32(self.classifier(mu + (0.5 * log_var).exp() * eps))
        shares = torch.ones_like(self.weights[:1]) if self.training else self.weights
        return Outputs(logits, shares, shares, self.fusion, mean_kl(mu, log_var))


@dataclass(frozen=True)
class TwoStage(HeadSpec):
    """The head of the second stage; a classifier that was there before is dropped."""

    latent: Annotated[int, at_least(1, most=100_000)] = 128

    def __post_init__(self) -> None:
        check_settings(self, "head")

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        return TwoStageHead(features, num_classes, self.latent)


@dataclass(frozen=True)
class Variational(TwoStage):
    """The same with a Gaussian in the middle."""

    samples: Annotated[int, at_least(1, most=10_000)] = 10

    def __call__(
        self, features: int, num_classes: int, learnable: nn.Linear | None = None, channels: int | None = None
    ) -> Head:
        return VariationalHead(features, num_classes, self.latent, self.samples)


@dataclass(frozen=True)
class FrozenBody(BeforeEpoch):
    """Only the head is trained. `freeze_bn`: the backbone is in eval mode, so BatchNorm statistics stay too."""

    freeze_bn: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "before_epoch")

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> None:
        for weight in model.backbone.parameters():
            weight.requires_grad_(False)
            weight.grad = None
        if self.freeze_bn:
            model.backbone.eval()


METHODS = {
    m.name: m
    for m in (
        Method(
            "tst",
            head=TwoStage(),
            before_epoch=FrozenBody(),
            parent="vanilla",
            about="after vanilla: a new, deeper head on a frozen backbone",
            when="A trained backbone that is over-confident because of its classifier.",
            paper="Jordahn, Olmos",
            venue="ICML 2024",
            cost="epochs of the head alone",
        ),
        Method(
            "vtst",
            head=Variational(),
            before_epoch=FrozenBody(),
            parent="vanilla",
            about="after vanilla: a variational head on a frozen backbone",
            when="As `tst`, with an estimate that averages over ten draws of the features.",
            paper="Jordahn, Olmos",
            venue="ICML 2024",
            cost="epochs of the head alone",
        ),
    )
}
