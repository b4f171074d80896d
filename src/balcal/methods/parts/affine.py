"""The problem behind all scalings: an affine map before the softmax, drawn towards a centre.

    mean NLL of softmax(W x + b)  +  sum_jk price_jk (V - centre)_jk^2,     V = (W, b)

It is convex. `solve_matrix` finds all of V, `solve_diagonal` scales and biases. Entries of x are closely correlated, so
each row of V is solved for in coordinates in which its own curvature is one (the Cholesky factor of its block of the
Hessian); without that L-BFGS needs thousands of steps. With very many classes the prices are high, and the diagonal of
the Hessian does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError
from balcal.methods.parts.fitted_map import FittedMap, minimise
from balcal.methods.parts.held_out import HeldOut, in_pieces

PENALTIES = tuple(10.0**e for e in range(5, -5, -1))
"""Tried from strong to weak."""
FOLDS = 3
BLOCKS = 128
"""most classes for which each row has the Cholesky factor of its curvature: K^3 numbers"""
MOST_CLASSES = 256
"""for a matrix whose penalty is searched"""


Change = Callable[[Tensor], Tensor]
"""of coordinates"""


class Affine(FittedMap):
    """log softmax(W x + b), where x are the scores as they come."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, uniform: float = 0.0) -> None:
        super().__init__(uniform, weight=weight, bias=bias)

    @classmethod
    def identity(cls, num_classes: int) -> Affine:
        return cls(torch.eye(num_classes), torch.zeros(num_classes))

    @staticmethod
    def features(scores: Tensor) -> Tensor:
        return scores

    def calibrated(self, scores: Tensor) -> Tensor:
        return F.linear(self.features(scores), self.weight.to(scores), self.bias.to(scores)).log_softmax(-1)


def softmax_in_place(scores: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(softmax of the scores, each row times its share; log of the sum of their exponentials), with one exponential.

    >>> softmax_in_place(torch.zeros(1, 4), torch.tensor([2.0]))
    (tensor([[0.5000, 0.5000, 0.5000, 0.5000]]), tensor([1.3863]))
    """
    top = scores.amax(1)
    total = scores.sub_(top[:, None]).exp_().sum(1)
    return scores.mul_((shares / total)[:, None]), top + total.log()


class MatrixProblem:
    """One data set's problem in V (K, K+1), whose last column is b. The curvature is taken at `centre`."""

    def __init__(self, held_out: HeldOut, centre: Tensor, blocks: bool | None = None) -> None:
        n, k = held_out.scores.shape
        self.shares, self.centre = held_out.shares, centre
        self.x = torch.cat([held_out.scores, torch.ones(n, 1, dtype=torch.float64)], 1)
        self.wanted = torch.zeros_like(centre).index_add_(0, held_out.labels, self.shares[:, None] * self.x)
        largest, _ = next(in_pieces(self.x, self.shares))
        self.room = torch.empty(len(largest), k, dtype=torch.float64)  # kept: freed memory is slow to get again
        p = (self.x @ centre.T).softmax(1)
        h = (p * (1 - p) + 1e-6) * self.shares[:, None]  # above 0 also where the network is certain
        self.blocks = k <= BLOCKS if blocks is None else blocks
        if self.blocks:
            self.curvature = torch.stack([(self.x * h[:, [j]]).T @ self.x for j in range(k)])
            self.curvature.diagonal(dim1=1, dim2=2).mul_(1 + 1e-9)
        else:
            self.curvature = h.T @ self.x.square()

    def value(self, v: Tensor, price: Tensor) -> tuple[Tensor, Tensor]:
        """The objective and its slope."""
        away = v - self.centre
        value, slope = (price * away.square()).sum() - (v * self.wanted).sum(), 2 * price * away - self.wanted
        for x, shares in in_pieces(self.x, self.shares):
            p, total = softmax_in_place(torch.mm(x, v.T, out=self.room[: len(x)]), shares)
            value += shares @ total
            slope.addmm_(p.T, x)
        return value, slope

    def solve(self, price: Tensor, start: Tensor, who: str, small: float = 1e-7) -> Tensor:
        if not self.blocks:
            unit = (self.curvature + 2 * price).rsqrt()
            return self._minimum(price, start, who, small, lambda u: u * unit, lambda v: v / unit, lambda s: s * unit)
        root, failed = torch.linalg.cholesky_ex(self.curvature + torch.diag_embed(2 * price))
        if bool(failed.any()):
            raise BalcalError(f"the scores are too alike, or too large, for `{who}` to be fitted: use `ts`")
        return self._minimum(
            price,
            start,
            who,
            small,
            lambda u: _solve(root.mT, u, upper=True),
            lambda v: (root.mT @ v[..., None])[..., 0],
            lambda s: _solve(root, s, upper=False),
        )

    def _minimum(
        self, price: Tensor, start: Tensor, who: str, small: float, natural: Change, scaled: Change, steep: Change
    ) -> Tensor:
        def objective(u: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = self.value(natural(u), price)
            return value, steep(slope)

        return natural(minimise(objective, scaled(start), who, small=small))


def _solve(triangles: Tensor, rows: Tensor, upper: bool) -> Tensor:
    """One triangular system (D, D) for each row (D,)."""
    solved: Tensor = torch.linalg.solve_triangular(triangles, rows[..., None], upper=upper)
    return solved[..., 0]


def prices(k: int, diagonal: float, off: float, bias: float) -> Tensor:
    """(K, K+1): what it costs to move a number of V from the centre."""
    price = torch.full((k, k + 1), off, dtype=torch.float64)
    price[:, k] = bias
    price.diagonal().fill_(diagonal)
    return price


def solve_diagonal(
    held_out: HeldOut,
    targets: Tensor,
    scale: float,
    who: str,
    price: float = 0.0,
    box: float = torch.inf,
    small: float = 1e-7,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """(w, b) of lowest NLL of softmax(w * z + b) + price * (|w - scale|^2 + |b|^2), no |w| above the box."""
    z, shares = held_out.scores, held_out.shares[:, None]
    p = (scale * z).softmax(1)
    h = (p * (1 - p) + 1e-6) * shares
    # Centred where the curvature is, a class's scale and bias do not pull on each other; then both get curvature one.
    m = (h * z).sum(0) / h.sum(0)
    c = z - m
    unit = torch.stack([(h * c * c).sum(0) + 1e-6 + 2 * price * (1 + m * m), h.sum(0) + 2 * price]).rsqrt()

    wanted = torch.stack([(shares * targets * c).sum(0), (shares * targets).sum(0)])
    largest, _ = next(in_pieces(c, held_out.shares))
    room = torch.empty_like(largest)

    def objective(u: Tensor) -> tuple[Tensor, Tensor]:
        w, a = u * unit
        value, slope = -(wanted * torch.stack([w, a])).sum(), -wanted
        for rows, share in in_pieces(c, held_out.shares):
            p, total = softmax_in_place(torch.addcmul(a, rows, w, out=room[: len(rows)]), share)
            value += share @ total
            slope[1] += p.sum(0)
            slope[0] += p.mul_(rows).sum(0)
        if price:
            away, b = w - scale, a - w * m
            value = value + price * (away.square() + b.square()).sum()
            slope += 2 * price * torch.stack([away - b * m, b])
        return value, slope * unit

    w, b = (torch.full_like(m, scale), torch.zeros_like(m)) if start is None else start
    edges = torch.stack([torch.full_like(m, box), box * (1 + m.abs())])
    w, a = minimise(objective, torch.stack([w, b + w * m]) / unit, who, edges / unit, small) * unit
    return w, a - w * m


def choose_penalty(held_out: HeldOut, scale: float, who: str) -> float:
    """The penalty of lowest NLL on left-out thirds of the set.

    The search ends when two weaker penalties in a row did worse.
    """
    fold, k = held_out.folds(FOLDS), held_out.classes
    centre = scale * torch.eye(k, k + 1, dtype=torch.float64)
    parts = [MatrixProblem(held_out.at(fold != f), centre) for f in range(FOLDS)]
    ahead = [held_out.at(fold == f) for f in range(FOLDS)]
    found = [centre for _ in parts]
    score: dict[float, float] = {}
    for penalty in PENALTIES:
        price = prices(k, penalty / k, penalty / (k * (k - 1)), penalty / k)
        found = [part.solve(price, v, who, small=1e-4) for part, v in zip(parts, found, strict=True)]
        score[penalty] = sum(
            float(part.weights @ F.cross_entropy(part.scores @ v[:, :-1].T + v[:, -1], part.labels, reduction="none"))
            for part, v in zip(ahead, found, strict=True)
        )
        if min(list(score.values())[-2:]) > min(score.values()):
            break
    return min(score, key=lambda penalty: score[penalty])


def fit_affine(held_out: HeldOut, scale: float, penalty: float | None, who: str) -> tuple[Tensor, Tensor]:
    """(W, b). A penalty that is given leaves the diagonal free, as in the literature; if None, it is chosen by
    cross-validation, and draws the diagonal to `scale` as well: a free one runs away where samples are few."""
    k = held_out.classes
    if k > MOST_CLASSES:
        raise BalcalError(
            f"`{who}` would have to fit {k * (k + 1)} numbers for {k} classes, and takes at most {MOST_CLASSES}: "
            "use `svs` or `ts`"
        )
    chosen = choose_penalty(held_out, scale, who) if penalty is None else penalty
    price = prices(k, chosen / k if penalty is None else 0.0, chosen / (k * (k - 1)), chosen / k)
    centre = scale * torch.eye(k, k + 1, dtype=torch.float64)
    v = MatrixProblem(held_out, centre).solve(price, centre, who)
    return v[:, :-1], v[:, -1]
