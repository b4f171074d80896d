"""Accuracy, proper scores, entropy, and the distance to soft labels."""

from __future__ import annotations

from typing import Any

import torch

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, Floats, zeros
from balcal.metrics.inputs import Rows, first_largest, read, read_unlabelled
from balcal.metrics.metric import Metric, by_name
from balcal.metrics.reading import read_weights
from balcal.runtime.values import as_tensor


@by_name
def accuracy(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """Share of samples whose most probable class is the label. Higher is better.

    >>> accuracy(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])
    0.5
    """
    rows = read(probs, log_probs, labels, sample_weight)
    hits = torch.cat([(first_largest(given) == y).cpu() for given, _, y in rows.pieces()])
    return int(hits.sum()) / len(rows) if rows.weights is None else rows.mean(hits)


@by_name
def nll(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """mean(-log p_label), in nats. Lower is better; infinite if a label was given probability 0.

    >>> round(nll(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1]), 6)
    0.490415
    """
    rows = read(probs, log_probs, labels, sample_weight)
    return rows.mean(losses(rows))


@by_name
def brier(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """mean over samples of sum_k (p_k - 1[k = label])^2, from 0 to 2. Lower is better.

    >>> brier(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    0.25
    """
    rows = read(probs, log_probs, labels, sample_weight)
    return rows.mean(squares(rows))


@by_name
def brier_per_class(*, probs: Any = None, log_probs: Any = None, labels: Any, sample_weight: Any = None) -> float:
    """The Brier score divided by the number of classes, as some code reports it. Lower is better.

    >>> brier_per_class(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    0.125
    """
    rows = read(probs, log_probs, labels, sample_weight)
    return rows.mean(squares(rows)) / rows.num_classes


@by_name
def entropy(*, probs: Any = None, log_probs: Any = None, labels: Any = None, sample_weight: Any = None) -> float:
    """Mean entropy of the predictions, in nats: 0 for certainty, log K for no idea. Labels do not matter.

    >>> round(entropy(probs=[[0.5, 0.5], [1.0, 0.0]]), 6)  # (log 2 + 0) / 2
    0.346574
    """
    if labels is None:
        rows = read_unlabelled(probs, log_probs, sample_weight)
    else:
        rows = read(probs, log_probs, labels, sample_weight)
    return rows.mean(entropies(rows))


@by_name
def soft_nll(*, probs: Any = None, log_probs: Any = None, soft_labels: Any, sample_weight: Any = None) -> float:
    """Cross-entropy from soft labels, such as the votes of many people: mean of -sum_k q_k log p_k. Lower is better.

    Votes may be counts: rows of `soft_labels` are divided by their sum.

    >>> round(soft_nll(probs=[[0.5, 0.5]], soft_labels=[[3, 1]]), 6)  # log 2
    0.693147
    """
    rows, q = _soft(probs, log_probs, soft_labels)
    return _soft_mean(rows, sample_weight, [torch.where(p > 0, -p * log_p, 0.0) for p, log_p in _with_logs(rows, q)])


@by_name
def soft_kl(*, probs: Any = None, log_probs: Any = None, soft_labels: Any, sample_weight: Any = None) -> float:
    """Divergence of the predictions from soft labels: mean of sum_k q_k log(q_k / p_k), in nats. Lower is better.

    >>> soft_kl(probs=[[0.75, 0.25]], soft_labels=[[3, 1]])
    0.0
    """
    rows, q = _soft(probs, log_probs, soft_labels)
    terms = [torch.where(p > 0, p * (p.log() - log_p), 0.0) for p, log_p in _with_logs(rows, q)]
    return max(0.0, _soft_mean(rows, sample_weight, terms))


def losses(rows: Rows) -> torch.Tensor:
    """-log p_label of each sample, float64 on the CPU. A probability that rounding put above 1 counts as 1."""
    parts = []
    for _, whole, labels in rows.pieces():
        value = whole.gather(1, labels[:, None])[:, 0].double()
        parts.append((value if rows.logs else value.log()).clamp(max=0).neg().cpu())
    return torch.cat(parts) + 0.0  # no -0


def squares(rows: Rows) -> torch.Tensor:
    """The Brier score of each sample: sum_k p_k^2 - 2 p_label + 1."""
    parts = []
    for _, probs, labels in rows.chunks():
        wide = probs.double()
        parts.append((wide.square().sum(1) - 2 * wide.gather(1, labels[:, None])[:, 0] + 1).cpu())
    return torch.cat(parts).clamp(min=0)


def per_sample_scores(rows: Rows) -> dict[str, Floats]:
    """NLL and Brier score of each sample."""
    return {"nll": losses(rows).numpy(), "brier": squares(rows).numpy()}


def entropies(rows: Rows) -> torch.Tensor:
    """The entropy of each prediction. 0 log 0 is 0."""
    parts = []
    for given, probs, _ in rows.chunks():
        terms = probs * given.to(probs.dtype).clamp(min=-1e4) if rows.logs else torch.xlogy(probs, probs)
        parts.append(-terms.sum(1, dtype=torch.float64).cpu())
    return torch.cat(parts).clamp(min=0)


def _soft(probs: Any, log_probs: Any, soft_labels: Any) -> tuple[Rows, torch.Tensor]:
    rows = read_unlabelled(probs, log_probs)
    q = as_tensor(soft_labels, "the soft labels").to(rows.table.device).double()
    if rows.num_classes == 2 and (q.ndim == 1 or q.shape[1:] == (1,)):
        q = torch.stack([1 - q.reshape(-1), q.reshape(-1)], 1)
    if q.shape != rows.table.shape:
        raise BalcalError(
            f"soft labels must be (N, K) like the predictions {tuple(rows.table.shape)}: {tuple(q.shape)}"
        )
    if not bool((q >= 0).all()) or not bool((q.sum(1) > 0).all()) or not bool(q.sum(1).isfinite().all()):
        raise BalcalError("soft labels must be votes or probabilities: finite, nothing negative, no row without any")
    return rows, q / q.sum(1, keepdim=True)


def _soft_mean(rows: Rows, sample_weight: Any, terms: list[torch.Tensor]) -> float:
    weights = read_weights(sample_weight, len(rows))
    if weights is None:
        return sum(float(part.sum()) for part in terms) / len(rows)
    values, kept = torch.cat([part.sum(1).cpu() for part in terms]), weights > 0
    return float((values[kept] * weights[kept]).sum() / weights.sum())


def _with_logs(rows: Rows, q: torch.Tensor) -> Any:
    start = 0
    for given, probs, labels in rows.chunks():
        log_p = (given.double() if rows.logs else probs.double().log()).clamp(max=0)
        yield q[start : start + len(labels)], log_p
        start += len(labels)


class ScoreSums(Accumulator):
    """Accuracy, NLL, Brier score, entropy and mean confidence, from six numbers.

    >>> meter = ScoreSums()
    >>> meter.update(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    >>> meter.compute()["brier"]
    0.25
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums = {name: zeros(1) for name in ("count", "accuracy", "nll", "brier", "entropy", "mean_confidence")}

    def add_rows(self, rows: Rows) -> None:
        top = rows.top()
        new = {
            "count": torch.ones(len(rows)),
            "accuracy": top.right,
            "nll": losses(rows),
            "brier": squares(rows),
            "entropy": entropies(rows),
            "mean_confidence": top.conf,
        }
        for name, values in new.items():
            self.sums[name] += (values.double() if rows.weights is None else values.double() * rows.weights).sum()

    def compute(self) -> dict[str, float]:
        count = self.checked_count()
        return {name: float(total) / count for name, total in self.sums.items() if name != "count"}


_BRIER = "Brier, Monthly Weather Review 1950"

METRICS = {
    "accuracy": Metric(accuracy, "higher", "fraction", "1/N sum_i 1[argmax p_i = y_i]", "", {"ties": "first class"}),
    "nll": Metric(nll, "lower", "nats", "-1/N sum_i log p_i,y_i", "Good, J. Royal Stat. Soc. B 1952", {"clipping": 0}),
    "brier": Metric(brier, "lower", "score, 0 to 2", "1/N sum_i sum_k (p_ik - 1[k = y_i])^2", _BRIER),
    "brier_per_class": Metric(brier_per_class, "lower", "score, 0 to 2/K", "brier / K", _BRIER),
    "entropy": Metric(entropy, "neither", "nats", "-1/N sum_i sum_k p_ik log p_ik", "Shannon 1948"),
    "soft_nll": Metric(
        soft_nll, "lower", "nats", "-1/N sum_i sum_k q_ik log p_ik", "Peterson et al., ICCV 2019 (CIFAR-10H)"
    ),
    "soft_kl": Metric(
        soft_kl, "lower", "nats", "1/N sum_i sum_k q_ik log(q_ik / p_ik)", "Peterson et al., ICCV 2019 (CIFAR-10H)"
    ),
}
