"""Randomness as a function of (seed, purpose, epoch, position), never of what happened before.

So a run resumes bit by bit without saved generators, and the number of processes and of loader workers does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Key = int | str


def stream(*key: Key) -> int:
    """A seed that depends on all of the key and nothing else, the same on every machine.

    >>> stream(0, "order", 3) == stream(0, "order", 3) != stream(1, "order", 3)
    True
    """
    digest = hashlib.blake2b("\0".join(f"{type(k).__name__}:{k}" for k in key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*key: Key) -> torch.Generator:
    """A generator on the CPU, so that its draws are the same whatever device they are used on."""
    return torch.Generator().manual_seed(stream(*key))


def seed_torch(*key: Key) -> None:
    """Set torch's global generators. (`torch.manual_seed` would queue a call and a traceback for each idle GPU.)"""
    seed = stream(*key)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Restore torch's global generators at the end of the block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
