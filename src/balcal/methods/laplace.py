"""Daxberger, Kristiadi, Immer, Eschenhagen, Bauer, Hennig: Laplace Redux. NeurIPS 2021.

The last layer's weights W get a normal distribution around what training found; all others stay as they are. With the
features f of an image, and a 1 for the bias:

    H = sum over training images of Lambda (x) f f^T,   Lambda = diag(p) - p p^T      (`full`: Gauss-Newton)
    H = 1/N (sum Lambda) (x) (sum f f^T)                                              (`kron`: Kronecker-factored)
    V = (f (x) I)^T (H + delta I)^-1 (f (x) I)                                        covariance of the logits z
    p = softmax(z_k / sqrt(1 + pi/8 V_kk))                                            (`probit`)
    p = mean of softmax(z + noise of covariance V)                                    (`samples`, the same for all)

delta, the prior precision, has the lowest NLL on held-out images (`prior=nll`), or the highest marginal likelihood of
the training images (`prior=marginal`: MacKay's equation sum h/(h + delta) = delta |W|^2 over eigenvalues h of H). The
second trusts that training images show how sure to be, which a network that knows them by heart does not.

It needs a linear classifier and the training images, once. Where logits of two classifiers are fused (`balcal-auto`),
z is their sum, and f is multiplied by gamma, the share of the learnable one. Far from all training images V grows, so
confidence falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor, nn

from balcal.core import BalcalError, Head, Outputs, PostHoc
from balcal.methods.parts.fitted_map import PositiveMap
from balcal.methods.parts.held_out import check_held_out
from balcal.recipe import Method
from balcal.runtime.values import above, at_least, check_settings

LARGEST = 3000
"""weights of a last layer whose full Gauss-Newton matrix is inverted"""
PRECISIONS = (-6.0, 8.0)
"""log10 of the smallest and of the largest prior precision that is tried"""


class LaplaceMap(PositiveMap):
    """Logits and features in; log-probabilities of the last layer's predictive distribution out."""

    prior_precision: Tensor
    draws: Tensor
    basis: Tensor
    turn: Tensor
    variances: Tensor
    sigma: Tensor
    names: ClassVar[tuple[str, ...]] = ("draws", "basis", "turn", "variances", "sigma")

    def __init__(self, precision: float = math.nan, **state: Tensor) -> None:
        super().__init__()
        self.register_buffer("prior_precision", torch.tensor(precision, dtype=torch.float64))
        for name in self.names:
            self.register_buffer(name, state.get(name, torch.zeros(0)).double().contiguous())

    def forward(self, outputs: Outputs) -> Tensor:
        if not self.basis.numel() and not self.sigma.numel():
            return outputs.log_probs()
        if outputs.features is None:
            raise BalcalError("`laplace` needs the features of each image, not only its prediction: give it a model")
        f = outputs.features.to(self.prior_precision.dtype)
        f = jacobian(outputs, f.shape[1] < max(self.basis.shape[0], self.sigma.shape[-1])).to(f.dtype)
        z = fused(outputs).to(f.dtype)
        if not self.draws.numel():
            found = probit(z, self.spread(f))
        else:
            noise = torch.einsum("sk,nkl->snl", self.draws, self.root(f).mT)
            found = (z + noise).log_softmax(-1).logsumexp(0) - math.log(len(self.draws))
        return found.to(outputs.logits.dtype)

    def spread(self, f: Tensor) -> Tensor:
        """(N, K) variances of the logits."""
        if self.sigma.numel():
            blocks = self.sigma.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
            return torch.einsum("nd,kde,ne->nk", f, blocks, f)
        return (f @ self.basis).square() @ self.variances @ self.turn.square().T

    def root(self, f: Tensor) -> Tensor:
        """(N, K, K): R with R R^T = V."""
        if self.sigma.numel():
            root: Tensor = torch.linalg.cholesky(torch.einsum("nd,klde,ne->nkl", f, self.sigma, f))
            return root
        return self.turn * ((f @ self.basis).square() @ self.variances).sqrt()[:, None, :]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.names:
            if (new := state_dict.get(prefix + name)) is not None:
                self._buffers[name] = self.get_buffer(name).new_empty(new.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"prior_precision={float(self.prior_precision):.4g}"


def probit(logits: Tensor, variances: Tensor) -> Tensor:
    """Log-probabilities of the mean over normal logits, by MacKay's approximation.

    >>> probit(torch.tensor([[2.0, 0.0]]), torch.tensor([[24 / torch.pi, 0.0]])).exp()
    tensor([[0.7311, 0.2689]])
    """
    return (logits / (1 + math.pi / 8 * variances).sqrt()).log_softmax(-1)


def fused(outputs: Outputs) -> Tensor:
    """(N, K) logits; the sum over branches, where logits are fused."""
    return torch.einsum("b,bnk->nk", outputs.weights, outputs.logits)


def jacobian(outputs: Outputs, biased: bool) -> Tensor:
    """(N, D): what a weight of the classifier, the first branch, is multiplied by in a fused logit."""
    assert outputs.features is not None
    f = nn.functional.pad(outputs.features, (0, 1), value=1.0) if biased else outputs.features
    return f * outputs.weights[0]


@dataclass(frozen=True)
class Laplace(PostHoc):
    """A normal distribution over the last layer's weights."""

    reads_features: ClassVar[bool] = True
    hessian: Literal["kron", "full"] = "kron"
    prior: Literal["nll", "marginal"] = "nll"
    predictive: Literal["probit", "samples"] = "probit"
    samples: Annotated[int, at_least(2)] = 100
    precision: Annotated[float | None, above(0, "be above 0, or none")] = None
    """the prior precision; none: as `prior` says"""

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return LaplaceMap()

    def learn(self, head: Head, outputs: Outputs, labels: Tensor) -> PostHoc:
        layer = getattr(head, "classifier", None)
        if not isinstance(layer, nn.Linear) or (len(head.weights) > 1 and head.fusion != "logits"):
            raise BalcalError(
                "`laplace` needs a network with a linear classifier, and fused logits if there is another one: use "
                "`ts`, or `balcal-auto`; fit it to models before joining them"
            )
        f, z = jacobian(outputs, layer.bias is not None).double(), fused(outputs).double()
        size = sum(float(each.detach().double().square().sum()) for each in layer.parameters())
        likelihood = z.log_softmax(1).gather(1, labels[:, None]).sum()
        return LearnedLaplace(self, self._eigen(f, z.softmax(1)), size, float(likelihood))

    def _eigen(self, f: Tensor, p: Tensor) -> Eigen:
        n, k = p.shape
        if self.hessian == "kron":
            a, basis = torch.linalg.eigh(f.T @ f)
            b, turn = torch.linalg.eigh((p.sum(0).diag() - p.T @ p) / n)
            return Eigen(a.clamp(min=0)[:, None] * b.clamp(min=0), basis, turn, k)
        if (size := k * f.shape[1]) > LARGEST:
            raise BalcalError(
                f"the full matrix of {size:,} last-layer weights is too large, {LARGEST:,} at most: use hessian=kron"
            )
        whole = f.new_zeros(k, f.shape[1], k, f.shape[1])
        for i in range(k):
            for j in range(i + 1):
                shares = p[:, i] * ((1.0 if i == j else 0.0) - p[:, j])
                whole[i, :, j] = whole[j, :, i] = (f * shares[:, None]).T @ f
        h, basis = torch.linalg.eigh(whole.reshape(size, size))
        return Eigen(h.clamp(min=0), basis, None, k)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        raise BalcalError(
            "`laplace` needs a network and its training data, not only predictions: give it a model and train_loader="
        )


@dataclass(frozen=True, eq=False)
class Eigen:
    """The Gauss-Newton matrix by its eigenvalues: (D, K) with bases of both factors, or (D * K,) with one basis."""

    values: Tensor
    basis: Tensor
    turn: Tensor | None
    classes: int

    def state(self, precision: float) -> dict[str, Tensor]:
        """Of a `LaplaceMap` with this prior precision."""
        inverse = 1 / (self.values + precision)
        if self.turn is not None:
            return {"basis": self.basis, "turn": self.turn, "variances": inverse}
        sigma = (self.basis * inverse) @ self.basis.T
        return {"sigma": sigma.reshape(self.classes, -1, self.classes, len(sigma) // self.classes).transpose(1, 2)}


@dataclass(frozen=True, eq=False)
class LearnedLaplace(PostHoc):
    """`Laplace` of one network: what is left is to choose the prior precision."""

    reads_features: ClassVar[bool] = True
    spec: Laplace
    eigen: Eigen
    size: float
    """squared norm of the last layer's weights"""
    likelihood: float
    """log-likelihood of the training labels"""

    def identity(self, num_classes: int) -> nn.Module:
        return self.spec.identity(num_classes)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        held_out = check_held_out(outputs, labels, "laplace", weights, groups)
        if len(held_out.labels) < outputs.logits.shape[1]:
            raise BalcalError("`laplace` takes no sample of weight 0: leave those samples out")

        def nll(log_precision: float) -> float:
            log_probs = self.map(10**log_precision)(outputs).double()
            return -float((held_out.shares * log_probs.gather(1, held_out.labels[:, None])[:, 0]).sum())

        if self.spec.precision is not None:
            return self.map(self.spec.precision)
        return self.map(self.by_marginal() if self.spec.prior == "marginal" else 10 ** lowest(nll, *PRECISIONS))

    def map(self, precision: float) -> LaplaceMap:
        state = self.eigen.state(precision)
        if self.spec.predictive == "samples":
            rng = torch.Generator().manual_seed(0)
            classes = self.eigen.classes
            state["draws"] = torch.randn(self.spec.samples, classes, generator=rng, dtype=torch.float64)
        return LaplaceMap(precision, **state)

    def by_marginal(self) -> float:
        """The prior precision of highest marginal likelihood: its slope in delta has one sign change."""
        h = self.eigen.values.flatten()

        def slope(log_precision: float) -> float:
            precision = 10**log_precision
            return precision * self.size - float((h / (h + precision)).sum())

        low, high = PRECISIONS
        if slope(low) >= 0 or slope(high) <= 0:
            return float(10 ** (low if slope(low) >= 0 else high))
        return float(10 ** brentq(slope, low, high, xtol=1e-10))

    def log_marginal(self, precision: float) -> float:
        """Log of the training labels' probability, averaged over the prior, by Laplace's approximation."""
        ratio = float(torch.log1p(self.eigen.values / precision).sum())
        return self.likelihood - (ratio + precision * self.size) / 2


def lowest(value: Callable[[float], float], low: float, high: float, points: int = 29) -> float:
    """Where a function is lowest: on a grid, then between the neighbours of the best point.

    >>> round(lowest(lambda x: (x - 1.234) ** 2, -6.0, 8.0), 4)
    1.234
    """
    step = (high - low) / (points - 1)
    best = min((low + step * number for number in range(points)), key=value)
    ends = max(low, best - step), min(high, best + step)
    found = float(minimize_scalar(value, bounds=ends, method="bounded", options={"xatol": 1e-4}).x)
    return min(found, best, key=value)


METHODS = {
    "laplace": Method(
        "laplace",
        posthoc=Laplace(),
        about="a normal distribution over the weights of the last layer",
        when="The model is trained, and confidence should fall away from the training images.",
        paper="Daxberger, Kristiadi, Immer, Eschenhagen, Bauer, Hennig",
        venue="NeurIPS 2021",
        cost="a pass over the training images after training",
    )
}
