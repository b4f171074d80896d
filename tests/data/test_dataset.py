"""Splits: disjoint, stratified, and the same in every version; sets that are none."""

import hashlib

import pytest
import torch

from balcal.core import BalcalError
from balcal.data.dataset import ImageSet, keep, split_off
from balcal.evaluation.judge import load_splits
from balcal.registry import dataset, task


@pytest.mark.parametrize("name", ["fashion", "digits"])
def test_splits_are_disjoint_even_and_stable(name):
    splits, again = load_splits(task(name)), load_splits(task(name))
    assert torch.equal(splits.val.images, again.val.images)
    assert len(splits.val) == task(name).val_size
    counts = splits.val.labels.bincount(minlength=10)
    assert counts.max() - counts.min() <= 1
    rows = [{x.numpy().tobytes() for x in part.images} for part in (splits.train, splits.val)]
    assert not rows[0] & rows[1]
    assert len(splits.train) + len(splits.val) == len(dataset(task(name).dataset).load()[0])


def test_the_fashion_split_does_not_move_between_versions():
    held_out = load_splits(task("fashion")).val.images.contiguous().numpy().tobytes()
    assert hashlib.sha256(held_out).hexdigest()[:16] == "989775cdcae1033a"


def rows_only(n, num_classes):
    """A set whose only pixel is its number, so that a split can be read off."""
    numbers = torch.arange(n)
    pixels = torch.stack([numbers % 256, numbers // 256], 1).to(torch.uint8)
    return ImageSet(pixels[:, None, None, :], (numbers * 7) % num_classes)


def numbers_of(part):
    pixels = part.images[:, 0, 0].long()
    return pixels[:, 0] + 256 * pixels[:, 1]


@pytest.mark.parametrize(
    ("num_classes", "golden"),
    [(10, ("22fbb689aa429e95", "088d5a0610ee27b6")), (100, ("77e90630ed8ff7ba", "0b4fb649076ce318"))],
    ids=["ten", "hundred"],
)
def test_splits_do_not_move_between_versions(num_classes, golden):
    """Indices depend on seed and labels alone, so this holds for CIFAR as for these numbers."""
    whole = rows_only(50_000, num_classes)
    rest, held_out = split_off(whole, 7_500, num_classes, 1)
    few = keep(rest, 5_000, num_classes, 3)
    rows = [set(numbers_of(part).tolist()) for part in (rest, held_out, few)]
    assert not rows[0] & rows[1]
    assert rows[2] < rows[0]
    assert rows[0] | rows[1] == set(range(50_000))
    for part in (held_out, few):
        assert part.labels.bincount(minlength=num_classes).unique().numel() == 1, "stratified"
    assert set(numbers_of(split_off(whole, 7_500, num_classes, 2)[1]).tolist()) != rows[1], "seeded"
    marks = tuple(hashlib.sha256(numbers_of(part).numpy().tobytes()).hexdigest()[:16] for part in (held_out, few))
    assert marks == golden


def test_bad_data_is_refused_in_one_sentence():
    ten = rows_only(10, 2)
    with pytest.raises(BalcalError, match=r"images must be bytes \(N, H, W, C\)"):
        ImageSet(torch.zeros(3, 8, 8), torch.zeros(3))
    with pytest.raises(BalcalError, match="there are 10 images but 9 labels"):
        ImageSet(ten.images, torch.zeros(9))
    with pytest.raises(BalcalError, match="cannot hold out 10 of 10 images"):
        split_off(ten, 10, 2, 0)
