"""Serve an exported model: calibrated probabilities, accept or abstain, prediction sets, and a monitor.

    balcal export RUN --to onnx --with ts --accuracy 0.95 --sets 0.9 --out model.onnx
    python examples/serve/app.py model.onnx --state monitor.json

The file's own graph decides (`accept`, `set`); its card says what that promises, and what is normal for the monitor.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import numpy as np
import onnxruntime
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import balcal

KEPT = 100_000
"""predictions that wait for their label; the oldest are forgotten first"""
BIGGEST = 32 * 2**20
"""bytes of a request"""


class Images(BaseModel):
    """Raw pixels from 0 to 255: (N, H, W, C), or (N, H, W) where images are grey."""

    images: Annotated[list[Any], Field(min_length=1)]


class Outcome(BaseModel):
    """What a prediction turned out to be."""

    id: str
    label: str


class Refused(Exception):
    """A request that cannot be answered, with the code and the sentence to answer it with."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


class Service:
    """The model, its card, its monitor, and predictions whose labels are not known yet."""

    def __init__(self, model: Path, state: Path | None = None, most: int = 256, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self.session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for each reason
            raise SystemExit(f"{model} cannot be opened: {error}") from None
        known = self.session.get_modelmeta().custom_metadata_map
        if "balcal.card" not in known or {"accept", "set"} - {each.name for each in self.session.get_outputs()}:
            raise SystemExit(f"{model} was not written by `balcal export`: export a run to onnx")
        self.card: dict[str, Any] = json.loads(known["balcal.card"])
        self.classes: list[str] = self.card["classes"]
        self.shape: tuple[int, int, int] = tuple(self.card["input"]["shape"][1:])
        self.most, self.state, self.lock = most, state, Lock()
        kept = json.loads(state.read_text()) if state and state.exists() else self.card["monitor"]
        self.monitor = balcal.Monitor.of(kept) if kept else None
        self.waiting: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def pixels(self, images: list[Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Lists of numbers as bytes, or a sentence about what is wrong with them."""
        try:
            array = np.asarray(images)
        except ValueError:
            raise Refused(422, "the images have rows of different lengths") from None
        if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() <= 255):
            raise Refused(422, "pixels must be whole numbers from 0 to 255")
        if self.shape[2] == 1 and array.ndim == 3:
            array = array[..., None]
        if array.shape[1:] != self.shape:
            raise Refused(422, f"this model takes images of shape {self.shape}, not {array.shape[1:]}")
        return array.astype(np.uint8)

    def predict(self, array: np.ndarray[Any, np.dtype[np.uint8]]) -> list[dict[str, Any]]:
        if len(array) > self.most:
            raise Refused(413, f"send at most {self.most} images at once, not {len(array)}")
        probs, accept, sets = self.session.run(["probs", "accept", "set"], {"images": np.ascontiguousarray(array)})
        best, ids = probs.argmax(1), [secrets.token_hex(8) for _ in probs]
        confidence = probs.max(1)
        with self.lock:
            if self.monitor and self.monitor.see(confidence):
                self.save()
            for name, sure, k in zip(ids, confidence.tolist(), best.tolist(), strict=True):
                self.waiting[name] = (sure, k)
            while len(self.waiting) > KEPT:
                self.waiting.popitem(last=False)
        return [
            {
                "id": name,
                "class": self.classes[k],
                "confidence": float(row[k]),
                "accept": bool(yes),
                "set": [self.classes[j] for j in np.flatnonzero(inside)],
                "probs": row.tolist(),
            }
            for name, k, row, yes, inside in zip(ids, best, probs, accept, sets, strict=True)
        ]

    def learn(self, outcomes: list[Outcome]) -> dict[str, Any]:
        """All of them, or none: an unknown id or class changes nothing."""
        with self.lock:
            if self.monitor is None:
                raise Refused(404, "this model's card has no reference to compare with")
            if len({each.id for each in outcomes}) < len(outcomes):
                raise Refused(422, "an id stands there twice")
            for each in outcomes:
                if each.id not in self.waiting:
                    raise Refused(404, f"there is no prediction `{each.id:.40}` that waits for its label")
                if each.label not in self.classes:
                    raise Refused(422, f"there is no class `{each.label:.40}`: the card lists them")
            pairs = [(*self.waiting.pop(each.id), self.classes.index(each.label)) for each in outcomes]
            new = self.monitor.learn([c for c, _, _ in pairs], [k == y for _, k, y in pairs]) if pairs else []
            self.save()
        return {"learned": len(pairs), "alarms": [str(alarm) for alarm in new]}

    def watched(self) -> dict[str, Any]:
        with self.lock:
            if self.monitor is None:
                raise Refused(404, "this model's card has no reference to compare with")
            seen = {watch.name: watch.seen for watch in self.monitor.watches}
            alarms = [str(alarm) for alarm in self.monitor.alarms]
        return {"ok": not alarms, "alarms": alarms, "samples": seen, "waiting": len(self.waiting)}

    def save(self) -> None:
        """The monitor's state, so that a restart goes on where it was."""
        if self.state and self.monitor:
            new = self.state.with_suffix(".new")
            new.write_text(json.dumps(self.monitor.as_dict()))
            os.replace(new, self.state)


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.save()

    app = FastAPI(title="balcal", description=__doc__, lifespan=lifespan)

    @app.exception_handler(Refused)
    async def refuse(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": error.sentence}, error.code)

    @app.exception_handler(RequestValidationError)
    async def misread(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"error": f"{place}: {first['msg']}"}, 422)

    @app.middleware("http")
    async def limit(request: Request, call_next: Any) -> Any:
        length = request.headers.get("content-length")
        if request.method == "POST" and (length is None or not length.isdigit() or int(length) > BIGGEST):
            return JSONResponse({"error": f"a request needs a Content-Length of at most {BIGGEST} bytes"}, 413)
        return await call_next(request)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/card")
    def card() -> dict[str, Any]:
        """The calibration card: what the model was trained and judged on, and what it promises."""
        return service.card

    @app.post("/predict")
    def predict(given: Images) -> dict[str, Any]:
        """Act where `accept` is true; `set` are the classes that are still possible."""
        return {"predictions": service.predict(service.pixels(given.images))}

    @app.post("/predict/bytes")
    def predict_bytes(pixels: Annotated[bytes, Body(media_type="application/octet-stream")]) -> dict[str, Any]:
        """The same for N x H x W x C bytes, which is faster."""
        count, rest = divmod(len(pixels), int(np.prod(service.shape)))
        if rest or not count:
            raise Refused(422, f"an image is {int(np.prod(service.shape))} bytes, and these are {len(pixels)}")
        return {"predictions": service.predict(np.frombuffer(pixels, np.uint8).reshape(-1, *service.shape))}

    @app.post("/outcomes")
    def outcomes(known: list[Outcome]) -> dict[str, Any]:
        """Labels of earlier predictions, as they become known."""
        return service.learn(known)

    @app.get("/monitor")
    def monitor() -> dict[str, Any]:
        """Has confidence or calibration drifted? Is a promise broken?"""
        return service.watched()

    return app


def main(arguments: list[str] | None = None) -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a file of `balcal export --to onnx`")
    parser.add_argument("--state", type=Path, help="keeps the monitor over restarts, as JSON")
    parser.add_argument("--most", type=int, default=256, help="images in one request")
    parser.add_argument("--threads", type=int, default=1, help="of the network, for one request")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args(arguments)
    service = Service(given.model, given.state, given.most, given.threads)
    uvicorn.run(create_app(service), host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
