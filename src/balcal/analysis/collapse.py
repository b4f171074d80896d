"""Geometry of classifiers: neural collapse, and distances between the two classifiers of BalCAL.

`collapse`: Papyan, Han, Donoho: Prevalence of Neural Collapse during the terminal phase of deep learning training.
PNAS 2020. With class means mu_k, their mean mu_G, centred means m_k = mu_k - mu_G as rows of M, and a classifier's
weights W:

    NC1  variability   tr(S_W S_B^+) / K,  S_W = mean over classes of the class's covariance, S_B = M^T M / K
    NC2  norms         deviation over mean of the |m_k|, and of the |w_k|
         angles        mean over pairs of |cos(m_k, m_l) + 1/(K-1)|, and of the same for w
    NC3  duality       | W / |W| - M / |M| |^2, Frobenius norms
    NC4  nearest mean  share of images that the classifier does not put into the class of the nearest mu_k

All are 0 at collapse. They are measured on training images without augmentation, in eval mode. Classes have equal
weights, however many images they have; mu_G is the mean of the class means, as in the BalCAL paper. No D x D matrix is
ever made.

`prototype_distances`: the BalCAL paper draws "cosine and L2 distances between classifier prototypes" and does not
define them. Here a prototype is a classifier's weight vector of a class: w_k, and column k of beta M. The first is
applied before the adapter, the second behind it:

    A(z) = P z + (the rest),    <A(z), beta m_k> = <z, P^T beta m_k> + ...

So the second is carried back by P, the adapter's linear path (the identity where D' = D), and both are compared as
vectors that are multiplied with the same feature z:

    cosine = mean_k( 1 - cos(w_k, P^T beta m_k) ),    l2 = mean_k | w_k - P^T beta m_k |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from balcal.analysis.features import Reading
from balcal.core import BalcalError, Head
from balcal.methods.balcal import BalancedHead

TINY = 1e-10
"""singular values below this share of the largest count as 0: the rows of M sum to zero, so one always is"""


@dataclass(frozen=True)
class Collapse:
    """Distance from collapse by each condition; 0 is collapse."""

    nc1: float
    nc2_norms: float
    nc2_angles: float
    nc2_norms_weights: float
    nc2_angles_weights: float
    nc3: float
    nc4: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def collapse(reading: Reading, labels: Tensor) -> Collapse:
    """Measure the four conditions for one classifier."""
    features, weight = reading.features.double(), reading.weight.double()
    num_classes = len(weight)
    counts = labels.bincount(minlength=num_classes)
    if bool((counts == 0).any()):
        raise BalcalError(f"class {int(counts.argmin())} has no image here: collapse is measured over all classes")
    means = torch.zeros(num_classes, features.shape[1], dtype=torch.float64)
    means.index_add_(0, labels, features).div_(counts[:, None])
    centred = means - means.mean(0)
    nearest = torch.cdist(features, means).argmin(1)
    angles, angles_weights = _angles(centred), _angles(weight)
    return Collapse(
        nc1=_variability(features - means[labels], centred, counts[labels]),
        nc2_norms=_variation(centred),
        nc2_angles=angles,
        nc2_norms_weights=_variation(weight),
        nc2_angles_weights=angles_weights,
        nc3=float((weight / weight.norm() - centred / centred.norm()).square().sum()),
        nc4=float((reading.logits().argmax(1) != nearest).double().mean()),
    )


def _variability(deviations: Tensor, centred: Tensor, class_size: Tensor) -> float:
    """S_B^+ = K M^+ M^+^T, so tr(S_W S_B^+) / K = the sum of (deviation M^+)^2 / n_k, over K."""
    projected = deviations @ torch.linalg.pinv(centred, rtol=TINY)
    return float((projected.square().sum(1) / class_size).sum() / len(centred))


def _variation(vectors: Tensor) -> float:
    norms = vectors.norm(dim=1)
    return float(norms.std(correction=0) / norms.mean())


def _angles(vectors: Tensor) -> float:
    unit = F.normalize(vectors, dim=1)
    off = (unit @ unit.T + 1 / (len(vectors) - 1)).abs()
    return float((off.sum() - off.diagonal().sum()) / (len(vectors) * (len(vectors) - 1)))


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
    """Distances between the prototypes of a head's two classifiers, mean over classes."""
    if not isinstance(head, BalancedHead):
        raise BalcalError(f"only a head with two classifiers has prototypes to compare, not a {type(head).__name__}")
    carried = head.beta * head.etf.T
    linear = head.adapter.linear_path
    if isinstance(linear, nn.Linear):
        carried = carried @ linear.weight
    if carried.shape != head.classifier.weight.shape:
        raise BalcalError("the two classifiers read features of different widths: there is nothing to compare")
    return distances(head.classifier.weight.cpu(), carried.cpu())
