"""Gamma for N = 1.28 million, K = 1000: a streamed tally beside storing all logits and bisecting.

The tally is fed all 5,000 batches (four different ones, in turn). Storing their logits would take 9.5 GiB, so that is
done for a smaller N in the same run and extrapolated: time and memory both grow linearly with N.

    python bench/tally.py
"""

from __future__ import annotations

import resource
import time

import torch
from side_by_side import report

from balcal.methods.parts import gamma_search as balance

N, K, BATCH, STORED = 1_280_000, 1000, 256, 25_600
DELTA = 0.95


def mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Stream:
    """Batches of a late epoch: an over-confident classifier, and an under-confident ETF head that mostly agrees."""

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(0)
        self.pool = [self.draw() for _ in range(4)]

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        labels = torch.randint(K, (BATCH,), generator=self.rng)
        standard, etf = torch.randn(2, BATCH, K, generator=self.rng)
        rows = torch.arange(BATCH)
        standard[rows, labels] += torch.where(torch.rand(BATCH, generator=self.rng) < 0.9, 14.0, 1.0)
        etf = 0.05 * etf
        etf[rows, labels] += torch.where(torch.rand(BATCH, generator=self.rng) < 0.95, 0.6, 0.0)
        return standard, etf, labels

    def batches(self, n: int):
        for i in range(n // BATCH):
            yield self.pool[i % len(self.pool)]


def tally(stream: Stream, n: int, add) -> tuple[balance.Solution, float]:
    sums = balance.start_sums(129, torch.device("cpu"))
    begun = time.perf_counter()
    for standard, etf, labels in stream.batches(n):
        add(sums, standard, etf, labels)
    solution = balance.solve_gamma(balance.Curve.of(sums, balance.gamma_grid(129, sums["conf"])), DELTA)
    return solution, time.perf_counter() - begun


def store_and_bisect(stream: Stream, n: int, logits: bool) -> tuple[float, float]:
    """Keep all logits, then halve [0, 1] until 2^-14 < 1e-4, one full softmax pass over the data each time."""
    begun = time.perf_counter()
    kept = [(s.clone(), e.clone(), y) for s, e, y in stream.batches(n)]
    standard, etf, labels = (torch.cat(parts) for parts in zip(*kept, strict=True))
    if not logits:
        standard, etf = standard.softmax(1), etf.softmax(1)
    low, high = 0.0, 1.0
    for _ in range(14):
        g = (low + high) / 2
        mixed = g * standard + (1 - g) * etf
        conf, pick = (mixed.softmax(1) if logits else mixed).max(1)
        if float(conf.mean()) < DELTA * float((pick == labels).double().mean()):
            low = g
        else:
            high = g
    return (low + high) / 2, time.perf_counter() - begun


def main() -> None:
    stream = Stream()
    figures: dict[str, object] = {"what": f"N = {N:,}, K = {K}, batches of {BATCH}, {N // BATCH:,} of them streamed"}
    before = mib()
    for fusion, add in (("probs", balance.add_gamma_probs), ("logits", balance.add_gamma_logits)):
        solution, seconds = tally(stream, N, add)
        figures[f"tally, {fusion}"] = {
            "seconds": round(seconds, 1),
            "ms per batch": round(1000 * seconds / (N // BATCH), 2),
            "gamma": round(solution.value, 5),
            "gap": round(solution.gap, 6),
        }
    figures["memory of both tallies beyond the batches, MiB"] = round(mib() - before, 1)
    for fusion in ("probs", "logits"):
        before = mib()
        gamma, seconds = store_and_bisect(stream, STORED, fusion == "logits")
        _, tally_seconds = tally(stream, STORED, getattr(balance, f"add_gamma_{fusion}"))
        figures[f"store and bisect, {fusion}"] = {
            "N really stored": STORED,
            "seconds": round(seconds, 2),
            "seconds of the tally at this N": round(tally_seconds, 2),
            "gamma": round(gamma, 5),
            f"seconds extrapolated to N = {N:,}": round(seconds * N / STORED, 1),
            "GiB for the logits alone at that N": round(2 * N * K * 4 / 2**30, 2),
        }
    report("tally", "python bench/tally.py", figures)


main()
