"""Load what was exported: `balcal.load("model.onnx")` gives a predictor, without importing anything that trains."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from balcal.core import BalcalError

if TYPE_CHECKING:
    from torch import nn

    from balcal.model import Model
    from balcal.recipe import Method

CARD = "balcal.card"
"""the key of the card inside an exported file"""

Probs = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Predictor:
    """Images as bytes (N, H, W, C) in, calibrated probabilities (N, K) out; `card` is the calibration card."""

    run: Callable[[NDArray[np.uint8]], Probs]
    card: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.card["classes"]
        return names

    def predict_proba(self, images: Any, batch_size: int = 256) -> Probs:
        """Probabilities of raw pixels, 0 to 255; one image (H, W, C) is a batch of one, and grey needs no C."""
        pixels = self._checked(np.asarray(images))
        parts = [self.run(pixels[i : i + batch_size]) for i in range(0, len(pixels), batch_size)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)

    __call__ = predict_proba

    def predict(self, images: Any) -> list[str]:
        """The name of the likeliest class, for each image."""
        return [self.classes[k] for k in self.predict_proba(images).argmax(1)]

    def accept(self, images: Any) -> NDArray[np.bool_]:
        """Whether to act on each image: its confidence reaches the threshold that the card promises."""
        limit = self._decisions()["threshold"]["threshold"]
        conf: Probs = self.predict_proba(images).max(1)
        return np.zeros(len(conf), dtype=np.bool_) if limit is None else conf >= np.float32(limit)

    def sets(self, images: Any) -> NDArray[np.bool_]:
        """(N, K): the classes in the prediction set of each image, as the card promises."""
        sets, probs = self._decisions()["sets"], self.predict_proba(images)
        least = 0.0 if sets is None else -sets["limits"][0]
        return probs >= np.float32(least)

    def _decisions(self) -> dict[str, Any]:
        found: dict[str, Any] | None = self.card.get("decisions")
        if found is None:
            raise BalcalError("this file was exported without decisions: export the run again")
        return found

    def _checked(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        height, width, channels = self.card["input"]["shape"][1:]
        if channels == 1 and images.shape[-2:] == (height, width):
            images = images[..., None]
        if images.ndim == 3:
            images = images[None]
        if images.dtype != np.uint8 or images.shape[1:] != (height, width, channels):
            raise BalcalError(
                f"this model takes bytes (N, {height}, {width}, {channels}), raw pixels from 0 to 255, "
                f"not {images.dtype} {images.shape}"
            )
        return np.ascontiguousarray(images)


@dataclass(frozen=True, eq=False)
class OwnPredictor:
    """An exported model of a user's own network: its inputs in, calibrated probabilities (N, K) out."""

    run: Callable[[list[NDArray[Any]]], Probs]
    card: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        names: list[str] = self.card["classes"]
        return names

    def predict_proba(self, x: Any) -> Probs:
        """Probabilities for a batch of inputs: an array, a tuple of arrays, or a dictionary of arrays."""
        wanted = self.card["inputs"]
        parts = (
            [x[each["name"]] for each in wanted] if hasattr(x, "keys") else x if isinstance(x, list | tuple) else [x]
        )
        arrays = [np.asarray(part, dtype=each["dtype"]) for part, each in zip(parts, wanted, strict=False)]
        for array, each in zip(arrays, wanted, strict=False):
            if len(arrays) != len(wanted) or list(array.shape[1:]) != each["shape"][1:]:
                raise BalcalError(f"this model takes {each['name']} of shape {tuple(each['shape'])}, not {array.shape}")
        return self.run([np.ascontiguousarray(array) for array in arrays])

    __call__ = predict_proba

    def predict(self, x: Any) -> list[str]:
        """The name of the likeliest class, for each sample."""
        return [self.classes[k] for k in self.predict_proba(x).argmax(1)]


def open_onnx(content: bytes) -> Predictor | OwnPredictor:
    try:
        import onnxruntime
    except ImportError:
        raise BalcalError("to run an ONNX file, pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    card = session.get_modelmeta().custom_metadata_map.get(CARD)
    names = [given.name for given in session.get_inputs()]
    if card and "inputs" in json.loads(card):
        return OwnPredictor(lambda x: session.run(["probs"], dict(zip(names, x, strict=True)))[0], json.loads(card))
    (name,) = names

    def run(images: NDArray[np.uint8]) -> Probs:
        probs: Probs = session.run(["probs"], {name: images})[0]
        return probs

    return Predictor(run, _read(card))


def open_program(content: bytes) -> Predictor | OwnPredictor:
    """Only for content that is trusted: torch.export.load unpickles parts of it, and a pickle is a program."""
    import torch

    extra = {CARD: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=extra).module()
    if extra[CARD] and "inputs" in json.loads(extra[CARD]):

        def run(x: list[NDArray[Any]]) -> Probs:
            with torch.no_grad():
                probs: Probs = module(*map(torch.from_numpy, x))[0].numpy()
            return probs

        return OwnPredictor(run, json.loads(extra[CARD]))
    return Predictor(_by_torch(module), _read(extra[CARD]))


def open_state(content: bytes) -> Predictor:
    import torch

    from balcal import registry
    from balcal.build import build
    from balcal.data.batches import Pixels
    from balcal.deploy.export import Deployed

    saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if isinstance(saved, dict) and "balcal.model" in saved:
        raise BalcalError("this .pt file is of balcal.save: pass network=, built as the saved one was")
    if not isinstance(saved, dict) or CARD not in saved:
        raise BalcalError("this .pt file was not written by `balcal export`: it has no card")
    card = _read(saved[CARD])
    names = card["names"]
    method = "+".join(filter(None, (names["method"], names["posthoc"])))
    recipe = registry.recipe(names["task"], method, names["seed"], names["overrides"])
    model = build(recipe, weights=False)
    model.load_state_dict(saved["state"])
    dataset = registry.dataset(recipe.task.dataset)
    pixels = Pixels.of(dataset, torch.device("cpu"), side=recipe.task.side, by=recipe.task.pixels)
    height, width, channels = card["input"]["shape"][1:]
    return Predictor(_by_torch(Deployed(model, pixels, (height, width, channels))), card)


def _by_torch(module: Callable[..., Any]) -> Callable[[NDArray[np.uint8]], Probs]:
    import torch

    def run(images: NDArray[np.uint8]) -> Probs:
        with torch.no_grad():
            probs: Probs = module(torch.from_numpy(images))[0].numpy()
        return probs

    return run


def _read(card: str | None) -> dict[str, Any]:
    if not card:
        raise BalcalError("this file was not written by `balcal export`: it has no card")
    content: dict[str, Any] = json.loads(card)
    height, width, channels = content["input"]["shape"][1:]
    if not (isinstance(content["classes"], list) and all(isinstance(n, int) for n in (height, width, channels))):
        raise BalcalError("the card in this file is not one of `balcal export`: export the run again")
    return content


OPENERS = {".onnx": open_onnx, ".pt2": open_program, ".pt": open_state}


def load(
    path: str | Path,
    posthoc: str | None = None,
    device: str | None = None,
    *,
    network: nn.Module | None = None,
    method: Method | str | None = None,
    trusted: bool = False,
) -> Model | Predictor | OwnPredictor:
    """The model of a run folder, one that `balcal.save` wrote, or a predictor of an exported file.

    For a model that was saved, `network` is built as the saved one was; a `method` of your own is passed as well. For a
    run, `posthoc="ts"` fits that on its calibration split. A `.pt2` can hold code that runs while it is opened:
    it is opened with `trusted=True` only. An `.onnx` or `.pt` holds none. `path` is a folder or a file, `device` is for
    runs: "cpu", "cuda", ...

    >>> import balcal, tempfile, torch
    >>> network = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> model = balcal.wrap(network(), num_classes=3)
    >>> path = Path(tempfile.mkdtemp()) / "model.pt"
    >>> _ = balcal.save(model, path)
    >>> x = torch.randn(5, 4)
    >>> load(path, network=network()).eval()(x).equal(model.eval()(x))
    True
    """
    place = Path(path)
    if hasattr(posthoc, "state_dict"):  # a network, passed by position
        network, posthoc = cast("nn.Module", posthoc), None
    if network is not None:
        from balcal.deploy.own_model import restored

        return restored(place, network, method)
    if place.suffix not in OPENERS or place.is_dir():
        from balcal.evaluation.judge import load as load_run

        return load_run(place, posthoc, device)
    if posthoc is not None:
        raise BalcalError(f"{path} is exported: its post-hoc map is inside; export the run again with --with {posthoc}")
    if place.suffix == ".pt2" and not trusted:
        raise BalcalError(
            f"{path} is not opened, because a .pt2 can hold code that runs when it is opened: pass trusted=True if you "
            "trust its author, or export the run to onnx or state"
        )
    try:
        if place.exists() and not place.is_file():  # a named pipe would be waited for
            raise BalcalError(f"{path} is no regular file")
        content = place.read_bytes()
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    try:
        return OPENERS[place.suffix](content)
    except BalcalError:
        raise
    except Exception as error:
        raise BalcalError(f"{path} cannot be opened ({type(error).__name__}): it is damaged") from None
