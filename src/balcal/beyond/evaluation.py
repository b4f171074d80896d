"""Everything that is asked of a run beyond its test split, and kept in its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from balcal.beyond.human import evaluate_human
from balcal.beyond.outside import evaluate_outside
from balcal.beyond.shift import evaluate_shift
from balcal.beyond.sitting import Sitting
from balcal.evaluate import added_by
from balcal.progress import Steps
from balcal.recipe import Method
from balcal.runs import Run


@dataclass(frozen=True)
class Asked:
    """What to look at. No names: those that the catalog has for the data set."""

    shift: bool = False
    ood: bool = False
    human: bool = False
    published: bool = False
    corruptions: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    def naming(self, corruptions: str, against: str) -> Asked:
        """The same with names, as people write them: `fog,frost`."""
        return replace(self, corruptions=_names(corruptions), against=_names(against))


def evaluate_beyond(
    run: Run, method: Method, device: torch.device, asked: Asked, quiet: bool = False
) -> dict[str, dict[str, Any]]:
    """What was asked, by name: `shift`, `ood`, `human`. Each is written to the run as soon as it is there."""
    with run.in_use():
        return _evaluate(Sitting(run, method, device), asked, quiet)


def _evaluate(sitting: Sitting, asked: Asked, quiet: bool) -> dict[str, dict[str, Any]]:
    run, method = sitting.run, sitting.method
    work: dict[str, Callable[[], dict[str, Any]]] = {}
    if asked.shift:
        tick = _ticking("shift", quiet)
        work["shift"] = lambda: evaluate_shift(sitting, asked.corruptions, asked.published, tick=tick)
    if asked.ood:
        work["ood"] = lambda: evaluate_outside(sitting, asked.against, _ticking("outside sets", quiet))
    if asked.human:
        work["human"] = lambda: evaluate_human(sitting)
    told = {}
    for name, evaluate in work.items():
        told[name] = evaluate()
        run.write_figures(f"{name}{added_by(run, method)}", told[name], method, sitting.epoch)
    return told


def _ticking(title: str, quiet: bool) -> Callable[[str, int], None]:
    steps, done = Steps(title, quiet), 0

    def tick(name: str, total: int) -> None:
        nonlocal done
        done += 1
        steps(name, done, total)

    return tick


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
