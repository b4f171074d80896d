"""The run folder. Its address is computed from the recipe, so the same question finds the same answer.

checkpoints/state-e0015-s000000.*  everything needed to go on from here: the truth while the run is trained
checkpoints/finished.*.json        the truth once it is: history, seals of the weights, digests of the data
checkpoints/weights-e0007.*.pt     the model after its best epoch
predictions/val.npz, test.npz      log_probs (N, K) and labels (N,), their role, and what they were made from
predictions/shift-*, outside-*     the same for corrupted test images and for images from elsewhere, and energies
predictions/test-branch0.npz, ...  what each classifier says by itself, where there are two
metrics.json                       functions of the predictions
shift.json, ood.json, human.json   figures beyond the test split
recipe.json                        what was asked
data.json                          size, digest and use of each role of the data, and what they have in common
history.jsonl                      one line per epoch, the same bits however often the run was interrupted
log.txt, environment.json          when, where, with which versions
seconds.json                       spent in the loop, one number for each session that ended in good order

Every file under checkpoints has its checksum in its name. What decides a result is read from there and nowhere else;
predictions and figures are used only if they say that they come from this recipe, these weights and these images.
recipe.json says which recipe a folder is of. The rest is for people, and is written anew from the truth.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError, Predictions, Record
from balcal.recipe import Method, Plan, Recipe, describe, fingerprint
from balcal.runtime.checkpoints import Folder, Weights
from balcal.runtime.files import read_sealed, save_sealed_json, seal_in_name, write_atomic, write_if_other
from balcal.runtime.provenance import (
    FigureFile,
    Finished,
    MadeFrom,
    PredictionFile,
    is_manifest,
    read_figures,
    read_predictions,
    write_figures,
    write_predictions,
)

FINISHED = "finished"


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
            names, written = asked["names"], asked["fingerprint"]
            task, method, seed, overrides = (names[key] for key in ("task", "method", "seed", "overrides"))
            if not isinstance(seed, int) or not all(isinstance(text, str) for text in (task, method, *overrides)):
                raise ValueError("not names")
        except (OSError, ValueError, KeyError, TypeError):
            raise BalcalError(f"{path} is not a run: it has no readable recipe.json") from None
        run = Run(path.parent.parent, registry.recipe(task, method, seed, overrides), say)
        if run.fingerprint != written:
            raise BalcalError(
                f"{path} was made with other settings than `{names['method']}` has in this version of balcal: "
                "use the version named in its environment.json"
            )
        run.path, run.checkpoints = path, path / "checkpoints"
        return run

    @property
    def finished(self) -> bool:
        return self._ending() is not None

    def ending(self) -> Finished:
        """How training ended. Only a finished run may be judged."""
        found = self._ending()
        if found is None:
            raise BalcalError(f"{self.path} is not finished: `balcal train` goes on with it")
        return found

    def _ending(self) -> Finished | None:
        found = sorted(self.checkpoints.glob(f"{FINISHED}.*.json"))
        for path in found:
            try:
                ended = Finished.of(json.loads(read_sealed(path)))
            except (BalcalError, ValueError, KeyError, TypeError, AttributeError):
                continue  # damaged: training has nothing left to do but to write it anew
            if ended.fingerprint != self.fingerprint:
                raise BalcalError(f"{path} belongs to another recipe: move it away, or choose another folder")
            return ended
        return None if found else self._ending_before_records()

    def _ending_before_records(self) -> Finished | None:
        """Of a run that an earlier version finished, which kept no record but has its last state."""
        try:
            state = self._newest_state(lambda path, error: None)
        except BalcalError:
            return None
        if state is None or "weights" in state or state["epoch"] < self.recipe.task.plan.epochs:
            return None
        seals = {epoch: seal_in_name(path) for epoch, path in self.kept().items()}
        data = _read_json(self.path / "data.json")
        return Finished(self.fingerprint, state["history"], seals, data if is_manifest(data) else None)

    def finish(self, history: list[Record], data: dict[str, Any]) -> None:
        """Write down that training is over, and what it left. Nothing is changed if that is written already."""
        ended = Finished(self.fingerprint, history, dict(self.seals or {}), data)
        self.forget_states()
        written = save_sealed_json(self.checkpoints, FINISHED, ended.as_dict())
        for other in self.checkpoints.glob(f"{FINISHED}.*.json"):
            if other != written:
                other.unlink(missing_ok=True)

    def write_for_people(self) -> None:
        """What can be read without balcal, from the truth; a file that was lost or altered is written anew."""
        ended = self.ending()
        self.write_history(ended.history)
        self._write_text("recipe.json", self._asked())
        if ended.data is not None:
            self._write_text("data.json", ended.data)

    def history(self) -> list[Record]:
        """One record per finished epoch, of which there must be at least one."""
        ended = self._ending()
        return ended.history if ended else super().history()

    @property
    def chosen(self) -> int:
        """The epoch that became the model."""
        return as_method(self.recipe.method).select(self.ending().history)

    def load_weights(self, epoch: int) -> Weights:
        if self.seals is None and (ended := self._ending()):
            self.seals = ended.weights
        return super().load_weights(epoch)

    def lacks(self, plan: Plan) -> bool:
        """Whether epochs are over whose weights this plan would have kept, and they were not."""
        ended = self._ending()
        done = len(ended.history) if ended else self.epochs()
        return not plan.kept(done) <= set(self.kept())

    def start_over(self) -> None:
        """Forget how far it got; the same recipe comes to the same bits again.

        In this order, so that a process that dies half-way leaves either a run to start over or one to train.
        """
        for pattern in ("finished.*.json", "state-*.pt", "weights-*.pt"):
            for path in self.checkpoints.glob(pattern):
                path.unlink(missing_ok=True)
        figures = [path for name in FigureFile for path in self.path.glob(f"{name}*.json")]
        for path in (*self.path.glob("predictions/*.npz"), *figures, self.path / "history.jsonl"):
            path.unlink(missing_ok=True)
        self.seals = None

    def begin(self, device: torch.device, data: dict[str, Any]) -> None:
        """Write down what is asked, and where it is being answered."""
        self._write_text("recipe.json", self._asked())
        self._write_text("data.json", data)
        self.write_json("environment.json", environment(device))

    def _asked(self) -> dict[str, Any]:
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
        return asked

    def data(self) -> dict[str, Any] | None:
        """The roles of the data that this run was trained with; None for runs that are older than their record."""
        return self.ending().data

    def environment(self) -> dict[str, Any]:
        """Of the session that last began to train."""
        found: dict[str, Any] = _read_json(self.path / "environment.json")
        return found

    def check_data(self, manifest: dict[str, Any]) -> None:
        """The data must be what it was when the run was trained."""
        written = self.data()
        for role, now in manifest["roles"].items() if written else ():
            then = self.ending().digest(role)
            if now["digest"] != then:
                raise BalcalError(
                    f"the {role} data has changed since {self.path} was trained (digest {now['digest']}, then "
                    f"{then}): put the old data back, or train in another folder with --out"
                )

    def seconds(self) -> list[float]:
        """Spent in the loop by each session; a killed one leaves none, and older runs have no record."""
        spent = _read_json(self.path / "seconds.json", list)
        return [float(each) for each in spent if isinstance(each, int | float)]

    def write_json(self, name: str, value: Any) -> None:
        write_atomic(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def _write_text(self, name: str, value: Any) -> None:
        write_if_other(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def log(self, line: str) -> None:
        try:
            with open(self.path / "log.txt", "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            pass  # the log is a courtesy; checkpoints speak up when the disk is full

    def made_from(self, name: str, epoch: int | None = None, **more: Any) -> MadeFrom:
        """What a file of figures or predictions must come from: the chosen epoch and the test images, unless said."""
        ended = self.ending()
        epoch = self.chosen if epoch is None else epoch
        if epoch not in ended.weights:
            raise BalcalError(f"{self.path} did not keep the weights of epoch {epoch}: train it with --keep-epochs 1")
        return MadeFrom(name, self.fingerprint, epoch, ended.weights[epoch], **{"data": ended.digest("test")} | more)

    def save_predictions(self, stem: str, predictions: Predictions, made: MadeFrom) -> None:
        write_predictions(self._predictions(stem), predictions, made)

    def load_predictions(self, stem: str, made: MadeFrom | None = None) -> Predictions | None:
        """Stored predictions, if they come from this run's weights; those of another origin are an error."""
        found = read_predictions(self._predictions(stem))
        if found is None:
            return None
        predictions, written = found
        if made is None:
            made = self.made_from(stem, PredictionFile.epoch(stem), data="")
        made.check(written, self._predictions(stem))
        return predictions

    def _predictions(self, stem: str) -> Path:
        return self.path / "predictions" / f"{stem}.npz"

    def write_figures(self, name: str, figures: dict[str, Any], method: Method, epoch: int) -> None:
        """Figures of the test split, or of images made from it, after a method's post-hoc map."""
        made = self.made_from(name, epoch, posthoc=fingerprint(method.posthoc))
        write_figures(self.path / f"{name}.json", figures, made)

    def read_figures(self, name: str, method: Method, epoch: int) -> dict[str, Any] | None:
        return read_figures(
            self.path / f"{name}.json", self.made_from(name, epoch, posthoc=fingerprint(method.posthoc))
        )


def _read_json(path: Path, kind: type = dict) -> Any:
    """A file for people, if it is there and of this kind; else an empty one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return kind()
    return found if isinstance(found, kind) else kind()


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
