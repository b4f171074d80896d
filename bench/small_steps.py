"""What BalCAL costs per step of small networks, as users wrap them: beside vanilla, and vanilla once more (the noise).

python bench/small_steps.py [ROUNDS]

Where a step takes a millisecond, the second classifier and the tally are no longer free. With `wrap` the adapter adds
at most 5 % of the network's parameters, or 32 hidden units.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from side_by_side import ratio, report, take_turns
from torch import Tensor, nn

import balcal
from balcal.runtime.devices import keep_freed_memory

keep_freed_memory()
METHODS = {"vanilla": "vanilla", "vanilla again": "vanilla", "balcal": "balcal", "balcal-auto": "balcal-auto"}
K, N = 10, 64


def table_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, K))


def linear_probe() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(384), nn.Linear(384, K))


def small_cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, K))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 30-64-64-10": (table_mlp, (30,)),
    "linear classifier on 384 features": (linear_probe, (384,)),
    "two convolutions, 28 x 28": (small_cnn, (1, 28, 28)),
}


def step(name: str, network: nn.Module, x: Tensor, labels: Tensor) -> Callable[[], None]:
    torch.manual_seed(0)
    model = balcal.wrap(network, K, name, quiet=True)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-9)

    def run() -> None:
        model.loss(x, labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return run


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    figures: dict[str, object] = {"what": f"forward, loss, tally, backward, AdamW step; batch {N}, K = {K}"}
    for title, (build, shape) in NETWORKS.items():
        x, labels = torch.randn(N, *shape), torch.randint(K, (N,))
        seconds = take_turns({label: step(name, build(), x, labels) for label, name in METHODS.items()}, rounds=rounds)
        figures[title] = {
            "ms per step": {label: round(1000 * statistics.median(seconds[label]), 3) for label in METHODS},
            "time relative to vanilla": {
                name: ratio(seconds, name, "vanilla") for name in METHODS if name != "vanilla"
            },
        }
    report("small_steps", "python bench/small_steps.py", figures)


if __name__ == "__main__":
    main()
