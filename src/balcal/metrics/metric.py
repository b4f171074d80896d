"""The description of a metric: which direction is better, unit, formula and reference; and how it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Literal, ParamSpec, TypeVar

from balcal.core import BalcalError

Given = ParamSpec("Given")
Result = TypeVar("Result")


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


def by_name(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """Refuse arrays that are passed by position, and names that the function does not have, in one sentence.

    Libraries disagree on the order of predictions and labels, so no order is guessed. `n_bins=` stands for `bins=`.
    """
    shape = signature(call)
    known = shape.parameters
    by_position = sum(each.kind is not Parameter.KEYWORD_ONLY for each in known.values())
    name = call.__qualname__.replace(".__init__", "")

    @wraps(call)
    def checked(*args: Given.args, **named: Given.kwargs) -> Result:
        if len(args) > by_position:
            arrays = [each for each in known if each in ("probs", "labels", "soft_labels", "scores_in", "scores_out")]
            raise BalcalError(f"pass arrays by name: {name}({', '.join(f'{each}=...' for each in arrays)})")
        if "n_bins" in named and "bins" in known:
            if "bins" in named:
                raise BalcalError("bins= and n_bins= are two names of one number: pass one of them")
            named["bins"] = named.pop("n_bins")
        unknown = [each for each in named if each not in known]
        if "sample_weight" in unknown and "sample_weight_in" not in known:
            raise BalcalError(f"{name} has no weighted version: leave sample_weight= out")
        if unknown:
            names = ", ".join(f"{each}=" for each in known if each != "self")
            raise BalcalError(f"{name} has no argument `{unknown[0]}=`: it takes {names}")
        return call(*args, **named)

    return checked


def finite_or_none(value: Any) -> Any:
    """For JSON, which has no infinity: None stands for it."""
    if isinstance(value, tuple):
        return tuple(map(finite_or_none, value))
    return None if math.isinf(value) else value


def or_infinite(value: Any) -> Any:
    """The reverse of `finite_or_none`."""
    if isinstance(value, (tuple, list)):
        return tuple(map(or_infinite, value))
    return math.inf if value is None else value
