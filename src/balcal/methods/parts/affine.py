"""The problem behind matrix scaling and Dirichlet calibration: an affine map before the softmax, kept near diagonal.

    NLL of softmax(W x + b)  +  penalty * ( sum_{j != k} W_jk^2 / (K (K - 1)) + sum_k b_k^2 / K )

It is convex. The penalty draws off-diagonals and biases to 0; the diagonal is free. Entries of x are closely
correlated, so each row of (W, b) is solved for in coordinates in which its own curvature is one (the Cholesky factor of
its block of the Hessian); without that L-BFGS needs thousands of steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError
from balcal.methods.parts.fitted_map import FittedMap, minimise

PENALTIES = tuple(10.0**e for e in range(5, -5, -1))
"""Tried from strong to weak. The strongest leaves a diagonal and nothing else."""
FOLDS = 3
MOST_CLASSES = 256
"""The curvature has K^3 numbers and W has K^2: beyond this a held-out set is too small to fit them."""


class Affine(FittedMap):
    """log softmax(W x + b), where x are the scores as they come."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight=weight, bias=bias)

    @classmethod
    def identity(cls, num_classes: int) -> Affine:
        return cls(torch.eye(num_classes), torch.zeros(num_classes))

    @staticmethod
    def features(scores: Tensor) -> Tensor:
        return scores

    def calibrated(self, scores: Tensor) -> Tensor:
        return F.linear(self.features(scores), self.weight.to(scores), self.bias.to(scores)).log_softmax(-1)


class AffineProblem:
    """One data set's problem. V (K, K+1) is W with b as its last column; `scale` is the diagonal to start from."""

    def __init__(self, x: Tensor, labels: Tensor, scale: float) -> None:
        n, k = x.shape
        self.labels, self.x = labels, torch.cat([x, x.new_ones(n, 1)], 1)
        self.start = scale * torch.eye(k, k + 1, dtype=x.dtype)
        p = (scale * x).softmax(1)
        h = p * (1 - p) + 1e-6  # above 0 also where the network is certain
        self.curvature = torch.stack([(self.x * h[:, [j]]).T @ self.x for j in range(k)]) / n
        self.curvature.diagonal(dim1=1, dim2=2).mul_(1 + 1e-9)

    def nll(self, v: Tensor) -> float:
        return float(F.cross_entropy(self.x @ v.T, self.labels))

    def solve(self, penalty: float, start: Tensor, who: str, small: float = 1e-7) -> Tensor:
        n, k = len(self.x), len(start)
        price = torch.full_like(start, penalty / (k * (k - 1)))
        price[:, k] = penalty / k
        price.diagonal().zero_()
        root, failed = torch.linalg.cholesky_ex(self.curvature + torch.diag_embed(2 * price))
        if bool(failed.any()):
            raise BalcalError(f"the scores are too alike, or too large, for `{who}` to be fitted: use `ts`")

        def natural(u: Tensor) -> Tensor:
            return _solve(root.mT, u, upper=True)

        def objective(u: Tensor) -> tuple[Tensor, Tensor]:
            v = natural(u)
            log_p = (self.x @ v.T).log_softmax(1)
            value = F.nll_loss(log_p, self.labels) + (price * v * v).sum()
            miss = log_p.exp_()
            miss[torch.arange(n), self.labels] -= 1
            slope = miss.T @ self.x / n + 2 * price * v
            return value, _solve(root, slope, upper=False)

        return natural(minimise(objective, (root.mT @ start[..., None])[..., 0], who, small=small))


def _solve(triangles: Tensor, rows: Tensor, upper: bool) -> Tensor:
    """One triangular system (D, D) for each row (D,)."""
    solved: Tensor = torch.linalg.solve_triangular(triangles, rows[..., None], upper=upper)
    return solved[..., 0]


def choose_penalty(x: Tensor, labels: Tensor, scale: float, who: str) -> float:
    """The penalty of lowest NLL on left-out thirds of the set.

    Samples are dealt to the thirds in order of class and of the label's score, so that the thirds are alike and the
    order in which samples came does not matter. The search ends when two weaker penalties in a row did worse.
    """
    own = x.gather(1, labels[:, None])[:, 0]
    fold = torch.empty_like(labels)
    order = torch.from_numpy(np.lexsort([*x.T.numpy(), own.numpy(), labels.numpy()]))
    fold[order] = torch.arange(len(labels)) % FOLDS
    parts = [AffineProblem(x[fold != f], labels[fold != f], scale) for f in range(FOLDS)]
    ahead = [(x[fold == f], labels[fold == f]) for f in range(FOLDS)]
    found = [part.start for part in parts]
    score: dict[float, float] = {}
    for penalty in PENALTIES:
        found = [part.solve(penalty, v, who, small=1e-4) for part, v in zip(parts, found, strict=True)]
        score[penalty] = sum(
            float(F.cross_entropy(z @ v[:, :-1].T + v[:, -1], y, reduction="sum"))
            for (z, y), v in zip(ahead, found, strict=True)
        )
        if min(list(score.values())[-2:]) > min(score.values()):
            break
    return min(score, key=lambda penalty: score[penalty])


def fit_affine(x: Tensor, labels: Tensor, scale: float, penalty: float | None, who: str) -> tuple[Tensor, Tensor]:
    """(W, b), with the penalty given or, if None, chosen by cross-validation."""
    k = x.shape[1]
    if k > MOST_CLASSES:
        raise BalcalError(
            f"`{who}` would have to fit {k * (k + 1)} numbers for {k} classes, and takes at most {MOST_CLASSES}: "
            "use `vs` or `ts`"
        )
    if penalty is None:
        penalty = choose_penalty(x, labels, scale, who)
    problem = AffineProblem(x, labels, scale)
    v = problem.solve(penalty, problem.start, who)
    return v[:, :-1], v[:, -1]
