"""Lakshminarayanan, Pritzel, Blundell: Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles.
NeurIPS 2017.

    p(k | x) = 1/M sum_m p_m(k | x)

`5*vanilla` joins the runs of five seeds: of the run's own seed and the next four. Runs that exist are found, others
trained. The members' disagreement says what they do not know:

    mutual information = H(1/M sum_m p_m) - 1/M sum_m H(p_m)

A post-hoc map comes after the mean, as in Rahaman, Thiery: Uncertainty Quantification and Deep Ensembles, NeurIPS 2021:
the mean is less confident than its members, so calibrated members give an under-confident mean. `--set
join.posthoc=before` fits each member instead. A map that reads a network's branches or features (`gamma`, `laplace`)
is always fitted to each member.

`snapshots` joins late epochs of one run, as in Huang, Li, Pleiss, Liu, Hopcroft, Weinberger: Snapshot Ensembles: Train
1, get M for free. ICLR 2017; here with the task's own schedule. A run that did not keep these epochs is trained again,
with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from balcal.core import BalcalError, Join, Record
from balcal.recipe import Method, Recipe
from balcal.runtime.values import at_least, check_settings


@dataclass(frozen=True)
class Seeds(Join):
    """The mean over the runs of `members` seeds, the first included."""

    members: Annotated[int, at_least(2)] = 5
    posthoc: Literal["after", "before"] = "after"
    """whether a post-hoc map is fitted to the mean, or to each member before"""
    keep = None

    def __post_init__(self) -> None:
        check_settings(self, "join")

    def seeds(self, seed: int) -> Sequence[int]:
        """
        >>> list(Seeds(3).seeds(7))
        [7, 8, 9]
        """
        return range(seed, seed + self.members)

    def epochs(self, epochs: int) -> Sequence[int] | None:
        return None


@dataclass(frozen=True)
class Snapshots(Join):
    """The mean over the last `members` epochs of one run, of every n-th epoch."""

    members: Annotated[int, at_least(2)] = 5
    every: Annotated[int, at_least(1)] = 1
    posthoc: Literal["after", "before"] = "after"
    """whether a post-hoc map is fitted to the mean, or to each member before"""

    def __post_init__(self) -> None:
        check_settings(self, "join")

    @property
    def keep(self) -> int:
        return self.every

    def seeds(self, seed: int) -> Sequence[int]:
        return (seed,)

    def epochs(self, epochs: int) -> Sequence[int]:
        """
        >>> list(Snapshots(members=3, every=2).epochs(10))
        [5, 7, 9]
        """
        first = epochs - 1 - (self.members - 1) * self.every
        if first < 0:
            raise BalcalError(
                f"{epochs} epochs have no {self.members} snapshots, {self.every} apart: set join.members or join.every"
            )
        return range(first, epochs, self.every)


@dataclass(frozen=True)
class AtEpoch:
    """One epoch, by its number from 0."""

    epoch: int

    def __call__(self, history: Sequence[Record]) -> int:
        return self.epoch


def members(recipe: Recipe) -> tuple[Recipe, ...]:
    """The recipes whose runs this one joins; none, if it is a training itself."""
    join, after = recipe.method.join, ("posthoc", "views", "join")
    if join is None:
        return ()
    kept = tuple(text for text in recipe.overrides if text.split(".")[0] not in after)
    alone = replace(recipe, method=recipe.method.without(*after), overrides=kept)
    return tuple(_with_seed(alone, seed) for seed in join.seeds(recipe.seed))


def _with_seed(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, seed=seed, parent=recipe.parent and _with_seed(recipe.parent, seed))


def maps_networks(method: Method) -> bool:
    """Whether the post-hoc map is fitted to each network, not to the mean over members and views."""
    inside = method.posthoc.reads_branches or method.posthoc.reads_features
    return inside or (method.join is not None and method.join.posthoc == "before")


def parts(recipe: Recipe, method: Method) -> list[tuple[Recipe, Method]]:
    """The networks that a joined recipe consists of: a run each, and the method it is evaluated with.

    Each sees the same views, and has a post-hoc map of its own if that is fitted to networks. Empty for other recipes.
    """
    join, found = recipe.method.join, list[tuple[Recipe, Method]]()
    if join is None:
        return found
    if method.changes.get("select") != recipe.method.changes.get("select"):
        raise BalcalError(
            f"`{recipe.method.name}` has joined its epochs already: train `{recipe.method.name}+"
            f"{method.changes.get('select')}` to join others"
        )
    each = method.without("join", *(() if maps_networks(method) else ("posthoc",)))
    for run in members(recipe):
        epochs = join.epochs(run.task.plan.epochs)
        found += [(run, each if at is None else replace(each, select=AtEpoch(at))) for at in epochs or (None,)]
    return found


METHODS = {
    "snapshots": Method(
        "snapshots",
        join=Snapshots(),
        about="the mean over the last epochs of a run",
        when="There is time for one training only, and for several forward passes in use.",
        paper="Huang, Li, Pleiss, Liu, Hopcroft, Weinberger",
        venue="ICLR 2017",
        cost="a forward pass per epoch that is joined",
    )
}
