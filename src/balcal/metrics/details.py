"""More about a verdict: tests of perfect calibration with p-values, and what NLL and Brier score are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from balcal.metrics.decomposition import Decomposition, decompose
from balcal.metrics.inputs import Rows
from balcal.metrics.significance import CalibrationTest, tests_of

FOLDS = 5


@dataclass(frozen=True)
class Details:
    """What `verdict(details=True)` adds."""

    spiegelhalter: CalibrationTest
    """the Brier score against the one that the probabilities promise, over all classes"""
    ks: CalibrationTest
    kuiper: CalibrationTest
    decomposition: Decomposition | None
    """none, if there are fewer than two samples for each fold"""

    @staticmethod
    def of_rows(rows: Rows, recalibrate: Any = None) -> Details:
        parts = decompose(rows, recalibrate, FOLDS) if len(rows) >= 2 * FOLDS else None
        return Details(**tests_of(rows), decomposition=parts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: None stands for it."""
        fields = asdict(self)
        if math.isinf(self.spiegelhalter.statistic):
            fields["spiegelhalter"]["statistic"] = None
        return fields | {"decomposition": self.decomposition and self.decomposition.as_dict()}

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Details:
        """From what `as_dict` returned, also if it was stored as JSON in between."""
        tests = {name: CalibrationTest.of(fields[name]) for name in ("spiegelhalter", "ks", "kuiper")}
        parts = fields["decomposition"]
        return Details(**tests, decomposition=None if parts is None else Decomposition.of(parts))

    def lines(self) -> list[str]:
        """For the terminal."""
        z = self.spiegelhalter
        found = [
            "perfectly calibrated? p-values:",
            f"  Spiegelhalter {p_value(z.p)} (z {z.statistic:+.2f}), KS {p_value(self.ks.p)}, "
            f"Kuiper {p_value(self.kuiper.p)}",
        ]
        if self.decomposition is not None:
            found += ["what the scores are made of:", *(f"  {line}" for line in str(self.decomposition).split("\n"))]
        return found


def p_value(p: float) -> str:
    """Two digits that matter, and no more than can be believed.

    >>> p_value(0.4321), p_value(0.0123), p_value(1e-9)
    ('0.43', '0.012', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"
