"""Held-out sets to fit calibrators on, and the shared vectors."""

import json

import torch
from shared_files import VECTORS
from torch.nn import functional as F


def held_out(seed, n=120, k=4, hot=1.0):
    """Over-confident scores, some classes favoured; every class occurs."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(k, (n,), generator=rng)
    y[:k] = torch.arange(k)
    z = 2 * torch.randn(n, k, generator=rng).double() + torch.randn(k, generator=rng).double()
    z[torch.arange(n), y] += 1.5
    return hot * z, y


def nll(log_probs, y):
    return float(F.nll_loss(log_probs, y))


def vector(name):
    """(logits, labels, what is expected)"""
    block = json.loads(VECTORS.read_text())["posthoc"]
    z, y = torch.tensor(block["logits"], dtype=torch.float64), torch.tensor(block["targets"])
    return z, y, next(item for item in block["items"] if item["id"] == name)
