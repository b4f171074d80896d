"""Kumar, Sarawagi, Jain: Trainable Calibration Measures For Neural Networks From Kernel Mean Embeddings. ICML 2018.

With confidence r = max_k p_k, correctness c (a constant for the gradient) and k(u, v) = exp(-|u - v| / 0.4):

    mmce     L = CE + weight M,  M = mean_ij( (c_i - r_i) (c_j - r_j) k(r_i, r_j) )
    mmce-w   L = CE + weight sqrt(S),  correct (m of them) and wrong (n of them) samples on their own accounts:
             cc = mean over pairs of correct ones of (1 - r_i)(1 - r_j) k,  ww = mean over wrong ones of r_i r_j k,
             cw = mean over mixed pairs of (1 - r_i) r_j k
             S = cc / m^2 + ww / n^2 - 2 cw / (m n)        normalisation=code
             S = cc + ww - 2 cw                            normalisation=single

A batch-level loss: it compares the samples of a batch with each other. With several processes, or with accumulated
batches, each part is compared within itself only, which is another loss than that of the whole batch. On an ETF
classifier with beta = 1 (confidence up to 0.25 for K = 10) it pushes confidence against that ceiling.

Edge cases: `mmce` has none, M >= 0 since the kernel is positive definite. `mmce-w` is cross-entropy where all samples
are correct or all are wrong; S is clamped at 0, below which it can fall by rounding when all confidences are equal.

Paper and released code differ: the paper takes the root of M, the code in use does not (a root has an infinite slope
at 0). For the weighted form the code in use divides means by counts once more (normalisation=code, the default), so
its weights belong to a batch size; 1e-5 is added to counts and 1e-10 under the root. The code gives NaN for a batch
of two that are both right or both wrong, and fails for a batch of one. The BalCAL paper's MMCE, 1.5 on CIFAR-10 and
SVHN and 0.5 on CIFAR-100, is most likely `mmce-w`; in its code 1.5 occurs only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import at_least_float32
from balcal.recipe import Method
from balcal.runtime.values import above, at_least, check_settings


def confidences(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c): confidence and correctness."""
    r, predicted = logits.softmax(1).max(1)
    return r, (predicted == labels).to(r.dtype)


@dataclass(frozen=True)
class Mmce:
    """Cross-entropy plus the kernel distance between confidence and correctness."""

    weight: Annotated[float, at_least(0)] = 1.0
    width: Annotated[float, above(0)] = 0.4

    def __post_init__(self) -> None:
        check_settings(self, "loss")

    def kernel(self, r: Tensor) -> Tensor:
        return (-(r[:, None] - r[None, :]).abs() / self.width).exp()

    def term(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        r, c = confidences(logits, labels)
        apart = c - r if weights is None else (c - r) * weights * (len(r) / weights.sum())
        return apart @ self.kernel(r) @ apart / len(r) ** 2

    def weighted(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """A sample of weight w counts as w samples."""
        z = at_least_float32(logits)
        ce = weights @ F.cross_entropy(z, labels, reduction="none") / weights.sum()
        return ce + self.weight * self.term(z, labels, weights)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        z = at_least_float32(logits)
        return F.cross_entropy(z, labels) + self.weight * self.term(z, labels)


@dataclass(frozen=True)
class MmceWeighted(Mmce):
    """The same with correct and wrong samples normalised apart."""

    weight: Annotated[float, at_least(0)] = 1.5
    normalisation: Literal["code", "single"] = "code"

    def term(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        r, c = confidences(logits, labels)
        w = torch.ones_like(r) if weights is None else weights * ((weights > 0).sum() / weights.sum())
        k, m, n = self.kernel(r), (w * c).sum(), (w * (1 - c)).sum()
        right, wrong = w * c * (1 - r), w * (1 - c) * r
        both = m * n > 0
        m, n = m.clamp(min=1), n.clamp(min=1)
        cc, ww, cw = right @ k @ right / m**2, wrong @ k @ wrong / n**2, right @ k @ wrong / (m * n)
        if self.normalisation == "code":
            cc, ww, cw = cc / (m**2 + 1e-5), ww / (n**2 + 1e-5), cw / (m * n + 1e-5)
        return both * ((cc + ww - 2 * cw).clamp(min=0) + 1e-10).sqrt()


METHODS = {
    m.name: m
    for m in (
        Method(
            "mmce",
            loss=Mmce(),
            about="loss: + kernel calibration error",
            when="To compare with `mmce-w`, which is the form in use.",
            paper="Kumar, Sarawagi, Jain",
            venue="ICML 2018",
            cost="N^2 per batch",
        ),
        Method(
            "mmce-w",
            loss=MmceWeighted(),
            about="loss: + the same, right and wrong apart",
            when="Large batches, and a calibration term in the loss.",
            paper="Kumar, Sarawagi, Jain",
            venue="ICML 2018",
            cost="N^2 per batch",
        ),
    )
}
