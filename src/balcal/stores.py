"""Where the training loop keeps what it must not lose: in memory, or in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from balcal.core import BalcalError, Record
from balcal.files import load_sealed, save_sealed, sweep, write_atomic

try:
    import fcntl
except ImportError:  # Windows: two trainings of one recipe at once are then up to the user
    fcntl = None  # type: ignore[assignment]

State = dict[str, Any]
Weights = dict[str, torch.Tensor]
SAVE_EVERY_SECONDS = 300.0
"""in the middle of an epoch; at its end a state is always saved"""


class Claimed(BalcalError):
    """Another process is writing to this run."""


class Store(Protocol):
    """Where the loop keeps what it must not lose."""

    lasting: ClassVar[bool]
    """whether what is saved outlives the process, so that a request to stop can be answered by saving"""

    def load_state(self) -> State | None: ...
    def save_state(self, state: State) -> None: ...
    def save_is_due(self) -> bool: ...
    def save_weights(self, epoch: int, weights: Weights) -> None: ...
    def load_weights(self, epoch: int) -> Weights: ...
    def forget_weights(self, keep: set[int]) -> None: ...


class Memory:
    """Keeps the best weights while the process lives."""

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
    """Keeps states and weights on disk, sealed by checksums. `fingerprint` says whose they are."""

    lasting: ClassVar[bool] = True
    path: Path
    fingerprint: str
    say: Callable[[str], None] = print
    save_every: float = SAVE_EVERY_SECONDS

    def __post_init__(self) -> None:
        self.checkpoints = self.path / "checkpoints"
        self._saved_at = time.monotonic()

    def load_state(self) -> State | None:
        """The newest state that is whole. A damaged one is reported and the one before it used."""
        found = sorted(self.checkpoints.glob("state-*.pt"), reverse=True)
        for path in found:
            try:
                state = load_sealed(path)
            except BalcalError as error:
                self.say(f"{error}; it is set aside and the one before it used")
                path.rename(path.with_name(f"damaged-{path.name}"))
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

    def save_state(self, state: State) -> None:
        stem = f"state-e{state['epoch']:04d}-s{state['step']:06d}"
        written = save_sealed(self.checkpoints, stem, {"fingerprint": self.fingerprint, **state})
        lines = "".join(json.dumps(record) + "\n" for record in state["history"])
        write_atomic(self.path / "history.jsonl", lines.encode())
        others = sorted(p for p in self.checkpoints.glob("state-*.pt") if p != written)
        for old in others[:-1]:
            old.unlink(missing_ok=True)
        self._saved_at = time.monotonic()

    def save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at > self.save_every

    def save_weights(self, epoch: int, weights: Weights) -> None:
        for old in self.checkpoints.glob(f"weights-e{epoch:04d}.*.pt"):
            old.unlink()
        save_sealed(self.checkpoints, f"weights-e{epoch:04d}", weights)

    def load_weights(self, epoch: int) -> Weights:
        found = list(self.checkpoints.glob(f"weights-e{epoch:04d}.*.pt"))
        if not found:
            raise BalcalError(
                f"the weights of epoch {epoch} were not kept in {self.checkpoints}: train with plan.keep=all"
            )
        weights: Weights = load_sealed(found[0])
        return weights

    def kept(self) -> dict[int, Path]:
        """Epochs whose weights are there, in order, and where."""
        return {int(path.name[9:13]): path for path in sorted(self.checkpoints.glob("weights-e*.pt"))}

    def forget_weights(self, keep: set[int]) -> None:
        for epoch, path in self.kept().items():
            if epoch not in keep:
                path.unlink()

    def epochs(self) -> int:
        """How many are finished."""
        try:
            return (self.path / "history.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def history(self) -> list[Record]:
        """One record per finished epoch, of which there must be at least one."""
        try:
            records: list[Record] = [
                json.loads(line) for line in (self.path / "history.jsonl").read_text().splitlines()
            ]
        except (OSError, ValueError):
            records = []
        if not records:
            raise BalcalError(f"{self.path} has no finished epoch yet: run `balcal train` first")
        return records

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Nobody else may write here meanwhile. The claim ends with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".claim", "w")  # noqa: SIM115
        except OSError as error:
            raise BalcalError(
                f"cannot write to {self.path} ({error.strerror}): choose another folder with --out"
            ) from None
        with lock:
            try:
                if fcntl:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Claimed(f"{self.path} is being trained by another process: wait for it or stop it") from None
            sweep(self.path)
            yield
