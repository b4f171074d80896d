"""The five lines of the README run as printed."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

README = Path(__file__).parents[1] / "README.md"


def test_the_five_lines():
    x, y = torch.randn(200, 1, 28, 28), torch.randint(10, (200,))
    names = {
        "network": nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
        **{f"{part}_loader": DataLoader(TensorDataset(x, y), batch_size=50) for part in ("train", "val", "test")},
    }
    code = re.search(r"```python\n(import balcal\n.*?)```", README.read_text(), re.S).group(1)
    assert len(code.strip().splitlines()) == 5
    exec(code.replace("epochs=30", "epochs=1"), names)
    assert names["model"].num_classes == 10
