"""Temperature scaling, and a share of the uniform distribution:

    p = (1 - u) softmax(z / T) + u / K

Zhang, Kailkhura, Han (Mix-n-Match, ICML 2020) have it with a third part, softmax(z): see `ets`. Here T and u have the
lowest NLL on held-out data together. Wrong labels, and errors made at full confidence, cost more than all others; a
temperature alone makes everything less sure for their sake. Where u is no more than every map mixes in, it is `ts`.

Solved by expectation and maximisation: with T and u the label of a sample comes from the network with a probability;
these are the weights with which T is fitted, and their mean is 1 - u.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.held_out import FEW, HeldOut, Prior, check_held_out, in_pieces
from balcal.methods.temperature import Temperature, solve_temperature, tempered
from balcal.recipe import Method
from balcal.runtime.values import check_settings

MOST = 0.5
"""largest share; where labels are nothing but chance, a high temperature says so as well"""
SETTLED = 1e-7
"""change of T, as a share of it, at which the search ends"""
ROUNDS = 100


@dataclass(frozen=True, eq=False)
class Mixture:
    """T, the share of the uniform distribution, and weights (N,): those given, times what comes from the network."""

    temperature: float
    share: float
    weights: Tensor


def label_log_probs(scores: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """(N,): log softmax(scores / T) of each sample's label.

    >>> label_log_probs(torch.tensor([[2.0, 2.0]]), torch.tensor([0]), 1.0).exp()
    tensor([0.5000])
    """
    t = torch.tensor(temperature, dtype=scores.dtype)
    found = torch.empty_like(scores[:, 0])
    for rows, label, out in in_pieces(scores, labels, found):
        z = tempered(rows, t)
        torch.sub(z.gather(1, label[:, None])[:, 0], z.logsumexp(1), out=out)
    return found


def solve_share(log_probs: Tensor, weights: Tensor, classes: int, least: float) -> float:
    """The share u in least .. 0.5 of lowest NLL, from the log-probabilities (N,) of the labels. It is convex in u.

    Nine labels with probability 1, and one with none: the share that explains it.

    >>> log_probs = torch.tensor([0.0] * 9 + [-torch.inf]).double()
    >>> round(solve_share(log_probs, torch.ones(10).double(), classes=5, least=0.0), 6)  # 4/5 of the share is wrong
    0.125
    """
    probs, shares = log_probs.exp(), weights / weights.sum()
    away = 1 / classes - probs

    def slope(u: float) -> float:
        return float(shares @ (away / (probs + u * away).clamp(min=1e-300)))

    if slope(least) <= 0:
        return least
    if slope(MOST) >= 0:
        return MOST
    return float(brentq(slope, least, MOST, xtol=1e-14, rtol=1e-12))


def solve_mixture(held_out: HeldOut, prior: float) -> Mixture:
    """T and share of lowest NLL, from the best T without a share; `prior`: as for `ts`."""
    z, y, w, k = held_out.scores, held_out.labels, held_out.weights, held_out.classes
    alone = temperature = solve_temperature(z, y, w, prior)
    least = held_out.uniform(prior)
    for _ in range(ROUNDS):
        log_probs = label_log_probs(z, y, temperature)
        share = solve_share(log_probs, w, k, least)
        if share == least:
            return Mixture(alone, least, w)
        own = log_probs.exp() * (1 - share)
        kept = w * own / (own + share / k)
        before, temperature = temperature, solve_temperature(z, y, kept, prior)
        if abs(temperature - before) <= SETTLED * before:
            break
    return Mixture(temperature, share, kept)


@dataclass(frozen=True)
class UniformScaling(PostHoc):
    """A temperature and a share of the uniform distribution. `prior`: as for `ts`."""

    prior: Prior = FEW

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Temperature()

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        found = solve_mixture(check_held_out(outputs, labels, "ts-uniform", weights, groups), self.prior)
        return Temperature(found.temperature, found.share)


METHODS = {
    "ts-uniform": Method(
        "ts-uniform",
        posthoc=UniformScaling(),
        about="a temperature, and a share of the uniform distribution",
        when="Some errors are made at full confidence, or some labels are wrong. The predicted class stays.",
        paper="Zhang, Kailkhura, Han",
        venue="ICML 2020",
        cost="a few fits after training",
    )
}
