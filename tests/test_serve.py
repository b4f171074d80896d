"""examples/serve: a real server on loopback, good requests and bad ones."""

import http.client
import json
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from runs_helper import trained

import balcal
from balcal.deploy.export import export_run
from balcal.evaluation.judge import load_splits
from balcal.registry import recipe

pytest.importorskip("fastapi", reason="fastapi is not here: pip install 'balcal[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not here: pip install 'balcal[serve]'")
pytest.importorskip("onnxscript", reason="onnx is not here: pip install 'balcal[onnx]'")


@pytest.fixture(scope="module")
def serve():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "serve"))
        import app

        yield app
        del sys.modules["app"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    file = folder / "digits.onnx"
    export_run(trained("balcal-auto", folder / "runs"), "onnx", file, posthoc="ts", most=20, accuracy=0.7)
    return file


@pytest.fixture(scope="module")
def images():
    part = load_splits(recipe("digits", "balcal").task).test
    return part.images.numpy(), part.labels.numpy()


@contextmanager
def running(serve, *arguments, **settings):
    """Asks the server on its port; it has stopped at the end."""
    server = uvicorn.Server(
        uvicorn.Config(serve.create_app(serve.Service(*arguments, **settings)), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]

        def ask(path, content=None, kind="application/json"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = content if isinstance(content, bytes) or content is None else json.dumps(content)
            connection.request("GET" if body is None else "POST", path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            found = answer.status, json.loads(answer.read())
            connection.close()
            return found

        yield ask
    finally:
        server.should_exit = True
        thread.join()


def test_predictions_are_those_of_the_file(serve, model, images):
    pixels, _ = images
    expected = balcal.load(model)
    with running(serve, model) as ask:
        assert ask("/health") == (200, {"status": "ok"})
        assert ask("/card")[1] == expected.card
        code, found = ask("/predict", {"images": pixels[:5].tolist()})
        assert code == 200
        for each, probs, yes, inside in zip(
            found["predictions"],
            expected.predict_proba(pixels[:5]),
            expected.accept(pixels[:5]),
            expected.sets(pixels[:5]),
            strict=True,
        ):
            np.testing.assert_allclose(each["probs"], probs, atol=1e-6)
            assert each["class"] == expected.classes[probs.argmax()]
            assert each["confidence"] == max(each["probs"])
            assert each["accept"] == yes
            assert each["set"] == [expected.classes[k] for k in np.flatnonzero(inside)]
        raw = ask("/predict/bytes", pixels[:5].tobytes(), "application/octet-stream")[1]["predictions"]
        grey = ask("/predict", {"images": pixels[:5, ..., 0].tolist()})[1]["predictions"]
        for other in (raw, grey):
            assert [each["probs"] for each in other] == [each["probs"] for each in found["predictions"]]


@pytest.mark.parametrize(
    ("path", "content", "code", "sentence"),
    [
        ("/predict", b"{", 422, "JSON"),
        ("/predict", {"pictures": []}, 422, "images: Field required"),
        ("/predict", {"images": []}, 422, "at least 1"),
        ("/predict", {"images": [[[0, 1], [2]]]}, 422, "rows of different lengths"),
        ("/predict", {"images": np.zeros((1, 9, 8), int).tolist()}, 422, "images of shape (8, 8, 1), not (9, 8, 1)"),
        ("/predict", {"images": np.full((1, 8, 8), 256).tolist()}, 422, "from 0 to 255"),
        ("/predict", {"images": np.full((1, 8, 8), 0.5).tolist()}, 422, "whole numbers"),
        ("/predict", {"images": np.zeros((9, 8, 8), int).tolist()}, 413, "at most 8 images"),
        ("/predict/bytes", b"x" * 63, 422, "an image is 64 bytes, and these are 63"),
        ("/predict/bytes", b"x" * (2**20), 413, "Content-Length of at most"),
        ("/outcomes", [{"id": "nobody", "label": "0"}], 404, "no prediction `nobody`"),
        ("/outcomes", [{"id": "nobody"}], 422, "label: Field required"),
    ],
)
def test_a_bad_request_gets_a_sentence(serve, server, monkeypatch, path, content, code, sentence):
    monkeypatch.setattr(serve, "BIGGEST", 2**19)
    kind = "application/octet-stream" if path.endswith("bytes") else "application/json"
    found, answer = server(path, content, kind)
    assert found == code
    assert sentence in answer["error"]
    assert server("/health")[0] == 200


@pytest.fixture(scope="module")
def server(serve, model):
    with running(serve, model, most=8) as ask:
        yield ask


def test_the_monitor_notices_wrong_answers_and_survives_a_restart(serve, model, images, tmp_path):
    pixels, labels = images
    state = tmp_path / "monitor.json"
    with running(serve, model, state) as ask:
        made = [
            each
            for i in (0, 200)
            for each in ask("/predict", {"images": pixels[i : i + 200].tolist()})[1]["predictions"]
        ]
        right = [{"id": each["id"], "label": str(y)} for each, y in zip(made, labels, strict=False)][:300]
        assert ask("/outcomes", right) == (200, {"learned": 300, "alarms": []})
        assert ask("/outcomes", right[:1])[0] == 404, "each label counts once"
        assert ask("/outcomes", [{"id": made[300]["id"], "label": "zebra"}])[0] == 422
        found = ask("/monitor")[1]
        assert found["ok"]
        assert (found["samples"]["confidence"], found["samples"]["calibration"], found["waiting"]) == (400, 300, 100)
    with running(serve, model, state) as ask:
        assert ask("/monitor")[1]["samples"]["calibration"] == 300
        made = ask("/predict", {"images": pixels[:200].tolist()})[1]["predictions"]
        wrong = [{"id": each["id"], "label": str((int(each["class"]) + 1) % 10)} for each in made]
        assert any("calibration went down" in alarm for alarm in ask("/outcomes", wrong)[1]["alarms"])
        assert not ask("/monitor")[1]["ok"]


def test_a_foreign_file_is_refused(serve, tmp_path):
    import onnx

    wires = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in ("images", "probs")]
    node = onnx.helper.make_node("Identity", ["images"], ["probs"])
    graph = onnx.helper.make_graph([node], "g", wires[:1], wires[1:])
    made = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(made, tmp_path / "foreign.onnx")
    with pytest.raises(SystemExit, match="was not written by `balcal export`"):
        serve.main([str(tmp_path / "foreign.onnx")])
    with pytest.raises(SystemExit, match=r"missing\.onnx cannot be opened"):
        serve.main([str(tmp_path / "missing.onnx")])
