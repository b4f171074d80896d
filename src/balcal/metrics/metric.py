"""The description of a metric: which direction is better, unit, formula and reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """A row of the table that `balcal list metrics` prints."""

    call: Callable[..., Any]
    better: Literal["lower", "higher", "neither"]
    unit: str
    formula: str
    reference: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    """the conventions that the number depends on: bins, edges, norm"""

    @property
    def about(self) -> str:
        """The first sentence of the docstring, less what `better` says."""
        first = " ".join((self.call.__doc__ or "").strip().split("\n\n")[0].split())
        return first.split(" Lower is better")[0].split(" Higher is better")[0]

    def described(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "about": self.about,
            "better": self.better,
            "unit": self.unit,
            "formula": self.formula,
            "reference": self.reference,
            **self.spec,
        }


UNIFORM = {"of": "top label", "bins": 15, "edges": "uniform, (lo, hi], 0 in the first and 1 in the last"}
"""the default bins of this package's metrics"""
