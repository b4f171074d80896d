"""Which images train, select, calibrate and test a model, and digests to notice when they change.

A run has four roles (`manifest`): each has a digest, and shared images are counted. A user's loader gets the same care:
`hold_out` takes a validation set from a training loader, and `loader_digest` keeps a run from being resumed on other
data.
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

IMAGES_AT_ONCE = 10_000
"""images to digest at once: a large set is never in memory as a whole"""
SAMPLES_DIGESTED = 256
"""samples that `loader_digest` reads of a data set that is not in memory, evenly spaced"""
HELD_OUT_SHARE, LARGEST_SHARE = 0.1, 0.2
ENOUGH = 100
"""held-out samples below which a fit is a guess: of 100 the standard error of an accuracy of 90 % is 3 points, which is
the gap that matters to a verdict"""
FEWEST = 20
"""samples of which some can be held out"""
USES = {
    "train": "fits the weights, and gamma where it is solved on training batches",
    "select": "chooses the epoch",
    "calibrate": "fits what is applied after training",
    "test": "judges; nothing is fitted or chosen on it",
}


def roles(splits: Splits) -> dict[str, ImageSet]:
    """The parts by the name of their role."""
    return {"train": splits.train, "select": splits.val, "calibrate": splits.calibrate, "test": splits.test}


def digest(part: ImageSet) -> str:
    """Sixteen hexadecimal digits that change with any pixel or label."""
    content = hashlib.sha256(str(part.shape).encode())
    for piece in _in_pieces(part):
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
    seen = set(_image_digests(first))
    return sum(image in seen for image in _image_digests(second))


def _image_digests(part: ImageSet) -> Iterator[bytes]:
    """One digest per image, of sixteen bytes: a million images themselves would not fit into memory."""
    for piece in _in_pieces(part):
        yield from (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in piece)


def _in_pieces(part: ImageSet) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(part), IMAGES_AT_ONCE):
        rows = torch.arange(first, min(first + IMAGES_AT_ONCE, len(part)), device=part.labels.device)
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
    sentences = []
    for pair, count in written["shared"].items():
        second, _, first = pair.partition(" in ")
        if count:
            size = written["roles"][second]["samples"]
            sentences.append(f"{count} of the {size:,} {second} images are in the {first} role too, pixel for pixel")
    return sentences


def hold_out(
    loader: Iterable[Any], seed: int, say: Callable[[str], None] = lambda text: None
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """(the rest, the held-out tenth) as loaders with the same settings. The seed decides which samples are held out.

    Where a tenth would be fewer than 100 samples, up to a fifth is held out.
    The data set's own transforms, such as augmentation, apply to the held-out samples as well.
    """
    if not isinstance(loader, DataLoader) or not each_once(loader) or loader.batch_size is None:
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
    kept = max(round(HELD_OUT_SHARE * samples), min(ENOUGH, round(LARGEST_SHARE * samples)))
    say(f"no val_loader: {kept:,} of {samples:,} training samples are held out for validation")
    rest = loader_like(loader, Subset(loader.dataset, sorted(order[kept:])), **same_order(loader))
    return rest, loader_like(loader, Subset(loader.dataset, sorted(order[:kept])))


def few_samples(count: float, who: str) -> str | None:
    """What to say of a method that is fitted on so few held-out samples.

    >>> few_samples(12, "ts")
    '12 held-out samples are few for `ts`: below 100 an accuracy is known to 3 points or worse, so hold out more'
    """
    if count >= ENOUGH:
        return None
    return (
        f"{count:g} held-out samples are few for `{who}`: below {ENOUGH} an accuracy is known to 3 points or worse, "
        "so hold out more"
    )


def same_order(loader: DataLoader[Any]) -> dict[str, Any]:
    """The settings that order a loader's samples."""
    return {"shuffle": isinstance(loader.sampler, RandomSampler), "drop_last": loader.drop_last}


def each_once(loader: DataLoader[Any]) -> bool:
    """Whether an epoch has every sample once. Of custom samplers that is not known."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
    return type(sampler) is SequentialSampler


def loader_like(loader: DataLoader[Any], dataset: Any, **changes: Any) -> DataLoader[Any]:
    """A loader with the same settings for another data set."""
    names = ("batch_size", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    more = ("multiprocessing_context", "prefetch_factor", "persistent_workers") if loader.num_workers else ()
    own = {name: getattr(loader, name) for name in (*names, *more)}
    return DataLoader(dataset, **own | changes)


def loader_digest(loader: Iterable[Any]) -> str:
    """Sixteen hexadecimal digits that change with the data, their number and their labels.

    Tensors in memory and lists of batches are read in full. Of other data sets, 256 samples are read: their labels, and
    their images if two readings agree (augmented images do not). Of a stream only its type is known.
    """
    content = hashlib.sha256(type(loader).__name__.encode())
    dataset = getattr(loader, "dataset", None)
    with _keeping_random_state():
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
    for row in rows[:: max(1, len(rows) // SAMPLES_DIGESTED)]:
        first, again = dataset[row], dataset[row]
        if not isinstance(first, Sequence) or _digest_of(first[0]) == _digest_of(again[0]):
            _add(content, first)
        else:
            _add(content, first[1:])


def _digest_of(value: Any) -> str:
    content = hashlib.sha256()
    _add(content, value)
    return content.hexdigest()


def _add(content: Any, value: Any) -> None:
    """Numbers with their shape. Of what is no number, only its type."""
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
def _keeping_random_state() -> Iterator[None]:
    """Reading samples must not use up random numbers that training will draw."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with own_randomness():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
