"""Batches: order, augmentation, shares of processes."""

import pytest
import torch

from balcal.core import BalcalError
from balcal.data.batches import MemoryBatches, Pixels
from balcal.data.dataset import ImageSet


def small(n=10, side=8):
    images = torch.arange(n * side * side, dtype=torch.float).remainder(251).to(torch.uint8).view(n, side, side, 1)
    return ImageSet(images, torch.arange(n) % 2)


def pixels(augment="none"):
    return Pixels(scale=torch.tensor([1.0]), shift=torch.tensor([0.0]), augment=augment)


def test_batches_cover_an_epoch_once_and_depend_on_seed_and_epoch():
    def order(seed, epoch):
        return torch.cat([x[:, 0, 0, 0] for x, _ in MemoryBatches(small(), pixels(), 5, seed).epoch(epoch)])

    assert set(order(0, 0).tolist()) == set(small().images[:, 0, 0, 0].float().tolist())
    assert torch.equal(order(0, 0), order(0, 0))
    assert not torch.equal(order(0, 0), order(0, 1))
    assert not torch.equal(order(0, 0), order(1, 0))


def test_starting_in_the_middle_gives_the_same_batches():
    batches = MemoryBatches(small(40), pixels("crop+flip"), 8, 3)
    whole, rest = list(batches.epoch(2)), list(batches.epoch(2, start=3))
    assert len(whole) == 5
    for (x, y), (x2, y2) in zip(whole[3:], rest, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_the_very_batches_of_one(size):
    alone = list(MemoryBatches(small(40), pixels("crop+flip"), 8, 3).epoch(1))
    shares = [list(MemoryBatches(small(40), pixels("crop+flip"), 8, 3, rank, size).epoch(1)) for rank in range(size)]
    for step, (x, y) in enumerate(alone):
        for rank in range(size):
            assert torch.equal(shares[rank][step][0], x[rank::size])
            assert torch.equal(shares[rank][step][1], y[rank::size])


def test_shares_weigh_what_they_hold():
    shares = [MemoryBatches(small(40), pixels(), 8, 3, rank, 3) for rank in range(3)]
    weights = [batches.share(next(batches.epoch(0))[1]) for batches in shares]
    assert weights == pytest.approx([9 / 8, 9 / 8, 6 / 8])


def test_augmentation_is_crop_and_flip_image_by_image():
    """By hand: pad by four, cut out, turn over."""
    data, draws = small(6), torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    got = pixels("crop+flip")(data.images, draws)
    for i in range(6):
        dy, dx = int(draws[i, 0] * 9), int(draws[i, 1] * 9)
        padded = torch.zeros(16, 16)
        padded[4:12, 4:12] = data.images[i, :, :, 0].float()
        by_hand = padded[dy : dy + 8, dx : dx + 8]
        mirrored = torch.zeros(8, 8)
        for r in range(8):
            for c in range(8):
                mirrored[r, c] = padded[dy + r, dx + 7 - c]
        assert torch.equal(got[i, 0], mirrored if draws[i, 2] < 0.5 else by_hand)


def test_images_reach_the_network_channels_last():
    x, _ = next(MemoryBatches(small(8), pixels(), 8, 0).epoch(0))
    assert x.shape == (8, 1, 8, 8)
    rgb = ImageSet(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.long))
    three = Pixels(scale=torch.ones(3), shift=torch.zeros(3))
    assert next(MemoryBatches(rgb, three, 4, 0).epoch(0))[0].is_contiguous(memory_format=torch.channels_last)


def test_bad_batches_are_refused_in_one_sentence():
    with pytest.raises(BalcalError, match="a split is empty"):
        MemoryBatches(small().take(torch.arange(0)), pixels(), 4)
    with pytest.raises(BalcalError, match="a batch of 2 cannot be shared among 3 processes"):
        MemoryBatches(small(), pixels(), 2, 0, 0, 3)
