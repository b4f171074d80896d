"""Who may use which images for what. Roles are named, hashed and written down; the test role only judges.

Where no validation loader was given: a share of the training loader's samples is held out for it.

Which data a loader has, in sixteen letters: so that a training is not resumed on other data than it was begun on.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, Splits
from balcal.runtime.randomness import generator, own_randomness

AT_ONCE = 10_000
"""images to look at in one go: a large set is never in memory as a whole"""
USES = {
    "train": "fits the weights, and gamma where it is solved on training batches",
    "select": "chooses the epoch",
    "calibrate": "fits what is applied after training",
    "test": "judges; nothing is fitted or chosen on it",
}


def roles(splits: Splits) -> dict[str, ImageSet]:
    return {"train": splits.train, "select": splits.val, "calibrate": splits.calibrate, "test": splits.test}


def digest(part: ImageSet) -> str:
    """Sixteen letters that change with any pixel or label."""
    content = hashlib.sha256(str(part.shape).encode())
    for piece in _pieces(part):
        content.update(np.ascontiguousarray(piece).data)
    content.update(part.labels.cpu().long().contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def shared_images(first: ImageSet, second: ImageSet) -> int:
    """How many images of the second set are in the first, pixel for pixel, whatever their labels.

    >>> import torch
    >>> images = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1)
    >>> shared_images(ImageSet(images[:3], torch.zeros(3)), ImageSet(images[2:], torch.zeros(2)))
    1
    """
    if first.shape[1:] != second.shape[1:]:
        return 0
    seen = set(_marks(first))
    return sum(mark in seen for mark in _marks(second))


def _marks(part: ImageSet) -> Iterator[bytes]:
    """One for each image. Sixteen bytes, because a million images themselves would not fit into memory."""
    for piece in _pieces(part):
        yield from (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in piece)


def _pieces(part: ImageSet) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(part), AT_ONCE):
        rows = torch.arange(first, min(first + AT_ONCE, len(part)), device=part.labels.device)
        yield part.pick(rows).cpu().numpy()


def manifest(splits: Splits) -> dict[str, Any]:
    """Size, digest and use of each role, and how many images two roles have in common."""
    parts = roles(splits)
    described = {
        name: {"samples": len(part), "digest": digest(part), "use": USES[name]} for name, part in parts.items()
    }
    for name in ("train", "select", "calibrate"):
        if described[name]["digest"] == described["test"]["digest"]:
            raise BalcalError(
                f"the {name} role holds the very same images as the test role: nothing may be fitted or chosen on them"
            )
    pairs = [("train", "select"), ("train", "test"), ("select", "test")]
    if splits.calibrate is not splits.val:
        pairs += [("train", "calibrate"), ("select", "calibrate"), ("calibrate", "test")]
    shared = {f"{b} in {a}": shared_images(parts[a], parts[b]) for a, b in pairs}
    return {"roles": described, "shared": shared}


def overlap_sentences(written: dict[str, Any]) -> list[str]:
    """One sentence for each pair of roles that have images in common.

    >>> overlap_sentences({"roles": {"test": {"samples": 10}}, "shared": {"test in train": 2, "test in select": 0}})
    ['2 of the 10 test images are in the train role too, pixel for pixel']
    """
    told = []
    for pair, count in written["shared"].items():
        second, _, first = pair.partition(" in ")
        if count:
            size = written["roles"][second]["samples"]
            told.append(f"{count} of the {size:,} {second} images are in the {first} role too, pixel for pixel")
    return told


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


LOOKED_AT = 256
"""samples of a data set that is not in memory, evenly spaced"""


def loader_digest(loader: Iterable[Any]) -> str:
    """Changes with the data, their number and their labels.

    Tensors in memory and lists of batches are read in full. Of another data set, 256 samples are: their labels, and
    their images where two looks give the same (augmented ones do not). Of a stream nothing can be known but its kind.
    """
    content = hashlib.sha256(type(loader).__name__.encode())
    dataset = getattr(loader, "dataset", None)
    with _undisturbed():
        if isinstance(loader, Sequence):
            for batch in loader:
                _add(content, batch)
        elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            _add_dataset(content, dataset)
    return content.hexdigest()[:16]


def _add_dataset(content: Any, dataset: Any) -> None:
    rows = range(len(dataset))
    while isinstance(dataset, Subset):
        rows, dataset = [dataset.indices[row] for row in rows], dataset.dataset  # type: ignore[assignment]
    _add(content, torch.tensor(list(rows), dtype=torch.long))
    if isinstance(dataset, TensorDataset):
        _add(content, dataset.tensors)
        return
    for name in ("targets", "labels"):
        known = getattr(dataset, name, None)
        if isinstance(known, list | np.ndarray | Tensor):
            _add(content, known)
    for row in rows[:: max(1, len(rows) // LOOKED_AT)]:
        first, again = dataset[row], dataset[row]
        if not isinstance(first, Sequence) or _digest(first[0]) == _digest(again[0]):
            _add(content, first)
        else:
            _add(content, first[1:])


def _digest(value: Any) -> str:
    content = hashlib.sha256()
    _add(content, value)
    return content.hexdigest()


def _add(content: Any, value: Any) -> None:
    """Numbers with their shape; of what is no number, only its kind."""
    if isinstance(value, list | tuple) and any(isinstance(each, list | tuple | Tensor | np.ndarray) for each in value):
        for each in value:
            _add(content, each)
        return
    array = value.detach().cpu() if isinstance(value, Tensor) else value
    if isinstance(array, Tensor) and array.dtype == torch.bfloat16:
        array = array.float()
    array = np.asarray(array)
    content.update(f"{array.dtype} {array.shape}".encode())
    if array.dtype != object:
        content.update(np.ascontiguousarray(array).tobytes())


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Looking at samples draws no random number that training would have drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with own_randomness():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
