"""Evaluate a run beyond its test split: corrupted images, OOD sets, human labels. Figures are kept in its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

import torch

from balcal import registry
from balcal.core import BalcalError
from balcal.evaluation.judge import added_by
from balcal.evaluation.ood import OodFigures, evaluate_ood
from balcal.evaluation.other_images import RunPredictor
from balcal.evaluation.shift import ShiftFigures, evaluate_shift
from balcal.metrics.scoring import soft_kl, soft_nll
from balcal.recipe import Method
from balcal.runs import Run
from balcal.runtime.progress import Steps
from balcal.runtime.provenance import FigureFile


class HumanAgreement(TypedDict):
    """How the people who labelled the images agree among themselves."""

    entropy: float
    mean_share_of_first_choice: float
    first_choice_is_label: float


class HumanFigures(TypedDict):
    """What `evaluate_human` returns, as human.json has it."""

    images: int
    cross_entropy: float
    kl: float
    people: HumanAgreement
    mean_confidence: float


class BeyondFigures(TypedDict, total=False):
    """Whatever was evaluated beyond the test split."""

    shift: ShiftFigures
    ood: OodFigures
    human: HumanFigures


@dataclass(frozen=True)
class BeyondOptions:
    """What to evaluate. Without names: the corruptions and OOD sets that the catalog has for the data set."""

    shift: bool = False
    ood: bool = False
    human: bool = False
    published: bool = False
    corruptions: tuple[str, ...] = ()
    against: tuple[str, ...] = ()

    def naming(self, corruptions: str, against: str) -> BeyondOptions:
        """The same with names as typed on the command line: `fog,frost`."""
        return replace(self, corruptions=_names(corruptions), against=_names(against))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def evaluate_beyond(
    run: Run, method: Method, device: torch.device, options: BeyondOptions, quiet: bool = False
) -> BeyondFigures:
    """Evaluate what the options name. Each result is written to the run as soon as it is there."""
    with run.in_use():
        return _evaluate(RunPredictor(run, method, device), options, quiet)


def _evaluate(predictor: RunPredictor, options: BeyondOptions, quiet: bool) -> BeyondFigures:
    run, method = predictor.run, predictor.method
    work: dict[FigureFile, Callable[[], Any]] = {}
    if options.shift:
        tick = _ticking("shift", quiet)
        work[FigureFile.SHIFT] = lambda: evaluate_shift(predictor, options.corruptions, options.published, tick=tick)
    if options.ood:
        work[FigureFile.OOD] = lambda: evaluate_ood(predictor, options.against, _ticking("OOD sets", quiet))
    if options.human:
        work[FigureFile.HUMAN] = lambda: evaluate_human(predictor)
    figures = {}
    for name, evaluate in work.items():
        figures[name.value] = evaluate()
        run.write_figures(f"{name}{added_by(run, method)}", figures[name.value], method, predictor.epoch)
    return cast(BeyondFigures, figures)


def _ticking(title: str, quiet: bool) -> Callable[[str, int], None]:
    steps, done = Steps(title, quiet), 0

    def tick(name: str, total: int) -> None:
        nonlocal done
        done += 1
        steps(name, done, total)

    return tick


def evaluate_human(predictor: RunPredictor) -> HumanFigures:
    """Cross-entropy and KL divergence to the shares of human labels, and what the shares themselves would score."""
    dataset = registry.dataset(predictor.run.recipe.task.dataset)
    shares = dataset.soft_labels()
    predictions = predictor.test()
    if len(shares) != len(predictions):
        raise BalcalError(
            f"there are human labels for {len(shares):,} images, and `{dataset.name}` has {len(predictions):,} in its "
            "test split"
        )
    return {
        "images": len(shares),
        "cross_entropy": soft_nll(log_probs=predictions.log_probs, soft_labels=shares),
        "kl": soft_kl(log_probs=predictions.log_probs, soft_labels=shares),
        "people": {
            "entropy": float(-torch.xlogy(shares, shares).sum(1).mean()),
            "mean_share_of_first_choice": float(shares.amax(1).mean()),
            "first_choice_is_label": float((shares.argmax(1) == predictions.labels).double().mean()),
        },
        "mean_confidence": float(predictions.log_probs.double().exp().amax(1).mean()),
    }
