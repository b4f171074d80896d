"""The verdict on two sets of predictions of the same samples: which is better, and is that more than chance?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from balcal.core import BalcalError, Predictions
from balcal.metrics import bootstrap
from balcal.metrics.bins import Floats, bin_table
from balcal.metrics.bootstrap import Interval
from balcal.metrics.inputs import TopLabels, read_predictions
from balcal.metrics.metric import by_name
from balcal.metrics.scoring import per_sample_scores


@dataclass(frozen=True)
class Comparison:
    """Second model minus first, on the same samples; 95 % intervals from resampling both together.

    >>> better, tie = Interval(-0.02, -0.03, -0.01), Interval(0.0, -0.01, 0.01)
    >>> Comparison(500, accuracy=tie, nll=better, brier=better, ece=tie).sentence()
    'the second against the first: accuracy a tie, NLL better, ECE a tie'
    """

    samples: int
    accuracy: Interval
    nll: Interval
    brier: Interval
    ece: Interval
    bins: int = 15
    names: tuple[str, str] = ("the first", "the second")

    def sentence(self) -> str:
        parts = []
        for title, found, sign in (("accuracy", self.accuracy, 1), ("NLL", self.nll, -1), ("ECE", self.ece, -1)):
            tie = "the same" if found.low == found.high == 0 else "a tie" if found.low <= 0 <= found.high else ""
            parts.append(f"{title} {tie or ('better' if found.value * sign > 0 else 'worse')}")
        return f"{self.names[1]} against {self.names[0]}: " + ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Comparison:
        """From what `as_dict` returned, also if it was stored as JSON in between."""
        try:
            intervals = {name: Interval(**value) for name, value in fields.items() if isinstance(value, dict)}
            return cls(**{**fields, **intervals, "names": tuple(fields["names"])})
        except (TypeError, KeyError, AttributeError):
            raise BalcalError("this is not a comparison as `as_dict` makes it: compare the models again") from None

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples, {self.sentence()}"]
        for name, title in (("accuracy", "accuracy"), ("ece", "ECE"), ("nll", "NLL"), ("brier", "Brier")):
            found: Interval = getattr(self, name)
            scale, digits = (100, 2) if name in ("accuracy", "ece") else (1, 4)
            value, low, high = (f"{x * scale:+.{digits}f}" for x in (found.value, found.low, found.high))
            lines.append(f"  {title:<11}{value:>8}{' %' if scale == 100 else '  '}   [{low}, {high}]")
        return "\n".join(lines)


@by_name
def compare(
    first: Predictions,
    second: Predictions,
    names: tuple[str, str] = ("the first", "the second"),
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    *,
    sample_weight: Any = None,
) -> Comparison:
    """The difference of two models on the same samples, second minus first, by a paired bootstrap.

    Parameters
    ----------
    first, second
        Predictions of the same samples.
    names
        What to call the two models.
    bins, resamples, seed
        Of the bootstrap, and of ECE.
    sample_weight
        (N,): how often each sample counts. Samples are resampled, not copies of them.

    >>> y = torch.tensor([0] * 150 + [1] * 50)
    >>> hot, warm = (Predictions(torch.tensor([[p, 1 - p]] * 200).log(), y) for p in (0.9, 0.76))
    >>> print(compare(hot, warm))
    200 samples, the second against the first: accuracy the same, NLL better, ECE better
      accuracy      +0.00 %   [+0.00, +0.00]
      ECE          -14.00 %   [-17.41, -4.71]
      NLL         -0.0921     [-0.1547, -0.0242]
      Brier       -0.0448     [-0.0784, -0.0084]
    """
    bootstrap.check_resampling(bins, resamples, seed)
    if not isinstance(names, tuple | list) or [type(name) for name in names] != [str, str]:
        raise BalcalError(f"names must be those of the two models, not {names!r:.60}")
    both = [read_predictions(p, sample_weight) for p in (first, second)]
    if not torch.equal(*(rows.labels.cpu() for rows in both)):
        raise BalcalError("these predictions are not of the same samples: their labels differ")
    tops, scores = [rows.top() for rows in both], [per_sample_scores(rows) for rows in both]
    differences = _differences(tops, scores)
    drawn = bootstrap.Resamples(tops, differences, bins, resamples, seed)
    return Comparison(
        samples=len(tops[0]),
        ece=bootstrap.ece_difference_interval(
            [bin_table(top, bins).ece() for top in tops],
            drawn.ece[1] - drawn.ece[0],
            [bootstrap.noise_floor(top, bins, 2 * resamples, seed) for top in tops],
        ),
        bins=bins,
        names=(names[0], names[1]),
        **{
            name: bootstrap.percentile(bootstrap.mean_of(x, tops[0].weights), drawn.means[name])
            for name, x in differences.items()
        },
    )


def _differences(tops: list[TopLabels], scores: list[dict[str, Floats]]) -> dict[str, Floats]:
    """Of each sample, second minus first: NLL, Brier score, and whether it is right."""
    if not all(np.isfinite(x).all() for each in scores for x in each.values()):
        raise BalcalError("a label was given probability 0, its NLL is infinite: there is nothing to subtract")
    first, second = scores
    right = (tops[1].right.double() - tops[0].right.double()).numpy()
    found = {name: second[name] - first[name] for name in first} | {"accuracy": right}
    if len(right) == 1 or (all(x.min() == x.max() for x in found.values()) and any(x[0] for x in found.values())):
        raise BalcalError(
            f"the difference is the same in all of {len(right):,} samples, so resampling cannot say how sure it is: "
            "compare the models on more samples"
        )
    return found
