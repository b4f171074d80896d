"""What preparing batches costs beside a training step, and whether networks learn as much from them as from plain ones.

BALCAL_DATA=../shared/data python bench/data.py     (without CIFAR-10, on the embedded clothes)

The plain pipeline is written image by image with NumPy: pad by four, cut, mirror with chance one half, normalise. It
draws its own order and its own cuts; weights, steps and batches are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from side_by_side import ratio, report, take_turns
from torch import Tensor
from torch.nn.functional import cross_entropy

from balcal import registry
from balcal.core import BalcalError
from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import Dataset, ImageSet, keep
from balcal.model import Model
from balcal.runtime.devices import keep_freed_memory

CPU = torch.device("cpu")
STEPS, BATCH, SEEDS, EPOCHS, IMAGES = 8, 128, 6, 6, 4_000


def available() -> Dataset:
    for name in ("cifar10", "fashion"):
        try:
            dataset = registry.dataset(name)
            dataset.load()
            return dataset
        except BalcalError as error:
            print(error)
    raise SystemExit("no images")


def cost(dataset: Dataset) -> dict[str, Any]:
    """Eight batches of 128: preparing them, and forward, backward and Adam on them."""
    train = keep(dataset.load()[0], STEPS * BATCH, dataset.num_classes, 0)
    batches = MemoryBatches(train, Pixels.of(dataset, CPU, "crop+flip"), BATCH, seed=0)
    torch.manual_seed(0)
    model = Model(registry.backbone("wrn-16-2", dataset.channels), dataset.num_classes, registry.method("vanilla"))
    model = model.to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(model.parameters(), 1e-9)
    ready = list(batches.epoch(0))

    def prepare() -> None:
        for _ in range(5):
            for _ in batches.epoch(0):
                pass

    def steps() -> None:
        for images, labels in ready:
            model.loss(images, labels).backward()
            optimiser.step()
            optimiser.zero_grad()

    seconds = take_turns({"prepare": prepare, "steps": steps}, 12)
    seconds["prepare"] = [s / 5 for s in seconds["prepare"]]
    return {
        "what": f"WRN-16-2, batch {BATCH}, images of {dataset.name}, crop and flip; {STEPS} steps a turn",
        "ms per batch": {name: round(1000 * statistics.median(s) / STEPS, 2) for name, s in seconds.items()},
        "preparing relative to forward, backward and Adam": ratio(seconds, "prepare", "steps"),
    }


def plainly(dataset: Dataset, train: ImageSet, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(train))
    images, labels = train.images.numpy(), train.labels.numpy()
    mean, std = np.array(dataset.mean, np.float32), np.array(dataset.std, np.float32)
    for first in range(0, len(order) - BATCH + 1, BATCH):
        seen = []
        for number in order[first : first + BATCH]:
            image = np.pad(images[number], ((4, 4), (4, 4), (0, 0)))
            down, right = rng.integers(0, 9, size=2)
            image = image[down : down + images.shape[1], right : right + images.shape[2]]
            if rng.random() < 0.5:
                image = image[:, ::-1]
            seen.append(((image.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1))
        yield torch.from_numpy(np.stack(seen)), torch.from_numpy(labels[order[first : first + BATCH]])


def accuracy(dataset: Dataset, seed: int, plain: bool) -> float:
    """After a fixed small budget, on 2,000 test images, in percent."""
    train, test = (keep(p, n, dataset.num_classes, 0) for p, n in zip(dataset.load(), (IMAGES, 2_000), strict=True))
    ours = MemoryBatches(train, Pixels.of(dataset, CPU, "crop+flip"), BATCH, seed=seed)
    torch.manual_seed(seed)
    net = torch.nn.Sequential(registry.backbone("resnet-8", dataset.channels), torch.nn.Linear(64, dataset.num_classes))
    net = net.to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    total = EPOCHS * (IMAGES // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total)
    for epoch in range(EPOCHS):
        for images, labels in plainly(dataset, train, seed, epoch) if plain else ours.epoch(epoch):
            cross_entropy(net(images), labels).backward()
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
    net.eval()
    judged = MemoryBatches(test, Pixels.of(dataset, CPU), 500)
    with torch.no_grad():
        right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in judged.epoch(0))
    return 100 * right / len(test)


def learning(dataset: Dataset) -> dict[str, Any]:
    accuracies = {
        name: [accuracy(dataset, seed, name == "plain") for seed in range(SEEDS)] for name in ("ours", "plain")
    }
    gaps = [a - b for a, b in zip(accuracies["ours"], accuracies["plain"], strict=True)]
    half = 2.571 * statistics.stdev(gaps) / SEEDS**0.5  # Student's t for five degrees of freedom
    middle = statistics.mean(gaps)
    return {
        "what": f"ResNet-8, {IMAGES:,} images of {dataset.name}, {EPOCHS} epochs, {SEEDS} seeds; accuracy in percent",
        **{name: {"mean": round(statistics.mean(a), 2), "by seed": a} for name, a in accuracies.items()},
        "ours minus plain": {"mean": round(middle, 2), "95 %": [round(middle - half, 2), round(middle + half, 2)]},
    }


keep_freed_memory()
images = available()
report("data", "BALCAL_DATA=../shared/data python bench/data.py", {"cost": cost(images), "learning": learning(images)})
