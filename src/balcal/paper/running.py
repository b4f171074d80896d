"""From items to trained runs: what is needed, each thing once; and what of it is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from balcal.arena.contest import line_of, waves
from balcal.arena.crew import Cluster, crew
from balcal.arena.watch import Watch, name_of
from balcal.arena.work import Bench, trained
from balcal.core import BalcalError
from balcal.paper.items import Item
from balcal.paper.tiers import Tier
from balcal.recipe import Recipe
from balcal.runs import Run
from balcal.stopping import Stopped


@dataclass(frozen=True)
class Training:
    """A run that an item needs; `keep` is set where it looks at the weights of every n-th epoch."""

    recipe: Recipe
    keep: int | None = None

    def missing(self, out: Path) -> bool:
        run, plan = Run(out, self.recipe), self.recipe.task.plan
        return not run.finished or (self.keep is not None and run.lacks(replace(plan, keep=self.keep)))


def trainings(items: Iterable[Item], tier: Tier, seeds: Sequence[int]) -> list[Training]:
    """Every run that these items need, by address; runs that others start from included, and first."""
    needed: dict[str, Training] = {}
    for item in items:
        watched = set(item.series(tier).values()) if item.epochs else set()
        for ask in item.asks(tier):
            for recipe in filter(None, (ask.recipe(tier, seed) for seed in seeds)):
                *before, last = line_of(recipe)
                for asked in before:
                    needed.setdefault(asked.address(), Training(asked))
                known = needed.get(last.address(), Training(last))
                needed[last.address()] = replace(known, keep=tier.keep if ask in watched else known.keep)
    return list(needed.values())


@dataclass(frozen=True)
class Workshop:
    """Where runs are trained, and by how many at once."""

    runs: Path = Path("runs")
    device: str | None = None
    jobs: int = 1
    scheduler: str | None = None
    quiet: bool = False


def run_all(needed: Sequence[Training], shop: Workshop) -> None:
    """Train what is missing, as an arena does; what is there stays. A failure counts when all had their turn."""
    missing = {t.recipe.address(): t for t in needed if t.missing(shop.runs)}
    if not missing:
        return
    runs = {address: Run(shop.runs, t.recipe) for address, t in missing.items()}
    bench, workers, failed = Bench(shop.runs, shop.device), crew(shop.jobs, shop.scheduler), []
    with (
        closing(workers) if isinstance(workers, Cluster) else nullcontext(),
        workers.stop,
        Watch("paper", list(runs.values()), workers.size, shop.quiet) as watch,
    ):
        for wave in waves(t.recipe for t in missing.values()):
            pieces = [(recipe, bench, missing[recipe.address()].keep) for recipe in wave]
            for number, outcome in workers.outcomes(trained, pieces):
                if outcome.signum:
                    continue
                watch.done(runs[wave[number].address()], outcome)
                if outcome.error:
                    failed.append(f"{wave[number].task.name} {name_of(wave[number])}: {outcome.error}")
            if workers.stop:
                raise Stopped(f"after {watch.ended} of {len(missing)} runs", workers.stop.signum)
    if failed:
        raise BalcalError(f"{len(failed)} of {len(missing)} runs failed; the first: {failed[0]}")
