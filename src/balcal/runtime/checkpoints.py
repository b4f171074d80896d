"""Where the training loop keeps its checkpoints: in memory, or in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from balcal.core import BalcalError, Record
from balcal.runtime.claims import claim
from balcal.runtime.files import load_sealed, save_sealed, seal_in_name, write_if_other

State = dict[str, Any]
Weights = dict[str, torch.Tensor]
SAVE_EVERY_SECONDS = 300.0
"""in the middle of an epoch; at its end the state is always saved"""


class Store(Protocol):
    """Keeps the state of a training, and the weights of some epochs."""

    lasting: ClassVar[bool]
    """whether what is saved outlives the process, so that a request to stop can be answered by saving"""

    def load_state(self) -> State | None: ...
    def save_state(self, state: State) -> None: ...
    def save_is_due(self) -> bool: ...
    def save_weights(self, epoch: int, weights: Weights) -> None: ...
    def load_weights(self, epoch: int) -> Weights: ...
    def forget_weights(self, keep: set[int]) -> None: ...


class Memory:
    """Keeps the best weights in memory, and no state."""

    lasting: ClassVar[bool] = False

    def __init__(self) -> None:
        self.kept: dict[int, Weights] = {}

    def load_state(self) -> State | None:
        return None

    def save_state(self, state: State) -> None:
        pass

    def save_is_due(self) -> bool:
        return False

    def save_weights(self, epoch: int, weights: Weights) -> None:
        self.kept[epoch] = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def load_weights(self, epoch: int) -> Weights:
        return self.kept[epoch]

    def forget_weights(self, keep: set[int]) -> None:
        self.kept = {epoch: weights for epoch, weights in self.kept.items() if epoch in keep}


@dataclass
class Folder:
    """Keeps states and weights on disk, with checksums. `fingerprint` says which recipe they are of.

    The newest undamaged state decides where a training resumes: it has the position, the history, and the checksums of
    the weights that belong to it. `history.jsonl` is written from it, for people, and never read back.
    """

    lasting: ClassVar[bool] = True
    path: Path
    fingerprint: str
    say: Callable[[str], None] = print
    save_every: float = SAVE_EVERY_SECONDS
    origin: dict[str, str] = field(default_factory=dict)
    """digests of what else the training depends on, by name; a state of another origin is refused"""

    def __post_init__(self) -> None:
        self.checkpoints = self.path / "checkpoints"
        self.seals: dict[int, str] | None = None
        """checksums of the weights that belong here, by epoch; None: not known yet, or from an older version"""
        self._saved_at = time.monotonic()

    def load_state(self) -> State | None:
        """The newest undamaged state. A damaged one is reported, and the one before it used."""

        def set_aside(path: Path, error: BalcalError) -> None:
            self.say(f"{error}; it is set aside and the one before it used")
            with suppress(FileNotFoundError):  # another process has done it, or has removed it
                path.rename(path.with_name(f"damaged-{path.name}"))

        state = self._newest_state(set_aside)
        here = {epoch: seal_in_name(path) for epoch, path in self.kept().items()}
        self.seals = {} if state is None else state.get("weights", here)  # older states do not say
        if state is not None:
            self._check_origin(state)
            self.write_history(state["history"])
        return state

    def _newest_state(self, damaged: Callable[[Path, BalcalError], None]) -> State | None:
        found = self._states()
        for path in found:
            try:
                state = load_sealed(path)
            except BalcalError as error:
                damaged(path, error)
                continue
            if not isinstance(state, dict) or state.get("fingerprint") != self.fingerprint:
                raise BalcalError(
                    f"{path} belongs to another recipe: move it away, or choose another folder with --out"
                )
            return state
        if found:
            raise BalcalError(
                f"no checkpoint in {self.checkpoints} is whole: delete that folder to train from the start"
            )
        return None

    def _states(self) -> list[Path]:
        """The newest first."""
        return sorted(self.checkpoints.glob("state-*.pt"), reverse=True)

    def _check_origin(self, state: State) -> None:
        """Raise an error if the state was trained with another network or other data; older states do not say."""
        for name, then in state.get("origin", {}).items():
            now = self.origin.get(name, then)
            if now != then:
                raise BalcalError(
                    f"the {name} has changed since {self.path} was begun (digest {now}, then {then}): "
                    "put the old one back, or train in another folder"
                )

    def save_state(self, state: State) -> None:
        stem = f"state-e{state['epoch']:04d}-s{state['step']:06d}"
        whose = {"fingerprint": self.fingerprint, "origin": self.origin, "weights": dict(self.seals or {})}
        save_sealed(self.checkpoints, stem, {**whose, **state})
        self.write_history(state["history"])
        self.forget_states()
        self._saved_at = time.monotonic()

    def forget_states(self) -> None:
        """Remove all but the newest two: one to resume from, and one in case that is damaged."""
        for old in self._states()[2:]:
            old.unlink(missing_ok=True)

    def write_history(self, history: Sequence[Record]) -> None:
        """Write history.jsonl, for people, if it differs."""
        lines = "".join(json.dumps(record) + "\n" for record in history).encode()
        write_if_other(self.path / "history.jsonl", lines)

    def save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at > self.save_every

    def save_weights(self, epoch: int, weights: Weights) -> None:
        written = save_sealed(self.checkpoints, f"weights-e{epoch:04d}", weights)
        self.seals = {**(self.seals or {}), epoch: seal_in_name(written)}
        for old in self._weights(epoch):
            if old != written:
                old.unlink(missing_ok=True)

    def load_weights(self, epoch: int) -> Weights:
        found, seal = self._weights(epoch), None if self.seals is None else self.seals.get(epoch)
        fitting = [path for path in found if seal is None or seal_in_name(path) == seal]
        if not fitting:
            wrong = "are not those that it kept" if found else "are missing"
            raise BalcalError(
                f"the weights of epoch {epoch} in {self.checkpoints} {wrong}: "
                "delete that folder and train again, which gives the same bits"
            )
        weights: Weights = load_sealed(fitting[0])
        return weights

    def _weights(self, epoch: int) -> list[Path]:
        return sorted(self.checkpoints.glob(f"weights-e{epoch:04d}.*.pt"))

    def kept(self) -> dict[int, Path]:
        """The files of weights by epoch, in order."""
        return {int(path.name[9:13]): path for path in sorted(self.checkpoints.glob("weights-e*.pt"))}

    def forget_weights(self, keep: set[int]) -> None:
        for path in self.checkpoints.glob("weights-e*.pt"):
            if int(path.name[9:13]) not in keep:
                path.unlink(missing_ok=True)
        self.seals = {epoch: each for epoch, each in (self.seals or {}).items() if epoch in keep}

    def epochs(self) -> int:
        """How many epochs are saved, from the name of the newest state."""
        newest = next(iter(self._states()), None)
        return int(newest.name[7:11]) if newest else 0

    def history(self) -> list[Record]:
        """One record per finished epoch; an error if there is none."""
        state = self._newest_state(lambda path, error: None)
        if state is None or not state["history"]:
            raise BalcalError(f"{self.path} has no finished epoch yet: run `balcal train` first")
        records: list[Record] = state["history"]
        return records

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Inside the block, no other process may use this folder. The claim ends with the process at the latest."""
        with claim(self.path, shared=False):
            yield

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, no other process may train here; others may read as well."""
        with claim(self.path, shared=True):
            yield
