"""Randomness is a function of (seed, what for, epoch, position), never of what happened before.

So nothing has to be saved to resume to the bit, and neither the number of processes nor that of loader workers matters.
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
    """A generator on the CPU: draws are then the same whatever device they are used on."""
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
    """Whatever we do to torch's global generators inside, the caller finds them as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
