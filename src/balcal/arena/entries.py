"""Choosing a setting on the validation split: what is tried, and which of it has the lowest validation NLL.

Who takes part: methods, seeds, settings and searches as recipes; which runs they need, and in which order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

from balcal import registry
from balcal.core import BalcalError
from balcal.recipe import Method, Recipe

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


SCALED = "ts"
REFERENCE = "vanilla+ts"
Settings = tuple[str, ...]


@dataclass(frozen=True)
class Contender:
    """A training method with what is tried of it (one thing, if nothing is searched), and the entries made of it."""

    method: str
    tried: tuple[Settings, ...]
    entries: tuple[str, ...]
    searched: bool


@dataclass(frozen=True)
class Contest:
    task: str
    seeds: tuple[int, ...]
    settings: Settings
    contenders: tuple[Contender, ...]

    @property
    def entries(self) -> list[str]:
        return [entry for contender in self.contenders for entry in contender.entries]

    def recipe(self, entry: str, seed: int, tried: Settings = ()) -> Recipe:
        """What an entry stands for: with those settings that it has."""
        plain = registry.recipe(self.task, entry, seed)
        fitting = [text for text in (*self.settings, *tried) if registry.has_setting(plain, path_of(text))]
        return registry.recipe(self.task, entry, seed, fitting)

    def trainings(self) -> list[Recipe]:
        """Every run that is needed, each once, seed by seed; those that others start from as well."""
        needed: dict[str, Recipe] = {}
        for seed in self.seeds:
            for contender in self.contenders:
                for tried in contender.tried:
                    for asked in line_of(self.recipe(contender.method, seed, tried)):
                        needed.setdefault(asked.address(), asked)
        return list(needed.values())


def contest(
    task: str, methods: Sequence[str], seeds: Iterable[int], settings: Iterable[str], searches: Sequence[Search]
) -> Contest:
    """Checked in full before anything is trained: names, settings, and that somebody has each setting."""
    if not methods:
        raise BalcalError("an arena needs at least one method: see `balcal list methods`")
    seeds, settings = tuple(dict.fromkeys(seeds)), tuple(text.strip() for text in settings)
    if not seeds:
        raise BalcalError("an arena needs at least one seed")
    grouped: dict[str, list[str]] = {}
    for name in methods:
        asked = registry.method(name)
        trained = asked.for_training()
        own = entry_name(asked)
        grouped.setdefault(trained.name, [])
        grouped[trained.name] += [own] if "posthoc" in asked.changes else [own, f"{own}+{SCALED}"]
    plain = {name: registry.recipe(task, name, seeds[0]) for name in grouped}
    contenders = []
    for name, entries in grouped.items():
        mine = [search for search in searches if registry.has_setting(plain[name], search.path)]
        contenders.append(Contender(name, tuple(grid(mine)), tuple(dict.fromkeys(entries)), bool(mine)))
    made = Contest(task, seeds, settings, tuple(contenders))
    judged = [registry.recipe(task, entry, seeds[0]) for entry in made.entries]
    for path in (*map(path_of, settings), *(search.path for search in searches)):
        if not any(registry.has_setting(each, path) for each in judged):
            raise BalcalError(f"none of {', '.join(methods)} has a setting `{path}`: leave it out")
    for contender in made.contenders:
        for tried in contender.tried:
            for entry in contender.entries:
                made.recipe(entry, seeds[0], tried)
    return made


def entry_name(method: Method) -> str:
    """As runs are called: `ts` is `vanilla+ts`.

    >>> entry_name(registry.method("ts")), entry_name(registry.method("fl+balcal"))
    ('vanilla+ts', 'fl+balcal')
    """
    trained = method.for_training()
    later = dict.fromkeys(name for role, name in method.changes.items() if role not in trained.changes)
    return "+".join([trained.name, *later])


def line_of(recipe: Recipe) -> Iterator[Recipe]:
    """The training runs behind a recipe, the first one first."""
    if recipe.parent:
        yield from line_of(recipe.parent)
    yield recipe.for_training()


def path_of(setting: str) -> str:
    path, equals, _ = setting.partition("=")
    if not equals:
        raise BalcalError(f"`{setting}` is not a setting: write it as name.field=value")
    return path.strip()


def waves(recipes: Iterable[Recipe]) -> list[list[Recipe]]:
    """So that nothing begins before the run that it starts from is there."""
    sorted_in: dict[int, list[Recipe]] = {}
    for recipe in recipes:
        sorted_in.setdefault(len(list(line_of(recipe))), []).append(recipe)
    return [sorted_in[depth] for depth in sorted(sorted_in)]
