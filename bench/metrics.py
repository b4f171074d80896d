"""Metrics of 1,000,000 x 100 predictions beside torchmetrics' and netcal's, in one run; and the memory each takes.

python bench/metrics.py
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import ratio, report, take_turns

from balcal import metrics

N, K = 1_000_000, 100


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Made in small pieces, so that making them does not set the peak of memory."""
    rng = torch.Generator().manual_seed(0)
    probs, labels = torch.empty(N, K), torch.empty(N, dtype=torch.long)
    for rows in torch.arange(N).split(10_000):
        z = 2 * torch.randn(len(rows), K, generator=rng)
        probs[rows] = z.softmax(1)
        labels[rows] = torch.multinomial((z / 1.5).softmax(1), 1, generator=rng)[:, 0]
    return probs, labels


def contenders(probs: torch.Tensor, labels: torch.Tensor) -> dict[str, dict[str, Callable[[], Any]]]:
    """What is compared: our call, and theirs that measures the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from netcal import metrics as netcal
        from torchmetrics.functional import classification as peer

    table, y = probs.numpy(), labels.numpy()
    ours = {"probs": probs, "labels": labels}
    inside, outside = probs[: N // 2, 0].contiguous(), probs[N // 2 :, 1].contiguous()
    two = {"scores_in": inside, "scores_out": outside}
    scores, truth = torch.cat([inside, outside]), torch.cat([torch.ones(N // 2), torch.zeros(N // 2)]).long()
    return {
        "ece": {
            "balcal": lambda: metrics.ece(**ours),
            "torchmetrics": lambda: peer.multiclass_calibration_error(probs, labels, K, n_bins=15),
            "netcal": lambda: netcal.ECE(15).measure(table, y),
        },
        "mce": {
            "balcal": lambda: metrics.mce(**ours),
            "torchmetrics": lambda: peer.multiclass_calibration_error(probs, labels, K, n_bins=15, norm="max"),
            "netcal": lambda: netcal.MCE(15).measure(table, y),
        },
        "rmsce": {
            "balcal": lambda: metrics.rmsce(**ours),
            "torchmetrics": lambda: peer.multiclass_calibration_error(probs, labels, K, n_bins=15, norm="l2"),
        },
        "adaptive_ece": {
            "balcal": lambda: metrics.adaptive_ece(**ours),
            "netcal": lambda: netcal.ECE(15, equal_intervals=False).measure(table, y),
        },
        "accuracy": {
            "balcal": lambda: metrics.accuracy(**ours),
            "torchmetrics": lambda: peer.multiclass_accuracy(probs, labels, K, average="micro"),
        },
        "auroc": {
            "balcal": lambda: metrics.auroc(**two),
            "torchmetrics": lambda: peer.binary_auroc(scores, truth),
        },
        "aupr_in": {
            "balcal": lambda: metrics.aupr_in(**two),
            "torchmetrics": lambda: peer.binary_average_precision(scores, truth),
        },
        "all top-label metrics": {
            "balcal": lambda: metrics.top_label(**ours),
            "torchmetrics, ECE alone": lambda: peer.multiclass_calibration_error(probs, labels, K, n_bins=15),
        },
        "without a peer": {
            "smooth_ece": lambda: metrics.smooth_ece(**ours),
            "ks": lambda: metrics.ks(**ours),
            "aurc": lambda: metrics.aurc(**ours),
            "nll": lambda: metrics.nll(**ours),
            "brier": lambda: metrics.brier(**ours),
            "entropy": lambda: metrics.entropy(**ours),
            "classwise_ece": lambda: metrics.classwise_ece(**ours),
            "verdict, 1,000 resamples": lambda: metrics.verdict(**ours),
        },
    }


PEAK = """
import re, sys
sys.path.insert(0, "bench")
from metrics import contenders, data

def mib(name):
    with open("/proc/self/status") as file:
        return int(re.search(name + r":\\s+(\\d+)", file.read()).group(1)) / 1024

calls = contenders(*data())[sys.argv[1]]
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts anew
before = mib("VmRSS")
calls[sys.argv[2]]()
print(mib("VmHWM") - before)
"""


def peak(metric: str, who: str) -> int:
    """MiB beyond the predictions themselves (381 MiB), in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PEAK, metric, who], capture_output=True, text=True, check=True)
    return round(float(done.stdout))


def main() -> None:
    figures: dict[str, Any] = {"what": f"{N:,} x {K} probabilities in float32, labels drawn from a cooler softmax"}
    for metric, calls in contenders(*data()).items():
        seconds = take_turns(calls, rounds=7 if "netcal" not in calls else 3)
        found: dict[str, Any] = {"seconds": {who: round(sorted(s)[len(s) // 2], 3) for who, s in seconds.items()}}
        if "balcal" in calls:
            found |= {f"time relative to {who}": ratio(seconds, "balcal", who) for who in calls if who != "balcal"}
            found["peak MiB beyond the data"] = {who: peak(metric, who) for who in calls}
        figures[metric] = found
        print(metric, found, file=sys.stderr, flush=True)
    report("metrics", "python bench/metrics.py", figures)


if __name__ == "__main__":
    main()
