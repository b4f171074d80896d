"""One file from raw pixels to calibrated probabilities: equal to the live model, without us, and with its card."""

import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from runs_helper import trained

import balcal
from balcal import decisions, registry
from balcal.core import BalcalError
from balcal.data.batches import Pixels
from balcal.deploy.export import TOLERANCE, Deployed, export_run, verified
from balcal.evaluation.judge import load_splits
from balcal.evaluation.promises import held_out_and_test
from balcal.registry import dataset, recipe
from balcal.runs import Run

WITHOUT_US = "import sys; sys.modules['balcal'] = None\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The network sees images of 12 pixels a side, made of 8: resizing is in the graph as well."""
    return trained("balcal", tmp_path_factory.mktemp("runs"), settings=["task.backbone=resnet-8", "task.side=12"])


@pytest.fixture(scope="module")
def test_split():
    part = load_splits(recipe("digits", "balcal").task).test
    return part.images.numpy(), part.labels


def live(run, images, posthoc=None):
    """The model as it is, fed by hand: bytes to what it saw in training, then its own forward."""
    pixels = Pixels.of(dataset("digits"), torch.device("cpu"), side=12)
    model = balcal.load(run, posthoc)
    with torch.no_grad():
        return model(pixels(torch.from_numpy(images), torch.zeros(len(images), 3))).exp().numpy()


def elsewhere(code, *arguments):
    """In a process that cannot import balcal."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_US + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=clean,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_onnx(run, test_split, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="onnx is not here: pip install 'balcal[onnx]'")
    pytest.importorskip("onnxscript", reason="onnx is not here: pip install 'balcal[onnx]'")
    images, _ = test_split
    file = tmp_path / "digits.onnx"
    options = ["--to", "onnx", "--with", "ts", "--out", file, "--accuracy", "0.97", "--sets", "0.8", "--json"]
    code, out, err = balcal_cli("export", run, *options, capsys=capsys)
    assert code == 0, err
    card = json.loads(out)
    assert card["verified"]["images"] == len(images) == 500
    assert card["verified"]["batch_sizes"] == [1, 7, 256]
    assert card["verified"]["largest_difference"] <= 1e-5
    expected = live(run, images, "ts")
    np.save(tmp_path / "images.npy", images)
    told = elsewhere(
        "import json, numpy as np, onnxruntime as ort\n"
        "images = np.load(sys.argv[2]); session = ort.InferenceSession(sys.argv[1])\n"
        "parts = []\n"
        "for size in (1, 7, 256):\n"
        "    starts = range(0, len(images), size)\n"
        "    probs = [session.run(['probs'], {'images': images[i : i + size]})[0] for i in starts]\n"
        "    parts.append(np.concatenate(probs))\n"
        "np.save(sys.argv[3], np.stack(parts))\n"
        "print(session.get_modelmeta().custom_metadata_map['balcal.card'])\n",
        file,
        tmp_path / "images.npy",
        tmp_path / "told.npy",
    )
    assert np.abs(np.load(tmp_path / "told.npy") - expected).max() <= 1e-5
    inside, beside = json.loads(told), json.loads((tmp_path / "digits.onnx.card.json").read_text())
    assert inside == beside == {name: value for name, value in card.items() if name not in ("file", "bytes")}
    assert "ECE, 15 bins" in (tmp_path / "digits.onnx.card.md").read_text()
    decides_as_python_does(run, file, images, card)
    probe = "import sys, balcal, numpy as np\np = balcal.load(sys.argv[1])\nprint(p.predict(np.load(sys.argv[2])[0]))\n"
    probe += "assert not {f'balcal.{m}' for m in ('train', 'sessions', 'evaluate', 'registry')} & set(sys.modules)"
    command = [sys.executable, "-c", probe, file, tmp_path / "images.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"['{int(expected[0].argmax())}']"


def decides_as_python_does(run, file, images, card):
    """The graph accepts what Python accepts, and its sets are Python's, on all test images."""
    import onnxruntime

    accept, sets = onnxruntime.InferenceSession(file).run(["accept", "set"], {"images": images})
    method = registry.method("balcal+ts")
    held_out, test = held_out_and_test(Run.at(run), method, torch.device("cpu"))
    found = decisions.threshold(held_out, accuracy=0.97)
    assert 0 < accept.mean() < 1
    assert np.array_equal(accept, found.accept(log_probs=test.log_probs))
    assert card["decisions"]["checked"]["accepted"] == accept.sum()
    fitted = decisions.prediction_sets(held_out, alpha=0.2)
    assert np.array_equal(sets, fitted.predict(log_probs=test.log_probs))
    predictor = balcal.load(file)
    assert np.array_equal(predictor.accept(images), accept)
    assert np.array_equal(predictor.sets(images), sets)
    text = file.with_name(f"{file.name}.card.md").read_text()
    assert "which promises an accuracy of 97.0% with probability 0.95; on the test role" in text
    assert "**Set** of classes that hold the label in 80.0%" in text
    assert "The same held-out samples chose the epoch and fitted ts" in text


def test_torch_export(run, test_split, tmp_path):
    images, _ = test_split
    card = export_run(run, "torch-export", tmp_path / "digits.pt2", most=50)
    expected = live(run, images)
    np.save(tmp_path / "images.npy", images)
    elsewhere(
        "import numpy as np, torch\n"
        "module = torch.export.load(sys.argv[1]).module()\n"
        "np.save(sys.argv[3], module(torch.from_numpy(np.load(sys.argv[2])))[0].detach().numpy())\n",
        tmp_path / "digits.pt2",
        tmp_path / "images.npy",
        tmp_path / "told.npy",
    )
    assert np.abs(np.load(tmp_path / "told.npy") - expected).max() <= 1e-5
    assert card["posthoc"]["name"] is None
    assert card["decisions"]["threshold"]["threshold"] is None, "so few held-out samples cannot promise 99 %"
    assert "cannot be promised" in (tmp_path / "digits.pt2.card.md").read_text()
    predictor = balcal.load(tmp_path / "digits.pt2", trusted=True)
    assert np.abs(predictor(images) - expected).max() <= 1e-5
    with pytest.raises(BalcalError, match=r"digits.pt2 is not opened, .*pass trusted=True if you trust its author"):
        balcal.load(tmp_path / "digits.pt2")


class Malicious:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


class Twice(torch.nn.Module):
    def forward(self, images):
        return images * 2, images


def test_no_code_runs_from_a_file(tmp_path):
    """A program with a pickle among its sample inputs; the same pickle as a state."""
    program = io.BytesIO()
    torch.export.save(torch.export.export(Twice(), (torch.zeros(2, 2),)), program, extra_files={"balcal.card": "{}"})
    state = io.BytesIO()
    torch.save(Malicious(tmp_path / "ran"), state)
    with zipfile.ZipFile(program) as whole, zipfile.ZipFile(tmp_path / "x.pt2", "w") as spoilt:
        samples = [name for name in whole.namelist() if "sample_inputs" in name]
        assert samples
        for name in whole.namelist():
            spoilt.writestr(name, state.getvalue() if name in samples else whole.read(name))
    with pytest.raises(BalcalError, match="trusted=True"):
        balcal.load(tmp_path / "x.pt2")
    (tmp_path / "x.pt").write_bytes(state.getvalue())
    with pytest.raises(BalcalError, match="cannot be opened"):
        balcal.load(tmp_path / "x.pt")
    assert not (tmp_path / "ran").exists()
    torch.load(io.BytesIO(state.getvalue()), weights_only=False)
    assert (tmp_path / "ran").exists(), "it is malicious"


@pytest.mark.timeout(60)
def test_files_that_are_none_of_ours(tmp_path):
    for card in ("null", "[]", "3", "{}", '{"classes": 3, "input": {"shape": [0, 8, 8, 1]}}', "{"):
        torch.save({"balcal.card": card, "state": {}}, tmp_path / "x.pt")
        with pytest.raises(BalcalError, match=r"it is damaged|is not one of `balcal export`"):
            balcal.load(tmp_path / "x.pt")
    (tmp_path / "x.onnx").write_bytes(b"nothing")
    with pytest.raises(BalcalError, match=r"x.onnx cannot be opened|pip install onnxruntime"):
        balcal.load(tmp_path / "x.onnx")
    (tmp_path / "x.pt2").write_bytes(b"nothing")
    with pytest.raises(BalcalError, match=r"x.pt2 cannot be opened"):
        balcal.load(tmp_path / "x.pt2", trusted=True)
    with pytest.raises(BalcalError, match=r"cannot read .*none.pt \(No such file"):
        balcal.load(tmp_path / "none.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(BalcalError, match=r"pipe.pt is no regular file"):
        balcal.load(tmp_path / "pipe.pt")


def test_state_and_what_a_predictor_takes(run, test_split, tmp_path):
    images, labels = test_split
    card = export_run(run, "state", tmp_path / "digits.pt", posthoc="isotonic")
    assert card["verified"]["largest_difference"] <= TOLERANCE
    predictor = balcal.load(tmp_path / "digits.pt")
    told = predictor.predict_proba(images)
    assert np.abs(told - live(run, images, "isotonic")).max() <= 1e-3, "isotonic is steep: it magnifies rounding"
    assert predictor.classes == [str(k) for k in range(10)]
    grey = predictor(images[:5, :, :, 0])
    assert np.array_equal(grey, told[:5]) or np.allclose(grey, told[:5], atol=1e-6), "grey images need no last axis"
    assert predictor.predict_proba(images[:0]).shape == (0, 10)
    assert predictor.predict(images[0]) == [str(told[0].argmax())]
    with pytest.raises(BalcalError, match=r"takes bytes \(N, 8, 8, 1\), raw pixels from 0 to 255, not float64"):
        predictor(images / 255)
    with pytest.raises(BalcalError, match="its post-hoc map is inside"):
        balcal.load(tmp_path / "digits.pt", posthoc="ts")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "digits.pt").read_bytes()[:500])
    with pytest.raises(BalcalError, match="cannot be opened"):
        balcal.load(tmp_path / "torn.pt")
    with pytest.raises(BalcalError, match="unknown kind of export `tflite`"):
        export_run(run, "tflite")
    accuracy = (torch.from_numpy(told).argmax(1) == labels).double().mean()
    assert card["calibration"]["accuracy"] == pytest.approx(float(accuracy))
    for fact in ("date", "classes", "valid", "data", "recipe", "calibration"):
        assert card[fact]
    assert card["data"]["roles"]["test"]["samples"] == 500
    with pytest.raises(BalcalError, match=r"differs from the live one by .* nothing was written"):
        verified(predictor, images, told + 2e-5, lambda size: told + 2e-5)
    same = verified(predictor, images, told + 2e-5, lambda size: predictor.predict_proba(images, batch_size=size))
    assert same["largest_difference"] == 0, "what the live model says in such batches decides"


def test_resizing_by_matrices_is_resizing():
    pixels = Pixels.of(dataset("fashion"), torch.device("cpu"), side=40)
    images = torch.randint(256, (3, 28, 28, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    class Echo(torch.nn.Module):
        def forward(self, seen):
            return seen

    _, seen, *_ = Deployed(Echo(), pixels, (28, 28, 1))(images)
    torch.testing.assert_close(seen, pixels(images, torch.zeros(3, 3)), rtol=0, atol=2e-5)
