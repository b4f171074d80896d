"""Who takes part in an arena, as recipes: methods, seeds, settings, and searches over settings.

Each method becomes one training method and its entries, with and without temperature scaling. A search tries several
values of a setting and takes the one with the lowest validation NLL.
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
from balcal.methods.joining import members
from balcal.recipe import Method, Recipe

SCALED = "ts"
REFERENCE = "vanilla+ts"
CHOSEN_BY = "mean over seeds of the validation NLL of the chosen epoch"
Settings = tuple[str, ...]
"""as in `--set`"""


@dataclass(frozen=True)
class Search:
    """A setting and the values to try.

    >>> Search("head.delta", ("0.91", "0.93")) == Search.of("head.delta=0.91,0.93")
    True
    """

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


def grid(searches: Iterable[Search]) -> list[Settings]:
    """All combinations, as settings; one empty one if nothing is searched.

    >>> grid([Search("a.b", ("1", "2")), Search("c.d", ("3",))])
    [('a.b=1', 'c.d=3'), ('a.b=2', 'c.d=3')]
    """
    return list(product(*([f"{search.path}={value}" for value in search.values] for search in searches)))


def choose(method: str, tried: Mapping[Settings, Sequence[float | None]]) -> dict[str, Any]:
    """The record of a search; `chosen` is None if no candidate has all its seeds.

    >>> choose("m", {("a=1",): [0.5, 0.3], ("a=2",): [0.2, None], ("a=3",): [0.3, 0.4]})["chosen"]
    ['a=3']
    """
    means = {key: mean(v for v in values if v is not None) for key, values in tried.items() if None not in values}
    chosen = min(means, key=lambda key: means[key]) if means else None
    return {
        "method": method,
        "by": CHOSEN_BY,
        "tried": [
            {"settings": list(key), "val_nll": list(values), "mean": means.get(key)} for key, values in tried.items()
        ],
        "chosen": None if chosen is None else list(chosen),
    }


@dataclass(frozen=True)
class Contender:
    """A training method and its entries."""

    method: str
    tried: tuple[Settings, ...]
    """settings that a search tries; one empty one, if nothing is searched"""
    entries: tuple[str, ...]
    searched: bool


@dataclass(frozen=True)
class Contest:
    """Everything that an arena was asked for, checked."""

    task: str
    seeds: tuple[int, ...]
    settings: Settings
    contenders: tuple[Contender, ...]

    @property
    def entries(self) -> list[str]:
        return [entry for contender in self.contenders for entry in contender.entries]

    def recipe(self, entry: str, seed: int, tried: Settings = ()) -> Recipe:
        """The recipe of an entry, with those settings that it has."""
        plain = registry.recipe(self.task, entry, seed)
        fitting = [text for text in (*self.settings, *tried) if registry.has_setting(plain, path_of(text))]
        return registry.recipe(self.task, entry, seed, fitting)

    def trainings(self) -> list[Recipe]:
        """Every run that is needed, each once, seed by seed; parents included."""
        needed: dict[str, Recipe] = {}
        for seed in self.seeds:
            for contender in self.contenders:
                for tried in contender.tried:
                    for recipe in lineage(self.recipe(contender.method, seed, tried)):
                        needed.setdefault(recipe.address(), recipe)
        return list(needed.values())


def contest(
    task: str, methods: Sequence[str], seeds: Iterable[int], settings: Iterable[str], searches: Sequence[Search]
) -> Contest:
    """Check names and settings before anything is trained; each setting must belong to at least one method."""
    if not methods:
        raise BalcalError("an arena needs at least one method: see `balcal list methods`")
    seeds, settings = tuple(dict.fromkeys(seeds)), tuple(text.strip() for text in settings)
    if not seeds:
        raise BalcalError("an arena needs at least one seed")
    grouped: dict[str, list[str]] = {}
    for name in methods:
        method = registry.method(name)
        own, trained = entry_name(method), method.for_training().name
        grouped.setdefault(trained, [])
        grouped[trained] += [own] if "posthoc" in method.changes else [own, f"{own}+{SCALED}"]
    plain = {name: registry.recipe(task, name, seeds[0]) for name in grouped}
    contenders = []
    for name, entries in grouped.items():
        mine = [search for search in searches if registry.has_setting(plain[name], search.path)]
        contenders.append(Contender(name, tuple(grid(mine)), tuple(dict.fromkeys(entries)), bool(mine)))
    made = Contest(task, seeds, settings, tuple(contenders))
    recipes = [registry.recipe(task, entry, seeds[0]) for entry in made.entries]
    for path in (*map(path_of, settings), *(search.path for search in searches)):
        if not any(registry.has_setting(each, path) for each in recipes):
            raise BalcalError(f"none of {', '.join(methods)} has a setting `{path}`: leave it out")
    for contender in made.contenders:
        for tried in contender.tried:
            for entry in contender.entries:
                made.recipe(entry, seeds[0], tried)
    return made


def entry_name(method: Method) -> str:
    """The method's name in full, as runs have it: `ts` is `vanilla+ts`.

    >>> entry_name(registry.method("ts")), entry_name(registry.method("fl+balcal"))
    ('vanilla+ts', 'fl+balcal')
    """
    trained = method.for_training()
    later = dict.fromkeys(name for role, name in method.changes.items() if role not in trained.changes)
    return "+".join([trained.name, *later])


def needed(recipe: Recipe) -> tuple[Recipe, ...]:
    """The runs that must be there before: the parent, or those that are joined."""
    return members(recipe) or ((recipe.parent,) if recipe.parent else ())


def lineage(recipe: Recipe) -> Iterator[Recipe]:
    """The runs behind a recipe: its parents, the first one first, those that it joins, then itself."""
    for before in needed(recipe):
        yield from lineage(before)
    yield recipe.for_training()


def trainings(recipe: Recipe) -> int:
    """How many trainings a recipe takes.

    >>> [trainings(registry.recipe("digits", name)) for name in ("vanilla", "3*vanilla+ts", "2*tst", "snapshots")]
    [1, 3, 4, 1]
    """
    return len({run.address() for run in lineage(recipe) if run.method.join is None})


def path_of(setting: str) -> str:
    path, equals, _ = setting.partition("=")
    if not equals:
        raise BalcalError(f"`{setting}` is not a setting: write it as name.field=value")
    return path.strip()
