"""Export a fitted calibrator alone as an ONNX graph: scores of some model in, calibrated probabilities out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from balcal.core import BalcalError, Outputs
from balcal.deploy.export import WITHOUT_ONNX, quietly
from balcal.runtime.files import write_atomic

TOLERANCE = 1e-9
"""largest difference of a probability between the graph and `predict_proba`"""
CHECKED = 257
"""rows that the graph is compared on"""


class ScoresToProbs(nn.Module):
    """float64 probabilities, log-probabilities or logits (N, K) in, calibrated probabilities (N, K) out."""

    def __init__(self, fitted: nn.Module, from_probs: bool) -> None:
        super().__init__()
        self.fitted, self.from_probs = fitted, from_probs

    def forward(self, given: Tensor) -> Tensor:
        scores = given.log() if self.from_probs else given
        probs: Tensor = self.fitted(Outputs.of(scores)).exp()
        return probs


def export_map(
    fitted: nn.Module, classes: int, inputs: str, predict_proba: Callable[[Any], Any], who: str, path: Path
) -> Path:
    """Write a fitted map to `path`; returns it. See `Calibrator.export`."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise BalcalError(WITHOUT_ONNX) from None
    graph = ScoresToProbs(fitted, inputs == "probs").eval()
    examples = _examples(classes, inputs)
    rows = torch.export.Dim("rows", min=1)
    try:
        with quietly(), torch.no_grad():
            program = torch.export.export(graph, (examples[:3],), dynamic_shapes={"given": {0: rows}})
            made = torch.onnx.export(
                program,
                (),
                input_names=[inputs],
                output_names=["calibrated"],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        raise BalcalError(
            f"`{who}` cannot be exported to ONNX ({type(error).__name__}): use another calibrator"
        ) from error
    if made is None:
        raise BalcalError("the ONNX exporter gave nothing: use another calibrator")
    content: bytes = made.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = session.run(["calibrated"], {inputs: examples.numpy()})[0]
    away = float(np.abs(found - predict_proba(examples)).max())
    if not away <= TOLERANCE:
        raise BalcalError(
            f"the exported graph differs from `predict_proba` by {away:.1e} in some probability: nothing was written"
        )
    write_atomic(path, content)
    return path


def _examples(classes: int, inputs: str) -> Tensor:
    """Rows from flat to certain, some with an impossible class."""
    rng = torch.Generator().manual_seed(0)
    scale = torch.logspace(-1, 1.5, CHECKED).double()[:, None]
    scores = torch.randn(CHECKED, classes, generator=rng, dtype=torch.float64) * scale
    if inputs == "logits":
        return scores
    return scores.softmax(1) if inputs == "probs" else scores.log_softmax(1)
