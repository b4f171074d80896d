"""Check that all files of a run belong together, by the checksums and digests that they must have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from balcal.core import BalcalError
from balcal.data.splits import manifest
from balcal.evaluation.judge import load_splits
from balcal.evaluation.members import members_of
from balcal.runs import FINISHED, Run
from balcal.runtime.files import load_sealed, read_sealed, seal_in_name
from balcal.runtime.provenance import FigureFile, Finished, PredictionFile, read_predictions, read_sealed_figures

AGAIN = "delete it, and it will be computed again"
TRAIN = "run `balcal train` once more: it goes on from the last whole state"


@dataclass(frozen=True)
class Finding:
    """A file that does not fit, what is wrong with it, and what to do (`mend`)."""

    file: str
    wrong: str
    mend: str

    def __str__(self) -> str:
        return f"{self.file}: {self.wrong}; {self.mend}"


@dataclass
class Checked:
    """The result of a check: how many files, and which of them do not fit."""

    run: str
    finished: bool = False
    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """what could not be checked, and why"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        fits = "all fit" if not self.findings else f"{len(self.findings)} do not fit"
        state = "finished" if self.finished else "not finished: `balcal train` goes on with it"
        lines = [f"{self.run}: {state}", *map(str, self.findings), *self.notes]
        return "\n".join([*lines, f"{self.files} files checked, {fits}"])


def check_run(path: Path) -> Checked:
    """Check recipe, data, states, weights, predictions and figures of a run against each other. Changes nothing."""
    run = Run.at(path)
    checked = Checked(str(path))
    ended = _ending(run, checked)
    checked.finished = ended is not None
    checks = [_states(run, ended), _weights(run, ended), _debris(run)]
    if ended:
        checks += [_data(run, ended, checked), _predictions(run, ended), _figures(run, ended), _for_people(run, ended)]
        checks.append(_members(run))
    for each in checks:
        found = list(each)
        checked.files += len(found)
        checked.findings += [finding for finding in found if finding is not None]
    return checked


def _ending(run: Run, checked: Checked) -> Finished | None:
    ended: Finished | None = None
    try:
        ended = run.ending() if run.finished else None
    except BalcalError as error:
        checked.findings.append(Finding("checkpoints", str(error), TRAIN))
    for record in run.checkpoints.glob(f"{FINISHED}.*.json"):
        checked.files += 1
        try:
            read_sealed(record)
        except BalcalError:
            checked.findings.append(Finding(record.name, "does not match the checksum in its name", TRAIN))
    return ended


def _states(run: Run, ended: Finished | None) -> Iterator[Finding | None]:
    newest = True
    for path in sorted(run.checkpoints.glob("state-*.pt"), reverse=True):
        try:
            state = load_sealed(path)
        except BalcalError:
            yield Finding(path.name, "is damaged", TRAIN)
            continue
        if not isinstance(state, dict) or state.get("fingerprint") != run.fingerprint:
            yield Finding(path.name, "belongs to another recipe", "move it away")
        elif newest and ended and state["history"] != ended.history:
            yield Finding(path.name, "has another history than the finished run", "delete the checkpoints, train again")
        else:
            yield None
        newest = False


def _weights(run: Run, ended: Finished | None) -> Iterator[Finding | None]:
    there = set(run.checkpoints.glob("weights-*.pt"))
    for epoch, seal in (ended.weights if ended else {}).items():
        path = run.checkpoints / f"weights-e{epoch:04d}.{seal}.pt"
        if path not in there:
            yield Finding(path.name, "is missing", "delete the checkpoints and train again, which gives the same bits")
    for path in sorted(there):
        try:
            read_sealed(path)
        except BalcalError:
            yield Finding(path.name, "is damaged", "delete the checkpoints and train again, which gives the same bits")
            continue
        kept = ended is None or ended.weights.get(int(path.name[9:13])) == seal_in_name(path)
        yield None if kept else Finding(path.name, "is not among the weights that the run kept", "move it away")


def _members(run: Run) -> Iterator[Finding | None]:
    """Of a joined run, the runs that it consists of."""
    try:
        yield from (None for _ in members_of(run, run.recipe.method))
    except BalcalError as error:
        what, _, mend = str(error).partition(": ")
        yield Finding("a member", what, mend or TRAIN)


def _debris(run: Run) -> Iterator[Finding | None]:
    for path in sorted(run.path.rglob(".unfinished-*")):
        yield Finding(path.name, "was left by a process that died", "any command that uses the run removes it")


def _data(run: Run, ended: Finished, checked: Checked) -> Iterator[Finding | None]:
    if ended.data is None:
        checked.notes.append("data: this run is older than the record of its data, so that cannot be checked")
        return
    try:
        now = manifest(load_splits(run.recipe.task))["roles"]
    except BalcalError as error:
        checked.notes.append(f"data: cannot be checked here: {error}")
        return
    for role, each in now.items():
        same = each["digest"] == ended.digest(role)
        changed = Finding(f"{role} data", "has changed since the run was trained", "put the old data back")
        yield None if same else changed


def _predictions(run: Run, ended: Finished) -> Iterator[Finding | None]:
    roles: dict[str, str] = {
        PredictionFile.TEST: "test",
        PredictionFile.VAL: "calibrate",
        PredictionFile.CALIBRATE: "calibrate",
    }
    for path in sorted((run.path / "predictions").glob("*.npz")):
        try:
            found = read_predictions(path)
        except BalcalError:
            yield Finding(path.name, "is damaged", AGAIN)
            continue
        role = roles.get(path.stem.partition("-")[0], "")
        if found is None:
            yield Finding(path.name, "does not say what it was made from: an earlier version wrote it", AGAIN)
        else:
            yield _origin(path, found[1], run, ended, ended.digest(role) if role else "")


def _figures(run: Run, ended: Finished) -> Iterator[Finding | None]:
    for path in sorted(p for name in FigureFile for p in run.path.glob(f"{name}*.json")):
        try:
            found = read_sealed_figures(path)
        except BalcalError:
            yield Finding(path.name, "is damaged or was edited", "delete it, and evaluate the run again")
            continue
        if found is None:
            yield Finding(path.name, "does not say what it was made from: an earlier version wrote it", AGAIN)
        else:
            yield _origin(path, found[1], run, ended, ended.digest("test"))


def _origin(path: Path, written: Any, run: Run, ended: Finished, data: str) -> Finding | None:
    made = written if isinstance(written, dict) else {}
    expected = {
        "file": (path.stem, "was made under another name"),
        "recipe": (run.fingerprint, "is of another run"),
        "weights": (ended.weights.get(made.get("epoch", -1)), "is of other weights"),
        "data": (data or made.get("data"), "is of other images"),
    }
    wrong = [what for name, (value, what) in expected.items() if made.get(name) != value]
    return Finding(path.name, wrong[0], AGAIN) if wrong else None


def _for_people(run: Run, ended: Finished) -> Iterator[Finding | None]:
    """Files that people read; they are written from the checkpoints, and no result is read from them."""
    history = "".join(json.dumps(record) + "\n" for record in ended.history)
    texts = {"history.jsonl": history}
    if ended.data is not None:
        texts["data.json"] = json.dumps(ended.data, indent=2) + "\n"
    for name, text in texts.items():
        try:
            same = (run.path / name).read_text() == text
        except (OSError, ValueError):
            same = False
        mend = "`balcal evaluate` writes it anew; no result depends on it"
        yield None if same else Finding(name, "is not what the run wrote", mend)
