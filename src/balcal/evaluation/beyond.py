"""How far a run's probabilities are from what people saw in its test images.

Everything that is asked of a run beyond its test split, and kept in its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from balcal import registry
from balcal.core import BalcalError
from balcal.evaluation.judge import added_by
from balcal.evaluation.ood import evaluate_outside
from balcal.evaluation.other_images import Sitting
from balcal.evaluation.shift import evaluate_shift
from balcal.metrics.scoring import soft_kl, soft_nll
from balcal.recipe import Method
from balcal.runs import Run
from balcal.runtime.progress import Steps
from balcal.runtime.provenance import FigureFile


def evaluate_human(sitting: Sitting) -> dict[str, Any]:
    """Cross-entropy and divergence to people's shares, beside what the shares themselves would score."""
    dataset = registry.dataset(sitting.run.recipe.task.dataset)
    shares = dataset.soft_labels()
    told = sitting.test()
    if len(shares) != len(told.labels):
        raise BalcalError(
            f"people were asked about {len(shares):,} images, and `{dataset.name}` has {len(told.labels):,} to judge"
        )
    probs = told.log_probs.double().exp()
    sure, people_sure = probs.amax(1), shares.amax(1)
    return {
        "images": len(shares),
        "cross_entropy": soft_nll(log_probs=told.log_probs, soft_labels=shares),
        "kl": soft_kl(log_probs=told.log_probs, soft_labels=shares),
        "people": {
            "entropy": float(-torch.xlogy(shares, shares).sum(1).mean()),
            "mean_share_of_first_choice": float(people_sure.mean()),
            "first_choice_is_label": float((shares.argmax(1) == told.labels).double().mean()),
        },
        "mean_confidence": float(sure.mean()),
    }


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
    work: dict[FigureFile, Callable[[], dict[str, Any]]] = {}
    if asked.shift:
        tick = _ticking("shift", quiet)
        work[FigureFile.SHIFT] = lambda: evaluate_shift(sitting, asked.corruptions, asked.published, tick=tick)
    if asked.ood:
        work[FigureFile.OOD] = lambda: evaluate_outside(sitting, asked.against, _ticking("outside sets", quiet))
    if asked.human:
        work[FigureFile.HUMAN] = lambda: evaluate_human(sitting)
    told = {}
    for name, evaluate in work.items():
        told[name.value] = evaluate()
        run.write_figures(f"{name}{added_by(run, method)}", told[name.value], method, sitting.epoch)
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
