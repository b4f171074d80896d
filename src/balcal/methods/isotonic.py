"""Zadrozny, Elkan: Transforming Classifier Scores into Accurate Multiclass Probability Estimates. KDD 2002.
Zhang, Kailkhura, Han: Mix-n-Match. ICML 2020 (the pooled form, IRM).

    f = argmin over increasing f of sum ( f(p_ik) - 1[k = y_i] )^2

`isotonic` pools all N x K entries into one f, so the order of the classes stays; ties are broken by + 1e-9 p.
`isotonic-ovr` has one f_k for each class (IROVA) and may change the predicted class. Between the fitted points f is
linear, beyond them it is flat, and it is kept between 1/(2n) and 1 - 1/(2n), where n is the number of entries it was
fitted on (see `Piecewise`). Rows are then divided by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from balcal.core import Outputs, PostHoc
from balcal.methods.parts.fitted_map import Piecewise
from balcal.methods.parts.held_out import check_held_out
from balcal.recipe import Method
from balcal.runtime.values import check_settings


def increasing(p: Tensor, right: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The points (x, y) of the best increasing function, x rising.

    >>> increasing(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0]))[1].tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(
        p.numpy(), right.numpy(), None if weights is None else weights.numpy()
    )
    return torch.as_tensor(fitted.X_thresholds_), torch.as_tensor(fitted.y_thresholds_)


def pieces(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Edges, and left, height, slope of the pieces: flat, then from point to point, then flat.

    To have `count` points, the last piece is repeated behind edges that no probability passes.
    """
    more = count - len(x)
    edges, left, slope = pad(x, (0, more), value=2.0), pad(x[:-1], (1, 1 + more)), y.diff() / x.diff()
    return edges, left, torch.cat([y[:1], y[:-1], y[-1:].expand(1 + more)]), pad(slope, (1, 1 + more))


@dataclass(frozen=True)
class IsotonicCalibration(PostHoc):
    """One increasing function for all classes together, or (`pooled` False) one for each."""

    pooled: bool = True

    def __post_init__(self) -> None:
        check_settings(self, "posthoc")

    def identity(self, num_classes: int) -> nn.Module:
        return Piecewise.identity(1 if self.pooled else num_classes)

    def fit(
        self, outputs: Outputs, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> nn.Module:
        who, each_class = ("isotonic", "") if self.pooled else ("isotonic-ovr", "function")
        held_out = check_held_out(outputs, labels, who, weights, groups, each_class=each_class)
        p, k, w = held_out.scores.softmax(1), held_out.classes, held_out.weights
        right = nn.functional.one_hot(held_out.labels, k).to(p)
        if self.pooled:
            points, entries = [increasing(p.flatten(), right.flatten(), w.repeat_interleave(k))], held_out.size * k
        else:
            points, entries = [increasing(*column, w) for column in zip(p.T, right.T, strict=True)], held_out.size
        count = max(len(x) for x, _ in points)
        edges, left, height, slope = map(torch.stack, zip(*(pieces(x, v, count) for x, v in points), strict=True))
        return Piecewise(edges, left, height, slope, floor=1 / (2 * max(entries, 1)))


METHODS = {
    "isotonic": Method(
        "isotonic",
        posthoc=IsotonicCalibration(),
        about="one increasing map of all probabilities",
        when="Thousands of held-out samples, errors of any shape, and the predicted class must stay.",
        paper="Zhang, Kailkhura, Han",
        venue="ICML 2020",
        cost="one fit after training",
    ),
    "isotonic-ovr": Method(
        "isotonic-ovr",
        posthoc=IsotonicCalibration(pooled=False),
        about="an increasing map for each class",
        when="Thousands of held-out samples of each class. The predicted class may change.",
        paper="Zadrozny, Elkan",
        venue="KDD 2002",
        cost="one fit after training",
    ),
}
