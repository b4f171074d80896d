"""The problem behind all scalings: an affine map before the softmax, drawn towards a centre.

    mean NLL of softmax(W x + b)  +  sum_jk price_jk (V - centre)_jk^2,     V = (W, b)

It is convex, and solved by Newton's method (`newton.py`): V is a whole matrix, or scales and biases alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from balcal.core import BalcalError
from balcal.methods.parts.fitted_map import FittedMap, minimise
from balcal.methods.parts.held_out import HeldOut, in_pieces, large
from balcal.methods.parts.newton import Change, newton

PENALTIES = tuple(10.0**e for e in range(5, -5, -1))
"""Tried from strong to weak."""
FOLDS = 3
MOST_CLASSES = 256
"""for a matrix whose penalty is searched"""


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


class AffineProblem(ABC):
    """One data set's problem in V (K, D): each class has D numbers, the last of which is its bias."""

    def __init__(self, held_out: HeldOut, x: Tensor, wanted: Tensor, centre: Tensor) -> None:
        self.x, self.shares, self.wanted, self.centre = x, held_out.shares, wanted, centre
        self.probs = large(*held_out.scores.shape)
        """softmax of the last V asked about, each row times its share"""
        first = next(self.pieces())[2]
        self.room, self.more = torch.empty_like(first), torch.empty_like(first)  # freed memory is slow to get again

    @abstractmethod
    def scores(self, x: Tensor, v: Tensor, out: Tensor) -> Tensor:
        """What goes into the softmax (N, K), linear in v."""

    @abstractmethod
    def add(self, total: Tensor, q: Tensor, x: Tensor) -> None:
        """Add the derivatives of the sum of q * scores by each number of V."""

    def pieces(self) -> Iterator[tuple[Tensor, ...]]:
        """(inputs, shares, probabilities) of a few samples at a time."""
        return in_pieces(self.x, self.shares, self.probs)

    def value(self, v: Tensor, price: Tensor) -> tuple[Tensor, Tensor]:
        """The objective and its slope."""
        away = v - self.centre
        value, slope = (price * away.square()).sum() - (v * self.wanted).sum(), 2 * price * away - self.wanted
        for x, shares, p in self.pieces():
            _, total = softmax_in_place(self.scores(x, v, p), shares)
            value += shares @ total
            self.add(slope, p, x)
        return value, slope

    def product(self, direction: Tensor, price: Tensor) -> Tensor:
        """The Hessian, at the V whose value was last asked for, times a direction."""
        found = 2 * price * direction
        for x, shares, p in self.pieces():
            q = self.scores(x, direction, self.room[: len(x)]).mul_(p)
            q.addcmul_(p, (q.sum(1) / shares)[:, None], value=-1)
            self.add(found, q, x)
        return found

    def moments(self) -> tuple[Tensor, Tensor]:
        """(K, D) each: sums of inputs and of their squares, weighted by the curvature of each class's own score."""
        first, second = torch.zeros_like(self.centre), torch.zeros_like(self.centre)
        for x, shares, p in self.pieces():
            h = torch.addcmul(p, p, p / shares[:, None], value=-1)
            h += 1e-6 * shares[:, None]  # above 0 also where the network is certain
            self.add(first, h, x)
            self.add(second, h, x.square())
        return first, second

    def inverse(self, price: Tensor) -> Change:
        """Multiplies with about the inverse of the Hessian.

        The Hessian is mostly that of each class by itself, and inputs vary around a mean. So each class has the square
        of its mean, a matrix of rank one, and the variances of its inputs, a diagonal.
        """
        first, second = self.moments()
        total = first[:, -1:]
        mean = first / total
        own = (second - first * mean).clamp(min=1e-6 * second) + 2 * price
        pull = mean / own
        pulled = pull / (1 / total + (pull * mean).sum(1, keepdim=True))
        return lambda slope: slope / own - pulled * (pull * slope).sum(1, keepdim=True)

    def solve(self, price: Tensor, start: Tensor, who: str, small: float = 1e-7) -> Tensor:
        def objective(v: Tensor) -> tuple[Tensor, Tensor]:
            return self.value(v, price)

        return newton(objective, lambda d: self.product(d, price), lambda: self.inverse(price), start, who, small)


class MatrixProblem(AffineProblem):
    """V (K, K+1) is (W, b)."""

    def __init__(self, held_out: HeldOut, centre: Tensor) -> None:
        x = torch.cat([held_out.scores, torch.ones(len(held_out.scores), 1, dtype=torch.float64)], 1)
        wanted = torch.zeros_like(centre).index_add_(0, held_out.labels, held_out.shares[:, None] * x)
        super().__init__(held_out, x, wanted, centre)

    def scores(self, x: Tensor, v: Tensor, out: Tensor) -> Tensor:
        return torch.mm(x, v.T, out=out)

    def add(self, total: Tensor, q: Tensor, x: Tensor) -> None:
        total.addmm_(q.T, x)


class DiagonalProblem(AffineProblem):
    """V (K, 2): a scale and a bias for each class. Without targets (N, K) these are the labels."""

    def __init__(self, held_out: HeldOut, scale: float, targets: Tensor | None = None) -> None:
        z, shares, labels = held_out.scores, held_out.shares, held_out.labels
        centre = torch.tensor([scale, 0.0], dtype=torch.float64).repeat(held_out.classes, 1)
        if targets is None:
            own = torch.stack([z.gather(1, labels[:, None])[:, 0], torch.ones_like(shares)], 1)
            wanted = torch.zeros_like(centre).index_add_(0, labels, shares[:, None] * own)
        else:
            wanted = torch.stack([shares @ (targets * z), shares @ targets], 1)
        super().__init__(held_out, z, wanted, centre)

    def scores(self, x: Tensor, v: Tensor, out: Tensor) -> Tensor:
        return torch.addcmul(v[:, 1], x, v[:, 0], out=out)

    def add(self, total: Tensor, q: Tensor, x: Tensor) -> None:
        total[:, 0] += torch.mul(q, x, out=self.more[: len(x)]).sum(0)
        total[:, 1] += q.sum(0)

    def solve_within(self, box: float, who: str) -> Tensor:
        """V of lowest NLL, without a price, and with no scale beyond -box .. box."""
        free = torch.zeros_like(self.centre)
        self.value(self.centre, free)
        (by_scale, total), (square, _) = (each.T for each in self.moments())
        mean = by_scale / total
        # Centred where the curvature is, a class's scale and bias do not pull on each other. Both get curvature one.
        unit = torch.stack([square - by_scale * mean + 1e-6, total], 1).rsqrt()

        def natural(u: Tensor) -> Tensor:
            w, a = (u * unit).T
            return torch.stack([w, a - w * mean], 1)

        def objective(u: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = self.value(natural(u), free)
            slope[:, 0] -= mean * slope[:, 1]
            return value, slope * unit

        w, b = self.centre.T
        edges = box * torch.stack([torch.ones_like(mean), 1 + mean.abs()], 1)
        return natural(minimise(objective, torch.stack([w, b + w * mean], 1) / unit, who, edges / unit))


def prices(k: int, diagonal: float, off: float, bias: float) -> Tensor:
    """(K, K+1): what it costs to move a number of V from the centre."""
    price = torch.full((k, k + 1), off, dtype=torch.float64)
    price[:, k] = bias
    price.diagonal().fill_(diagonal)
    return price


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
