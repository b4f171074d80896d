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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from balcal import registry
from balcal.core import BalcalError, Predictions
from balcal.files import write_atomic
from balcal.recipe import Plan, Recipe, describe
from balcal.stores import Folder


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
