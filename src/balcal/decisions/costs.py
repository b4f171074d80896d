"""What is the cheapest action? Decisions of least expected cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from balcal.core import BalcalError
from balcal.metrics.exact import clopper_pearson
from balcal.metrics.inputs import Rows, read, read_unlabelled
from balcal.metrics.metric import by_name
from balcal.runtime.values import as_tensor, check_number

Floats = NDArray[np.float64]
Z = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Decisions:
    """The cheapest action for each sample, and what it costs. `..._interval` are 95 %.

    >>> print(decide(probs=[[0.95, 0.05], [0.6, 0.4]], costs=[[0, 1], [10, 0]], abstain=0.4))
    2 samples: expected cost 0.4 each, abstains in 100.0%
    """

    actions: NDArray[np.int64]
    """(N,): the column of the cost matrix; the last one, where it is to abstain"""
    expected: Floats
    """(N,): expected cost of each action, if the probabilities are right"""
    expected_cost: float
    realised_cost: float | None = None
    """mean cost with the true labels, where they are known"""
    realised_interval: tuple[float, float] | None = None
    saved: float | None = None
    """mean cost that the probabilities `before=` would have caused, less this one"""
    saved_interval: tuple[float, float] | None = None
    abstained: float | None = None
    """share of samples without an action, where abstaining is one"""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the lists of all samples."""
        return {name: value for name, value in vars(self).items() if name not in ("actions", "expected")} | {
            "samples": len(self.actions)
        }

    def __str__(self) -> str:
        lines = [f"{len(self.actions):,} samples: expected cost {self.expected_cost:.4g} each"]
        if self.abstained is not None:
            lines[0] += f", abstains in {self.abstained:.1%}"
        if self.realised_cost is not None and self.realised_interval is not None:
            low, high = self.realised_interval
            right = "" if low <= self.expected_cost <= high else ": the probabilities misjudge it"
            lines.append(f"  realised cost {self.realised_cost:.4g} [{low:.4g}, {high:.4g}]{right}")
        if self.saved is not None and self.saved_interval is not None:
            low, high = self.saved_interval
            sure = "" if low > 0 or high < 0 else ", no difference that chance does not explain"
            lines.append(f"  saves {self.saved:.4g} [{low:.4g}, {high:.4g}] against the probabilities before{sure}")
        return "\n".join(lines)


@by_name
def decide(
    *,
    probs: Any = None,
    log_probs: Any = None,
    costs: Any,
    labels: Any = None,
    abstain: float | None = None,
    before: Any = None,
) -> Decisions:
    """Choose for each sample the action of least expected cost.

    Parameters
    ----------
    probs, log_probs
        (N, K); one of the two.
    costs
        (K, A): what action `a` costs where the truth is class `k`. With K + 1 columns the last one is to abstain.
    labels
        (N,) class indices, to say what the actions really cost.
    abstain
        What it costs to abstain, whatever the truth is: adds that column.
    before
        (N, K) other probabilities of the same samples, such as those before calibration: says what these cost more.

    Examples
    --------
    To miss class 1 costs ten times as much as a false alarm:

    >>> found = decide(probs=[[0.95, 0.05], [0.85, 0.15]], costs=[[0, 1], [10, 0]])
    >>> found.actions, found.expected
    (array([0, 1]), array([0.5 , 0.85]))
    """
    rows = read_unlabelled(probs, log_probs) if labels is None else read(probs, log_probs, labels)
    table = _costs(costs, rows.num_classes, abstain)
    actions, expected = cheapest(rows, table)
    may_abstain = table.shape[1] == rows.num_classes + 1
    made: dict[str, Any] = {
        "expected_cost": float(expected.mean()),
        "abstained": float((actions == rows.num_classes).mean()) if may_abstain else None,
    }
    if labels is None:
        if before is not None:
            raise BalcalError("to say what the probabilities before would have cost, pass labels= as well")
        return Decisions(actions, expected, **made)
    truth = rows.labels.cpu().numpy()
    paid = table[truth, actions]
    made |= {"realised_cost": float(paid.mean()), "realised_interval": _interval(paid, table.min(), table.max())}
    if before is not None:
        others, _ = cheapest(read(before, None, labels), table)
        if len(others) != len(actions):
            raise BalcalError(
                f"before= has {len(others):,} samples, probs {len(actions):,}: they must be the same ones"
            )
        more = table[truth, others] - paid
        width = float(table.max() - table.min())
        made |= {"saved": float(more.mean()), "saved_interval": _interval(more, -width, width)}
    return Decisions(actions, expected, **made)


def cheapest(rows: Rows, costs: Floats) -> tuple[NDArray[np.int64], Floats]:
    """(action, its expected cost) of each sample; the first of equal ones."""
    actions, least = [], []
    weights = torch.from_numpy(costs)
    for _, probs, _ in rows.chunks():
        expected = probs.cpu().double() @ weights
        best = torch.from_numpy(expected.numpy().argmin(1))
        actions.append(best.numpy())
        least.append(expected.gather(1, best[:, None])[:, 0].numpy())
    return np.concatenate(actions), np.concatenate(least)


def _costs(costs: Any, num_classes: int, abstain: float | None) -> Floats:
    table: Floats = as_tensor(costs, "the costs").cpu().double().numpy()
    if table.ndim != 2 or len(table) != num_classes or table.shape[1] < 1:
        raise BalcalError(
            f"costs must have a row for each of {num_classes} classes and a column for each action, not {table.shape}"
        )
    if not np.isfinite(table).all():
        raise BalcalError("costs must be finite numbers")
    if abstain is None:
        return table
    if table.shape[1] != num_classes:
        raise BalcalError("abstain= adds a column to costs of (K, K): these have other actions, or that column already")
    return np.column_stack([table, np.full(num_classes, check_number(abstain, "abstain"))])


def _interval(values: Floats, least: float, most: float) -> tuple[float, float]:
    """95 % interval of a mean. Where all values are alike, unseen ones may be as low or high as any."""
    n, mean = len(values), float(values.mean())
    half = Z * float(values.std(ddof=1)) / np.sqrt(n) if n > 1 else 0.0
    if half > 0:
        return max(float(least), mean - half), min(float(most), mean + half)
    unseen = clopper_pearson(0, n)[1]
    return mean - unseen * (mean - float(least)), mean + unseen * (float(most) - mean)
