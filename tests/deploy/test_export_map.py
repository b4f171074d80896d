"""A bare calibrator as an ONNX graph gives what `predict_proba` gives."""

import numpy as np
import pytest

from balcal import Calibrator
from balcal.build import calibrators

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'balcal[onnx]'")


@pytest.mark.parametrize("name", [name for name in calibrators() if name not in ("gamma", "laplace")])
def test_the_graph_equals_the_calibrator(name, tmp_path):
    rng = np.random.default_rng(0)
    k = 2 if name in ("platt", "beta", "quadratic") else 3
    z = rng.normal(size=(200, k)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    p = np.exp(2 * z) / np.exp(2 * z).sum(1, keepdims=True)
    inputs = {"ts": "logits", "svs": "log_probs"}.get(name, "probs")
    given = {"probs": p, "log_probs": np.log(p), "logits": 2 * z}[inputs]
    calibrator = Calibrator(name, inputs=inputs).fit(given, y)
    path = calibrator.export(tmp_path / "map.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == [inputs]
    for rows in (1, 7, 200):
        (found,) = session.run(None, {inputs: given[:rows]})
        np.testing.assert_allclose(found, calibrator.predict_proba(given[:rows]), atol=1e-9)
