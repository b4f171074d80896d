"""Ours: gamma of a finished BalCAL model, fitted once more on held-out data.

    gamma = argmin of the NLL of the fused prediction, 0 <= gamma <= 1, or 8 where logits are fused (`balance.shares`)

Training solves gamma for a balance of confidence and accuracy, mostly on training images. Held-out images show better
how far to trust each classifier. The NLL is convex in gamma below 1 and above it.
`--set posthoc.by=balance` solves conf(gamma) = acc(gamma) there instead, as `balcal-auto` does in training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from balcal.core import BalcalError, Outputs, PostHoc
from balcal.methods.parts import gamma_search as balance
from balcal.methods.parts.fitted_map import PositiveMap, mixed
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out
from balcal.recipe import Method
from balcal.runtime.values import check_settings

POINTS = 129
"""candidates for gamma up to 1, and as many above"""


class RefittedGamma(PositiveMap):
    """Both branches fused anew; with the head's own weights until a gamma was fitted."""

    gamma: Tensor

    def __init__(self, gamma: float = float("nan"), uniform: float = 0.0) -> None:
        super().__init__(uniform)
        self.register_buffer("gamma", torch.tensor(gamma))

    def forward(self, outputs: Outputs) -> Tensor:
        fitted = torch.stack([self.gamma, (1 - self.gamma).clamp_min(0)]).to(outputs.weights)
        fused = replace(outputs, weights=torch.where(self.gamma.isnan(), outputs.weights, fitted)).log_probs()
        return mixed(fused, self.uniform)

    def extra_repr(self) -> str:
        return f"gamma={float(self.gamma):.4f}"


@dataclass(frozen=True)
class RefitGamma(PostHoc):
    """Gamma of lowest NLL, or of confidence equal to accuracy, on the validation split.

    `prior` is what the gamma of training weighs, in samples, in a fit by NLL.
    """

    reads_branches: ClassVar[bool] = True
    by: Literal["nll", "balance"] = "nll"
    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return RefittedGamma()

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        if outputs.fusion is None:
            raise BalcalError(
                "`gamma` needs the logits of both classifiers, not only their prediction: give it a model"
            )
        if len(outputs.weights) != 2:
            raise BalcalError("only a model with two classifiers has a gamma: use `ts`, or train with `balcal`")
        held_out = check_held_out(outputs, labels, "gamma", weights, groups)
        wide = replace(outputs, logits=outputs.logits.cpu().double(), weights=outputs.weights.cpu().double())
        if self.by == "nll":
            return RefittedGamma(self._by_nll(wide, held_out), held_out.uniform(self.prior))
        if weights is not None:
            raise BalcalError("a balance of confidence and accuracy takes no sample weights: fit by NLL, `by=nll`")
        return RefittedGamma(self._by_balance(wide, held_out.labels))

    def _by_nll(self, outputs: Outputs, held_out: HeldOut) -> float:
        if len(held_out.labels) < outputs.logits.shape[1]:
            raise BalcalError("`gamma` takes no sample of weight 0: leave those samples out")
        targets = held_out.targets(outputs.log_probs(), self.prior)
        shares = held_out.shares[:, None]

        def nll(gamma: float) -> float:
            weights = torch.tensor(balance.shares(gamma), dtype=torch.float64)
            log_probs = replace(outputs, weights=weights).log_probs()
            return -float((shares * torch.where(targets > 0, targets * log_probs, 0.0)).sum())

        spans = [(0.0, 1.0), (1.0, balance.BOLDEST)] if outputs.fusion == "logits" else [(0.0, 1.0)]
        found = [minimize_scalar(nll, bounds=span, method="bounded", options={"xatol": 1e-10}).x for span in spans]
        return min((*map(float, found), 0.0, 1.0, float(outputs.weights[0])), key=nll)

    def _by_balance(self, outputs: Outputs, labels: Tensor) -> float:
        (standard, etf), logits = outputs.logits, outputs.fusion == "logits"
        sums, bold = (balance.start_sums(POINTS, labels.device) for _ in range(2))
        (balance.add_gamma_logits if logits else balance.add_gamma_probs)(sums, standard, etf, labels)
        tempered = balance.Curve.of(sums, balance.gamma_grid(POINTS, sums["conf"]))
        if not logits:
            return balance.solve_gamma(tempered, delta=1.0).value
        balance.add_scale(bold, standard, labels, balance.bold_grid)
        sharpened = balance.Curve.of(bold, balance.bold_grid(POINTS, bold["conf"]))
        return balance.solve_freely(tempered, sharpened, delta=1.0, samples=len(labels)).value


METHODS = {
    "gamma": Method(
        "gamma",
        posthoc=RefitGamma(),
        about="gamma of a BalCAL model refitted on validation",
        when="A finished BalCAL model whose gamma was solved on training images, and held-out images to correct it.",
        paper="Ours",
        venue="balcal",
        cost="one fit after training",
    )
}
