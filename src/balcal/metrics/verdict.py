"""One look at predictions: are they right, and do they know how often?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from balcal.core import Predictions
from balcal.metrics.calibration import ece, mean_confidence, over_confidence, under_confidence
from balcal.metrics.scoring import accuracy, brier, nll


@dataclass(frozen=True)
class Verdict:
    """The figures of a set of predictions, as fractions; printed in percent."""

    samples: int
    accuracy: float
    nll: float
    brier: float
    ece: float
    """15 uniform bins (lo, hi], L1, top label"""
    mean_confidence: float
    over: float
    """part of `ece` where confidence exceeds accuracy"""
    under: float

    def sentence(self) -> str:
        gap = self.mean_confidence - self.accuracy
        if gap == 0:
            return "on average as confident as it is right"
        return f"{'over' if gap > 0 else 'under'}-confident by {abs(gap):.2%} on average"

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.samples} samples: accuracy {self.accuracy:.2%}, mean confidence {self.mean_confidence:.2%}: "
            f"{self.sentence()}\n"
            f"ECE {self.ece:.2%} (15 bins; over {self.over:.2%}, under {self.under:.2%}), "
            f"NLL {self.nll:.4f}, Brier {self.brier:.4f}"
        )


def verdict(predictions: Predictions) -> Verdict:
    """Judge predictions.

    >>> import torch
    >>> print(verdict(Predictions(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log(), torch.tensor([0, 1]))))
    2 samples: accuracy 50.00%, mean confidence 85.00%: over-confident by 35.00% on average
    ECE 45.00% (15 bins; over 40.00%, under 5.00%), NLL 0.8574, Brier 0.6500
    """
    log_probs, labels = predictions.log_probs, predictions.labels
    return Verdict(
        samples=len(predictions),
        accuracy=accuracy(log_probs=log_probs, labels=labels),
        nll=nll(log_probs=log_probs, labels=labels),
        brier=brier(log_probs=log_probs, labels=labels),
        ece=ece(log_probs=log_probs, labels=labels),
        mean_confidence=mean_confidence(log_probs=log_probs, labels=labels),
        over=over_confidence(log_probs=log_probs, labels=labels),
        under=under_confidence(log_probs=log_probs, labels=labels),
    )
