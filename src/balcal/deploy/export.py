"""Export a run to one file: ONNX, a torch.export program, or weights; each with its card, each verified.

`Deployed` is what is exported: one module from raw pixels to calibrated probabilities.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from balcal import registry
from balcal.build import as_method
from balcal.core import BalcalError
from balcal.data.batches import MemoryBatches, Pixels
from balcal.deploy.card import card_of, reference, render_card
from balcal.deploy.predictor import CARD, Predictor, open_onnx, open_program, open_state
from balcal.evaluation.judge import batches_of, calibrated_model, evaluate
from balcal.evaluation.predict import predict_batches
from balcal.evaluation.promises import Promises, promises_of, remarks_on
from balcal.model import Model
from balcal.runs import Run
from balcal.runtime.files import write_atomic
from balcal.runtime.names import unknown

INPUT, OUTPUTS = "images", ("probs", "log_probs", "accept", "set")
BATCHES = (1, 7, 256)
"""batch sizes in which an exported file is compared with the live model"""
NEVER = 2.0
"""a threshold that no confidence reaches"""
TOLERANCE = 1e-5
"""largest difference of a probability"""
WITHOUT_ONNX = "export to ONNX needs onnx, onnxruntime and onnxscript: pip install 'balcal[onnx]'"


class Deployed(nn.Module):
    """Bytes (N, H, W, C), as an image file holds them, in; probabilities and their logarithms (N, K) out.

    Normalisation, resizing, network, fusion and post-hoc map are inside. Two more outputs are decisions: `accept` (N,),
    whether the confidence reaches the promised threshold, and `set` (N, K), the classes in the prediction set. Without
    a threshold nothing is accepted; without sets every class is in them.
    """

    scale: Tensor
    shift: Tensor
    threshold: Tensor
    least: Tensor

    def __init__(
        self, model: Model, pixels: Pixels, shape: tuple[int, int, int], promises: Promises | None = None
    ) -> None:
        super().__init__()
        self.model = model.eval()
        self.shape = shape
        self.register_buffer("scale", pixels.scale.clone())
        self.register_buffer("shift", pixels.shift.clone())
        found = None if promises is None else promises.threshold.threshold
        sets = None if promises is None else promises.sets
        self.register_buffer("threshold", torch.tensor(found if isinstance(found, float) else NEVER))
        self.register_buffer("least", torch.tensor(0.0 if sets is None else sets.least_probability))
        resized = pixels.side is not None and shape[:2] != (pixels.side, pixels.side)
        for name, length in (("rows", shape[0]), ("columns", shape[1])):
            self.register_buffer(name, resizing(length, pixels.side) if resized and pixels.side else None)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        seen = (images.to(self.scale.dtype) * self.scale - self.shift).permute(0, 3, 1, 2)
        if self.rows is not None:
            seen = self.rows @ seen @ self.columns.mT  # type: ignore[operator]
        log_probs: Tensor = self.model(seen)
        probs = log_probs.exp()
        return probs, log_probs, probs.amax(1) >= self.threshold, probs >= self.least


def resizing(length: int, side: int) -> Tensor:
    """The matrix (side, length) that resizes one axis as `Pixels` does: bicubic resizing is linear on each axis.

    >>> resizing(4, 2).sum(1)
    tensor([1., 1.])
    """
    unit = torch.eye(length)[None, None]
    size = (side, length)
    resized: Tensor = nn.functional.interpolate(unit, size, mode="bicubic", align_corners=False, antialias=True)
    return resized[0, 0]


def export_run(
    path: str | Path,
    to: str = "onnx",
    out: str | Path | None = None,
    posthoc: str | None = None,
    most: int | None = None,
    accuracy: float = 0.99,
    sets: float = 0.9,
) -> dict[str, Any]:
    """Export the model of a run to one file, and write its card beside it; returns the card, with `file`.

    The file also decides: `accept` promises this `accuracy`, and `set` holds the label with probability `sets`. Both
    are chosen on the calibration split and checked on the test split; the card says how.

    Before anything is written, the file's content is opened as a user would and compared with the live model: on all
    test images, or the first `most` of them, in batches of 1, 7 and 256.
    """
    if to not in FORMATS:
        raise BalcalError(unknown("kind of export", to, FORMATS))
    run = Run.at(Path(path))
    with run.in_use():
        return _export(run, FORMATS[to], out, posthoc, most, (accuracy, sets))


def _export(
    run: Run,
    format: Format,
    out: str | Path | None,
    posthoc: str | None,
    most: int | None,
    wanted: tuple[float, float],
) -> dict[str, Any]:
    cpu = torch.device("cpu")
    method = as_method(run.recipe.method + registry.method(posthoc) if posthoc else run.recipe.method)
    figures = evaluate(run, method, cpu)
    model, splits = calibrated_model(run, method, cpu)
    live = predict_batches(model, batches_of(run, splits.test, cpu), role="test")
    dataset = registry.dataset(run.recipe.task.dataset)
    pixels = Pixels.of(dataset, cpu, side=run.recipe.task.side, by=run.recipe.task.pixels)
    height, width, channels = splits.test.shape[1:]
    held_out = predict_batches(model, batches_of(run, splits.calibrate, cpu), role="calibrate")
    promises = promises_of(held_out, live, accuracy=wanted[0], alpha=round(1 - wanted[1], 12))
    deployed = Deployed(model, pixels, (height, width, channels), promises).eval()
    made = _traced(format, deployed, f"{method}")
    card = card_of(run, figures, live, deployed.shape, dataset.names() if dataset.names else dataset.classes)
    if isinstance(promises.threshold.threshold, float) and card["monitor"] is not None:
        card["monitor"] = reference(live, promises.threshold)
    card["decisions"] = promises.as_dict() | {"remarks": remarks_on(run, method)}
    images = splits.test.images[:most].numpy()

    def live_in(size: int) -> NDArray[Any]:
        batches = MemoryBatches(splits.test.take(torch.arange(len(images))), pixels, size)
        return predict_batches(model, batches, role="test").probs.numpy()

    card["verified"] = verified(format.open(format.pack(made, card)), images, live.probs[:most].numpy(), live_in)
    file = Path(out) if out else run.path / f"model{format.suffix}"
    write_atomic(file, format.pack(made, card))
    write_atomic(file.with_name(f"{file.name}.card.json"), (json.dumps(card, indent=2) + "\n").encode())
    write_atomic(file.with_name(f"{file.name}.card.md"), render_card(card).encode())
    return card | {"file": str(file), "bytes": file.stat().st_size}


def verified(
    predictor: Predictor, images: NDArray[np.uint8], expected: NDArray[Any], live_in: Callable[[int], NDArray[Any]]
) -> dict[str, Any]:
    """Largest difference between the probabilities of the file and of the live model; an error if it is too large.

    A network's last digits depend on the size of a batch, and steep maps (`isotonic`) magnify them. So where a
    difference is large, `live_in` says what the live model predicts in batches of that size.
    """
    largest = 0.0
    for size in BATCHES:
        probs = predictor.predict_proba(images, batch_size=size)
        away = float(np.abs(probs - expected).max())
        if not away <= TOLERANCE:
            away = float(np.abs(probs - live_in(size)).max())
        largest = max(largest, away)
    if not largest <= TOLERANCE:
        raise BalcalError(
            f"the exported model differs from the live one by {largest:.1e} in some probability: "
            "nothing was written; export it to another kind (--to state)"
        )
    return {"images": len(images), "batch_sizes": list(BATCHES), "largest_difference": largest}


def _traced(format: Format, deployed: Deployed, name: str) -> Any:
    height, width, channels = deployed.shape
    example = torch.randint(256, (3, height, width, channels), dtype=torch.uint8)
    try:
        with quietly(), torch.no_grad():
            return format.trace(deployed, example)
    except (BalcalError, ImportError):
        raise
    except Exception as error:
        raise BalcalError(
            f"`{name}` cannot be exported in this format ({type(error).__name__}): "
            "export it with --to state, or with another post-hoc method"
        ) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what the tracers log about their internals and about missing torchvision."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _program(deployed: Deployed, example: torch.Tensor) -> Any:
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(deployed, (example,), dynamic_shapes={INPUT: {0: batch}})


def _onnx(deployed: Deployed, example: torch.Tensor) -> Any:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise BalcalError(WITHOUT_ONNX) from None
    made = torch.onnx.export(
        _program(deployed, example),
        (),
        input_names=[INPUT],
        output_names=list(OUTPUTS),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    if made is None:
        raise BalcalError("the ONNX exporter gave nothing: export with --to torch-export")
    return made.model_proto


def _pack_onnx(proto: Any, card: dict[str, Any]) -> bytes:
    import onnx

    onnx.helper.set_model_props(proto, {CARD: json.dumps(card), f"{CARD}.md": render_card(card)})
    content: bytes = proto.SerializeToString()
    return content


def _pack_program(program: Any, card: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with quietly():
        torch.export.save(program, buffer, extra_files={CARD: json.dumps(card)})
    return buffer.getvalue()


def _pack_state(deployed: Deployed, card: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save({CARD: json.dumps(card), "state": deployed.model.state_dict()}, buffer)
    return buffer.getvalue()


def _as_it_is(deployed: Deployed, example: torch.Tensor) -> Deployed:
    return deployed


class Format(NamedTuple):
    """How a format is named, made and opened."""

    suffix: str
    trace: Callable[[Deployed, torch.Tensor], Any]
    pack: Callable[[Any, dict[str, Any]], bytes]
    open: Callable[[bytes], Any]


FORMATS = {
    "onnx": Format(".onnx", _onnx, _pack_onnx, open_onnx),
    "torch-export": Format(".pt2", _program, _pack_program, open_program),
    "state": Format(".pt", _as_it_is, _pack_state, open_state),
}
