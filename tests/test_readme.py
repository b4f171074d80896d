"""The examples of the README run as printed, and it stays short."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = dict(re.findall(r"## (I \w+ [\w ]+)\n\n```python\n(.*?)```", README, re.S))


def network():
    x, y = torch.randn(200, 1, 28, 28), torch.randint(10, (200,))
    return {
        "network": nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
        **{f"{part}_loader": DataLoader(TensorDataset(x, y), batch_size=50) for part in ("train", "val", "test")},
    }


def predictions():
    """Of a calibrated model: labels are drawn from its probabilities."""
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet([0.1] * 5, 2000) for _ in range(2))
    y, z = (np.array([rng.choice(5, p=row) for row in table]) for table in (p, q))
    return {"p": p, "y": y, "q": q, "z": z}


def test_there_is_an_example_for_each_kind_of_user():
    assert [*EXAMPLES] == ["I have a network", "I have predictions", "I must decide"]


def test_five_lines_train_a_network(capsys):
    names = network()
    exec(EXAMPLES["I have a network"].replace("epochs=30", "epochs=1"), names)
    assert names["model"].num_classes == 10
    assert "200 samples, 10 classes" in capsys.readouterr().out


def test_five_lines_calibrate_predictions(capsys):
    names = predictions()
    exec(EXAMPLES["I have predictions"], names)
    assert names["calibrated"].shape == (2000, 5)
    assert "indistinguishable from perfect" in capsys.readouterr().out


def test_five_lines_decide(capsys):
    names = predictions()
    exec(EXAMPLES["I must decide"], names)
    accepted, truth = names["accepted"], names["z"]
    assert 0.3 < accepted.mean() < 1
    assert (names["q"].argmax(1) == truth)[accepted].mean() > 0.94
    assert names["possible"][np.arange(2000), truth].mean() == pytest.approx(0.9, abs=0.03)
    assert "95" in capsys.readouterr().out


def test_examples_have_five_lines_and_the_page_is_short():
    assert {len(code.strip().splitlines()) for code in EXAMPLES.values()} == {5}
    assert sum(any(c.isalnum() for c in word) for word in README.split()) < 900


def test_other_libraries_are_those_that_are_installed(monkeypatch):
    """`python results/scripts/peers.py` looks into them."""
    monkeypatch.syspath_prepend(str(ROOT / "results" / "scripts"))
    peers = sys.modules.get("peers") or __import__("peers")
    for name in peers.PEERS:
        assert f"\n| {name} |" in README
        assert (peers.installed(name) or name.split()[1]).startswith(name.split()[1]), f"read {name} anew"
