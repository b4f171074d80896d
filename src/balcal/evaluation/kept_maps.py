"""Post-hoc maps that take a pass over the training images to fit: fitted once, and kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from torch import nn

from balcal.build import as_method
from balcal.core import BalcalError
from balcal.recipe import Method
from balcal.runs import Run
from balcal.runtime.files import load_sealed, save_sealed
from balcal.runtime.provenance import fingerprint

FOLDER = "maps"


def kept_map(run: Run, method: Method, empty: nn.Module, fit: Callable[[], nn.Module]) -> nn.Module:
    """The map of this run, epoch and method, from its file or fitted now. A damaged file is written anew."""
    epoch = as_method(method).select(run.ending().history)
    stem = f"{method.changes['posthoc']}-e{epoch:04d}"
    digests = "+".join(run.ending().digest(role) for role in ("train", "calibrate"))
    made = asdict(run.made_from(stem, epoch, data=digests, posthoc=fingerprint(method.posthoc)))
    folder = run.path / FOLDER
    for path in folder.glob(f"{stem}.*.pt"):
        with suppress(BalcalError, KeyError, TypeError):
            found = load_sealed(path)
            if found["made"] == made:
                empty.load_state_dict(found["state"])
                return empty
    fitted = fit()
    written = save_sealed(folder, stem, {"made": made, "state": dict(fitted.state_dict())})
    for path in folder.glob(f"{stem}.*.pt"):
        if path != written:
            path.unlink(missing_ok=True)
    return fitted
