"""Choosing a setting on the validation split: what is tried, and which of it has the lowest validation NLL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

from balcal.core import BalcalError

BY = "mean over seeds of the validation NLL of the chosen epoch"


@dataclass(frozen=True)
class Search:
    """A setting and the values to try."""

    path: str
    values: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Search:
        """From the command line; commas inside brackets belong to a value.

        >>> Search.of("head.delta=0.91,0.93")
        Search(path='head.delta', values=('0.91', '0.93'))
        >>> Search.of("plan.milestones=(0.5,0.75),(0.6,)").values
        ('(0.5,0.75)', '(0.6,)')
        """
        path, equals, values = text.partition("=")
        split = tuple(dict.fromkeys(v.strip() for v in re.split(r",(?![^(\[]*[)\]])", values) if v.strip()))
        if not equals or not split:
            raise BalcalError(f"`{text}` is not a search: write it as name.field=value,value,...")
        return Search(path.strip(), split)


def grid(searches: Iterable[Search]) -> list[tuple[str, ...]]:
    """All combinations, as settings; one empty one if nothing is searched.

    >>> grid([Search("a.b", ("1", "2")), Search("c.d", ("3",))])
    [('a.b=1', 'c.d=3'), ('a.b=2', 'c.d=3')]
    """
    return list(product(*([f"{search.path}={value}" for value in search.values] for search in searches)))


def choose(method: str, tried: Mapping[tuple[str, ...], Sequence[float | None]]) -> dict[str, Any]:
    """The record of a search; `chosen` is None if no candidate has all its seeds.

    >>> choose("m", {("a=1",): [0.5, 0.3], ("a=2",): [0.2, None], ("a=3",): [0.3, 0.4]})["chosen"]
    ['a=3']
    """
    means = {key: mean(v for v in values if v is not None) for key, values in tried.items() if None not in values}
    chosen = min(means, key=lambda key: means[key]) if means else None
    return {
        "method": method,
        "by": BY,
        "tried": [
            {"settings": list(key), "val_nll": list(values), "mean": means.get(key)} for key, values in tried.items()
        ],
        "chosen": None if chosen is None else list(chosen),
    }
