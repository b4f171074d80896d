"""Where no validation loader was given: a share of the training loader's samples is held out for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset

from balcal.core import BalcalError
from balcal.randomness import generator

SHARE = 0.1
FEWEST = 20
"""samples of which a tenth can be held out"""


def hold_out(
    loader: Iterable[Any], seed: int, say: Callable[[str], None] = lambda text: None
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """(the rest, what was held out), both with the loader's own ways; which samples, follows from the seed.

    What the data set does to a sample, such as augmentation, it does to those held out as well.
    """
    if not isinstance(loader, DataLoader) or not _each_once(loader) or loader.batch_size is None:
        raise BalcalError(
            "there is no validation loader, and of this training loader no samples can be held out, since it is no "
            "DataLoader with an ordinary sampler: pass val_loader="
        )
    samples = len(cast(Sized, loader.dataset))
    if samples < FEWEST:
        raise BalcalError(
            f"there is no validation loader, and {samples} samples are too few to hold some out: pass val_loader="
        )
    order = torch.randperm(samples, generator=generator(seed, "split")).tolist()
    kept = round(SHARE * samples)
    say(f"no val_loader: {kept:,} of {samples:,} training samples are held out for validation")
    shuffled = isinstance(loader.sampler, RandomSampler)
    rest = _like(loader, sorted(order[kept:]), shuffle=shuffled, drop_last=loader.drop_last)
    return rest, _like(loader, sorted(order[:kept]))


def _each_once(loader: DataLoader[Any]) -> bool:
    """Whether an epoch has every sample once; which others a sampler means, we do not know."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
    return type(sampler) is SequentialSampler


def _like(loader: DataLoader[Any], rows: list[int], **how: Any) -> DataLoader[Any]:
    ways = ("batch_size", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    more = ("multiprocessing_context", "prefetch_factor", "persistent_workers") if loader.num_workers else ()
    own = {name: getattr(loader, name) for name in (*ways, *more)}
    return DataLoader(Subset(loader.dataset, rows), **own, **how)
