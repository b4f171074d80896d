"""What a figure is drawn from: predictions, arrays by name, a run, or several of them under names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError, Predictions, Record
from balcal.metrics.inputs import read
from balcal.runs import Run

Source = Predictions | Run | str | Path
"""a run may be given by its folder"""


def named_predictions(
    told: Source | Mapping[str, Source] | None, probs: Any = None, log_probs: Any = None, labels: Any = None
) -> dict[str, Predictions]:
    """Predictions by name; a run gives those of its test split."""
    if told is None:
        rows = read(probs, log_probs, labels)
        return {"": Predictions(rows.log_probs(), rows.labels)}
    if probs is not None or log_probs is not None or labels is not None:
        raise BalcalError("pass predictions or a run, or arrays by name, not both")
    if isinstance(told, Mapping):
        if not told:
            raise BalcalError("there is nothing to draw: the mapping is empty")
        return {name: _predictions(source) for name, source in told.items()}
    return {_name(told): _predictions(told)}


def one_prediction(told: Source | None, **arrays: Any) -> Predictions:
    return next(iter(named_predictions(told, **arrays).values()))


def _name(told: Source) -> str:
    return "" if isinstance(told, Predictions) else run_of(told).recipe.method.name


def _predictions(told: Source) -> Predictions:
    if isinstance(told, Predictions):
        return told
    run = run_of(told)
    found = run.load_predictions("test")
    if found is None:
        raise BalcalError(f"{run.path} has no test predictions yet: run `balcal evaluate {run.path}` first")
    return found


def run_of(told: Run | str | Path) -> Run:
    return told if isinstance(told, Run) else Run.at(Path(told))


def history_of(told: Run | str | Path | Sequence[Record]) -> list[Record]:
    """One record per epoch: of a run, or as `balcal.fit` returned them."""
    history = run_of(told).history() if isinstance(told, (Run, str, Path)) else list(told)
    if not history:
        raise BalcalError("there is no epoch to draw")
    return history


def stored(run: Run, name: str, posthoc: str | None = None) -> dict[str, Any] | None:
    """What an evaluation of the run, after a post-hoc method if one is named, wrote into its folder, if it was made."""
    method = as_method(run.recipe.method + registry.method(posthoc) if posthoc else run.recipe.method)
    epoch = method.select(run.ending().history)
    return run.read_figures(f"{name}+{posthoc}" if posthoc else name, method, epoch)
