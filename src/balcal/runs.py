"""The run folder. Its address is computed from the recipe, so the same question finds the same answer.

recipe.json                        what was asked
history.jsonl                      one line per epoch, the same bits however often the run was interrupted
checkpoints/weights-e0007.*.pt     the model after its best epoch
checkpoints/state-e0015-s000000.*  everything needed to go on from here
predictions/val.npz, test.npz      log_probs (N, K) and labels (N,), and their role
predictions/shift-*, outside-*     the same for corrupted test images and for images from elsewhere, and energies
predictions/test-branch0.npz, ...  what each classifier says by itself, where there are two
data.json                          size, digest and use of each role of the data, and what they have in common
shift.json, ood.json, human.json   figures beyond the test split
metrics.json                       functions of the predictions; a run that has it is finished
log.txt, environment.json          when, where, with which versions
seconds.json                       spent in the loop, one number for each session that ended in good order
"""

from __future__ import annotations

import io
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol
from zipfile import BadZipFile

import numpy as np
import torch

from balcal import registry
from balcal.core import BalcalError, Predictions, Record
from balcal.files import load_sealed, save_sealed, sweep, write_atomic
from balcal.recipe import Plan, Recipe, describe

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


class Run(Folder):
    """The folder of a recipe's training run."""

    def __init__(self, root: Path, recipe: Recipe, say: Callable[[str], None] = print) -> None:
        self.recipe = recipe.for_training()
        address = self.recipe.address()
        super().__init__(root / address, address.rpartition("-")[2], say)

    @staticmethod
    def at(path: Path, say: Callable[[str], None] = print) -> Run:
        """The run that lives in a folder."""
        try:
            asked = json.loads((path / "recipe.json").read_text())
            names, fingerprint = asked["names"], asked["fingerprint"]
        except (OSError, ValueError, KeyError):
            raise BalcalError(f"{path} is not a run: it has no readable recipe.json") from None
        recipe = registry.recipe(names["task"], names["method"], names["seed"], names["overrides"])
        run = Run(path.parent.parent, recipe, say)
        if run.fingerprint != fingerprint:
            raise BalcalError(
                f"{path} was made with other settings than `{names['method']}` has in this version of balcal: "
                "evaluate it with the version named in its environment.json"
            )
        run.path, run.checkpoints = path, path / "checkpoints"
        return run

    @property
    def finished(self) -> bool:
        return (self.path / "metrics.json").exists()

    def lacks(self, plan: Plan) -> bool:
        """Whether epochs are over whose weights this plan would have kept, and they were not."""
        try:
            done = len(self.history())
        except BalcalError:
            return False
        return not plan.kept(done) <= set(self.kept())

    def start_over(self) -> None:
        """Forget how far it got; the same recipe comes to the same bits again."""
        for path in (self.path / "metrics.json", self.path / "history.jsonl", *self.checkpoints.glob("*.pt")):
            path.unlink(missing_ok=True)

    def begin(self, device: torch.device) -> None:
        """Write down what is asked, and where it is being answered."""
        recipe = self.recipe
        names = {
            "task": recipe.task.name,
            "method": recipe.method.name,
            "seed": recipe.seed,
            "overrides": list(recipe.overrides),
        }
        asked = {"names": names, "fingerprint": self.fingerprint, "recipe": describe(recipe)}
        if recipe.parent:
            asked["parent"] = recipe.parent.address()
        self.write_json("recipe.json", asked)
        self.write_json("environment.json", environment(device))

    def data(self) -> dict[str, Any] | None:
        """The roles of the data that this run was trained with; None for runs that are older than their record."""
        try:
            found: dict[str, Any] = json.loads((self.path / "data.json").read_text())
        except OSError:
            return None
        except ValueError:
            raise BalcalError(f"{self.path / 'data.json'} is damaged: delete it to have it written anew") from None
        return found

    def environment(self) -> dict[str, Any]:
        """Of the session that last began to train."""
        try:
            found: dict[str, Any] = json.loads((self.path / "environment.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def check_data(self, manifest: dict[str, Any]) -> None:
        """The data must be what it was when the run began; the first time, write down what it is."""
        written = self.data()
        if written is None:
            self.write_json("data.json", manifest)
            return
        for role, now in manifest["roles"].items():
            if now["digest"] != written["roles"][role]["digest"]:
                raise BalcalError(
                    f"the {role} data has changed since {self.path} was begun (digest {now['digest']}, then "
                    f"{written['roles'][role]['digest']}): put the old data back, or train in another folder with --out"
                )

    def seconds(self) -> list[float]:
        """Spent in the loop by each session; a killed one leaves none, and older runs have no record."""
        try:
            spent: list[float] = json.loads((self.path / "seconds.json").read_text())
        except (OSError, ValueError):
            return []
        return spent

    def write_json(self, name: str, value: Any) -> None:
        write_atomic(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def log(self, line: str) -> None:
        try:
            with open(self.path / "log.txt", "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            pass  # the log is a courtesy; checkpoints speak up when the disk is full

    def save_predictions(self, split: str, predictions: Predictions) -> None:
        buffer = io.BytesIO()
        log_probs, labels = predictions.log_probs.cpu().numpy(), predictions.labels.cpu().numpy()
        np.savez(buffer, log_probs=log_probs, labels=labels, role=np.array(predictions.role or split))
        write_atomic(self._predictions(split), buffer.getvalue())

    def _predictions(self, split: str) -> Path:
        return self.path / "predictions" / f"{split}.npz"

    def has_predictions(self, split: str) -> bool:
        return self._predictions(split).exists()

    def load_predictions(self, split: str) -> Predictions | None:
        path = self._predictions(split)
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                log_probs, labels = (torch.from_numpy(arrays[name]) for name in ("log_probs", "labels"))
                return Predictions(log_probs, labels, str(arrays["role"]) if "role" in arrays else None)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            raise BalcalError(f"{path} is damaged: delete it, and it will be computed again") from None


def environment(device: torch.device) -> dict[str, Any]:
    from balcal import __version__

    return {
        "balcal": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@cache
def commit() -> str | None:
    """The commit of this code, with `-dirty` if it was changed since; None if it is not in a repository of its own."""
    here = Path(__file__).parent
    for question in (
        ["ls-files", "--error-unmatch", "runs.py"],
        ["describe", "--always", "--exclude=*", "--dirty", "--abbrev=40"],
    ):
        try:
            told = subprocess.run(["git", *question], cwd=here, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return told.stdout.strip()
