"""The run folder. Its address is computed from the recipe, so the same recipe always finds the same run.

checkpoints/state-e0015-s000000.*  everything needed to resume, while the run is trained
checkpoints/finished.*.json        once it is finished: history, checksums of the weights, digests of the data
checkpoints/weights-e0007.*.pt     the model after its best epoch; of a joined run, which runs are joined
predictions/val.npz, test.npz      log_probs (N, K) and labels (N,), their split, and what they were made from
predictions/shift-*, outside-*     the same for corrupted test images and for OOD sets, and energies
predictions/test-branch0.npz, ...  predictions of each classifier by itself, where there are two
maps/laplace-e0007.*.pt            post-hoc maps that take a pass over the training images to fit
metrics.json, shift.json, ...      figures of the test predictions, and beyond the test split
recipe.json                        the recipe
data.json                          size, digest and use of each split, and which images are in two of them
history.jsonl                      one line per epoch, the same bits however often the run was interrupted
log.txt, environment.json          when, where, with which versions; seconds.json: of each session that was not killed

Every file under checkpoints has its checksum in its name. Whatever decides a result is read from there and nowhere
else. Predictions and figures are used only if they say that they come from this recipe, these weights and these images.
recipe.json says which recipe a folder is of. The rest is for people, and is rewritten from the checkpoints.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError, Predictions, Record
from balcal.recipe import Method, Plan, Recipe
from balcal.runtime.checkpoints import Folder, Weights
from balcal.runtime.files import read_sealed, save_sealed_json, seal_in_name, write_atomic, write_if_other
from balcal.runtime.provenance import (
    FigureFile,
    Finished,
    MadeFrom,
    PredictionFile,
    describe,
    fingerprint,
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
        self.root, self.recipe = root, recipe.for_training()
        address = self.recipe.address()
        super().__init__(root / address, address.rpartition("-")[2], say)

    @staticmethod
    def at(path: Path, say: Callable[[str], None] = print) -> Run:
        """The run in a folder."""
        try:
            stored = json.loads((path / "recipe.json").read_text())
            names, written = stored["names"], stored["fingerprint"]
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
        """How training ended; an error if the run is not finished."""
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
                continue  # damaged: training again has only this file to write
            if ended.fingerprint != self.fingerprint:
                raise BalcalError(f"{path} belongs to another recipe: move it away, or choose another folder")
            return ended
        return None if found else self._ending_before_records()

    def _ending_before_records(self) -> Finished | None:
        """From the last state of a run that an earlier version finished, without a record of it."""
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
        """Record that training is over, and its results. Changes nothing if that is recorded already."""
        ended = Finished(self.fingerprint, history, dict(self.seals or {}), data)
        self.forget_states()
        written = save_sealed_json(self.checkpoints, FINISHED, ended.as_dict())
        for other in self.checkpoints.glob(f"{FINISHED}.*.json"):
            if other != written:
                other.unlink(missing_ok=True)

    def write_for_people(self) -> None:
        """Write the files that people read, from the checkpoints, where they are missing or differ."""
        ended = self.ending()
        self.write_history(ended.history)
        self._write_text("recipe.json", self._recipe_json())
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
        """Whether weights that this plan keeps are missing, of epochs that are over."""
        ended = self._ending()
        done = len(ended.history) if ended else self.epochs()
        return not plan.kept(done) <= set(self.kept())

    def start_over(self) -> None:
        """Remove checkpoints, predictions and figures; training the recipe again gives the same bits.

        In this order, so that a process that dies half-way leaves either a run to start over or one to train.
        """
        for pattern in ("finished.*.json", "state-*.pt", "weights-*.pt"):
            for path in self.checkpoints.glob(pattern):
                path.unlink(missing_ok=True)
        figures = [path for name in FigureFile for path in self.path.glob(f"{name}*.json")]
        figures += [*self.path.glob("predictions/*.npz"), *self.path.glob("maps/*.pt"), self.path / "history.jsonl"]
        for path in figures:
            path.unlink(missing_ok=True)
        self.seals = None

    def begin(self, device: torch.device, data: dict[str, Any]) -> None:
        """Write recipe, data and environment, before the first step."""
        self._write_text("recipe.json", self._recipe_json())
        self._write_text("data.json", data)
        self.write_json("environment.json", environment(device))

    def _recipe_json(self) -> dict[str, Any]:
        recipe = self.recipe
        names: dict[str, Any] = {"task": recipe.task.name, "method": recipe.method.name, "seed": recipe.seed}
        names["overrides"] = list(recipe.overrides)
        content = {"names": names, "fingerprint": self.fingerprint, "recipe": describe(recipe)}
        if recipe.parent:
            content["parent"] = recipe.parent.address()
        return content

    def data(self) -> dict[str, Any] | None:
        """The splits that this run was trained with; None for runs that are older than this record."""
        return self.ending().data

    def environment(self) -> dict[str, Any]:
        """The environment of the last session that trained here."""
        return dict(_read_json(self.path / "environment.json"))

    def check_data(self, manifest: dict[str, Any]) -> None:
        """Raise an error if the data is not what it was when the run was trained."""
        written = self.data()
        for role, now in manifest["roles"].items() if written else ():
            then = self.ending().digest(role)
            if now["digest"] != then:
                raise BalcalError(
                    f"the {role} data has changed since {self.path} was trained (digest {now['digest']}, then "
                    f"{then}): put the old data back, or train in another folder with --out"
                )

    def seconds(self) -> list[float]:
        """Seconds in the loop, one number per session; a killed session leaves none, and older runs have no record."""
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
            pass  # the log can be done without; saving a checkpoint reports a full disk

    def made_from(self, name: str, epoch: int | None = None, **more: Any) -> MadeFrom:
        """What a file of figures or predictions must come from: by default the chosen epoch and the test images."""
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

    def write_figures(self, name: str, figures: Mapping[str, Any], method: Method, epoch: int) -> None:
        """Figures of the test split, or of images made from it, after a method's post-hoc map."""
        write_figures(self.path / f"{name}.json", figures, self._made_after(name, method, epoch))

    def read_figures(self, name: str, method: Method, epoch: int) -> dict[str, Any] | None:
        """What `write_figures` wrote, or None."""
        return read_figures(self.path / f"{name}.json", self._made_after(name, method, epoch))

    def _made_after(self, name: str, method: Method, epoch: int) -> MadeFrom:
        after = method.posthoc if method.views is None else [method.posthoc, method.views]
        return self.made_from(name, epoch, posthoc=fingerprint(after))


def _read_json(path: Path, kind: type = dict) -> Any:
    """The content of a JSON file, if it is there and of this kind; else an empty one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return kind()
    return found if isinstance(found, kind) else kind()


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and time, for environment.json."""
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
    """The commit of this code, with `-dirty` if files were changed since; None if this file is in no git repository."""
    this = Path(__file__)

    def git(*arguments: str) -> str:
        settings: dict[str, Any] = {"cwd": this.parent, "capture_output": True, "text": True, "timeout": 10}
        return str(subprocess.run(["git", *arguments], check=True, **settings).stdout).strip()

    try:
        git("ls-files", "--error-unmatch", this.name)
        return git("describe", "--always", "--exclude=*", "--dirty", "--abbrev=40")
    except (OSError, subprocess.SubprocessError):
        return None
