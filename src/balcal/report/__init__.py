"""HTML pages of a run, an arena or plain predictions: one file that needs no network and no other file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from balcal.core import BalcalError


def write_report(
    source: str | Path,
    out: str | Path | None = None,
    posthoc: str = "ts",
    labels: str | None = None,
    kind: str | None = None,
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write the page of a run's folder, of an arena's FILE.json or of a file with predictions; says where it is.

    `labels`, `kind` and `classes` are for files with predictions: see `read_arrays`.
    """
    from balcal.arena.result import ArenaResult
    from balcal.evaluation.prediction_files import read_arrays
    from balcal.report.arena import arena_page
    from balcal.report.content import content_of_predictions, content_of_run
    from balcal.report.page import run_page, write_page
    from balcal.runs import Run

    path = Path(source)
    if os.path.isdir(path):
        page, place = run_page(content_of_run(Run.at(path), posthoc)), path / "report.html"
    elif path.suffix == ".json":
        page, place = arena_page(ArenaResult.load(path)), path.with_suffix(".html")
    elif os.path.exists(str(path).partition(".npz:")[0] + (".npz" if ".npz:" in str(path) else "")):
        read = read_arrays(str(path), labels, kind)
        names = read.classes if classes is None else classes
        page = run_page(content_of_predictions(read.predictions(), path.name, names, str(path)))
        place = Path(str(path).replace(":", "-")).with_suffix(".html")
    else:
        raise BalcalError(f"{path} is neither a run's folder nor a file: name one that `balcal train` printed")
    place = Path(out) if out else place
    return {"report": str(place), "bytes": write_page(page, place)}


def report(
    source: Any = None,
    loader: Iterable[Any] | None = None,
    out: str | Path = "report.html",
    classes: Sequence[str] | None = None,
    name: str | None = None,
    *,
    probs: Any = None,
    log_probs: Any = None,
    labels: Any = None,
    **reading: Any,
) -> Path:
    """Write the page of predictions, of a model and a loader, or of what `balcal report` takes; returns where it is.

    Parameters
    ----------
    source
        `Predictions`, a model of `balcal.wrap` (with `loader`), or the path of a run, an arena or predictions.
    loader
        Test data for a model.
    out
        The file to write.
    classes, name
        Names of the classes, and the page's title.
    probs, log_probs, labels
        Arrays, in place of a source.
    reading
        `target=` and `ignore_index=`, as for `balcal.predict`.

    >>> import tempfile, torch, balcal
    >>> predictions = balcal.Predictions(torch.randn(200, 3).log_softmax(1), torch.randint(3, (200,)))
    >>> balcal.report(predictions, out=Path(tempfile.mkdtemp()) / "page.html").stat().st_size > 10_000
    True
    """
    from balcal.core import Predictions
    from balcal.evaluation.predict import predict
    from balcal.metrics.inputs import read
    from balcal.model import Model
    from balcal.report.content import content_of_predictions
    from balcal.report.page import run_page, write_page

    if isinstance(source, str | Path):
        return Path(write_report(source, None if out == "report.html" else out, classes=classes)["report"])
    if isinstance(source, Model):
        if loader is None:
            raise BalcalError("the report of a model needs a loader with test data: balcal.report(model, loader)")
        title, source = name or source.method.name, predict(source, loader, role="test", **reading)
    else:
        title = name or "predictions"
    if source is None:
        rows = read(probs, log_probs, labels)
        source = Predictions(rows.log_probs(), rows.labels)
    elif probs is not None or log_probs is not None or labels is not None:
        raise BalcalError("pass predictions, a model or a path, or arrays by name, not both")
    if not isinstance(source, Predictions):
        kind = type(source).__name__
        raise BalcalError(f"a report is of predictions, a model or a path, not of a {kind}; arrays go by name, probs=")
    write_page(run_page(content_of_predictions(source, title, classes)), Path(out))
    return Path(out)


class _Callable(ModuleType):
    """`balcal.report` is this package and the function: one name for both."""

    def __call__(self, *given: Any, **named: Any) -> Path:
        return report(*given, **named)


sys.modules[__name__].__class__ = _Callable
