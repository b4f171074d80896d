"""How far the two classifiers of BalCAL are from each other: their vectors of each class, compared one by one.

The paper draws "cosine and L2 distances between classifier prototypes" and does not define them. Here a prototype is a
classifier's own vector of a class: w_k, and column k of beta M. The two live before and behind the adapter,

    A(z) = P z + (the rest),    <A(z), beta m_k> = <z, P^T beta m_k> + ...

so the second is carried back by P, the adapter's linear path (the identity where D' = D). Both are then vectors that
the same feature z is held against:

    cosine = mean_k( 1 - cos(w_k, P^T beta m_k) ),    l2 = mean_k | w_k - P^T beta m_k |
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.core import BalcalError, Head
from balcal.methods.balcal import BalancedHead


def distances(first: Tensor, second: Tensor) -> dict[str, float]:
    """Mean distances of the rows of two matrices (K, D).

    >>> distances(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    {'cosine': 1.0, 'l2': 5.0}
    """
    first, second = first.double(), second.double()
    return {
        "cosine": float((1 - F.cosine_similarity(first, second)).mean()),
        "l2": float((first - second).norm(dim=1).mean()),
    }


@torch.no_grad()
def prototype_distances(head: Head) -> dict[str, float]:
    if not isinstance(head, BalancedHead):
        raise BalcalError(f"only a head with two classifiers has prototypes to compare, not a {type(head).__name__}")
    carried = head.beta * head.etf.T
    linear = getattr(head.adapter, "skip", getattr(head.adapter, "widen", None))
    if isinstance(linear, nn.Linear):
        carried = carried @ linear.weight
    if carried.shape != head.classifier.weight.shape:
        raise BalcalError("the two classifiers read features of different widths: there is nothing to compare")
    return distances(head.classifier.weight.cpu(), carried.cpu())
