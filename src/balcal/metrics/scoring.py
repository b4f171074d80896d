"""Accuracy, proper scores, entropy, and the distance to soft labels."""

from __future__ import annotations

from typing import Any

import torch

from balcal.core import BalcalError
from balcal.metrics.bins import Accumulator, Floats, zeros
from balcal.metrics.inputs import Rows, first_largest, read, read_unlabelled
from balcal.metrics.metric import Metric
from balcal.runtime.values import as_tensor


def accuracy(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """Share of samples whose most probable class is the label. Higher is better.

    >>> accuracy(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1])
    0.5
    """
    rows = read(probs, log_probs, labels)
    return sum(int((first_largest(given) == y).sum()) for given, _, y in rows.pieces()) / len(rows)


def nll(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """mean(-log p_label), in nats. Lower is better; infinite if a label was given probability 0.

    >>> round(nll(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1]), 6)
    0.490415
    """
    return float(losses(read(probs, log_probs, labels)).mean())


def brier(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """mean over samples of sum_k (p_k - 1[k = label])^2, from 0 to 2. Lower is better.

    >>> brier(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    0.25
    """
    return float(squares(read(probs, log_probs, labels)).mean())


def brier_per_class(*, probs: Any = None, log_probs: Any = None, labels: Any) -> float:
    """The Brier score divided by the number of classes, as some code reports it. Lower is better.

    >>> brier_per_class(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 1])
    0.125
    """
    rows = read(probs, log_probs, labels)
    return float(squares(rows).mean()) / rows.num_classes


def entropy(*, probs: Any = None, log_probs: Any = None, labels: Any = None) -> float:
    """Mean entropy of the predictions, in nats: 0 for certainty, log K for no idea. Labels do not matter.

    >>> round(entropy(probs=[[0.5, 0.5], [1.0, 0.0]]), 6)  # (log 2 + 0) / 2
    0.346574
    """
    rows = read_unlabelled(probs, log_probs) if labels is None else read(probs, log_probs, labels)
    return float(entropies(rows).mean())


def soft_nll(*, probs: Any = None, log_probs: Any = None, soft_labels: Any) -> float:
    """Cross-entropy from soft labels, such as the votes of many people: mean of -sum_k q_k log p_k. Lower is better.

    Votes may be counts: rows of `soft_labels` are divided by their sum.

    >>> round(soft_nll(probs=[[0.5, 0.5]], soft_labels=[[3, 1]]), 6)  # log 2
    0.693147
    """
    rows, q = _soft(probs, log_probs, soft_labels)
    total = 0.0
    for part, log_p in _with_logs(rows, q):
        total -= float(torch.where(part > 0, part * log_p, 0.0).sum())
    return total / len(rows)


def soft_kl(*, probs: Any = None, log_probs: Any = None, soft_labels: Any) -> float:
    """Divergence of the predictions from soft labels: mean of sum_k q_k log(q_k / p_k), in nats. Lower is better.

    >>> soft_kl(probs=[[0.75, 0.25]], soft_labels=[[3, 1]])
    0.0
    """
    rows, q = _soft(probs, log_probs, soft_labels)
    total = 0.0
    for part, log_p in _with_logs(rows, q):
        total += float(torch.where(part > 0, part * (part.log() - log_p), 0.0).sum())
    return max(0.0, total / len(rows))


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
    if q.shape != rows.table.shape:
        raise BalcalError(
            f"soft labels must be (N, K) like the predictions {tuple(rows.table.shape)}: {tuple(q.shape)}"
        )
    if not bool((q >= 0).all()) or not bool((q.sum(1) > 0).all()) or not bool(q.sum(1).isfinite().all()):
        raise BalcalError("soft labels must be votes or probabilities: finite, nothing negative, no row without any")
    return rows, q / q.sum(1, keepdim=True)


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
            self.sums[name] += values.double().sum()

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
