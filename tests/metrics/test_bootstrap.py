"""The mean ECE over versions of the same samples, resampled together."""

import numpy as np
import pytest
import torch

from balcal.core import BalcalError
from balcal.metrics.bootstrap import eces, joint_draws
from balcal.metrics.inputs import TopLabels


def versions(n, count, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.random(n)
    return [
        TopLabels(torch.from_numpy(np.clip(0.3 + 0.7 * shared + 0.02 * number, 0, 1)), torch.from_numpy(shared > 0.4))
        for number in range(count)
    ]


def by_hand(conf, right, bins=15):
    total = 0.0
    for number in range(bins):
        inside = [i for i in range(len(conf)) if number / bins < conf[i] <= (number + 1) / bins]
        total += abs(sum(conf[i] - right[i] for i in inside)) / len(conf)
    return total


def test_each_resample_takes_the_same_images_of_every_version():
    tops = versions(40, 3)
    draws, accuracy = joint_draws(tops, resamples=5, seed=4)
    counts = np.random.default_rng(4).multinomial(40, np.full(40, 1 / 40), size=5)
    for row, count in enumerate(counts):
        chosen = np.repeat(np.arange(40), count)
        for column, top in enumerate(tops):
            conf, right = top.conf.numpy()[chosen], top.right.numpy()[chosen]
            assert draws[row, column] == pytest.approx(by_hand(conf, right.astype(float)))
            assert accuracy[row, column] == pytest.approx(right.mean())
    assert (accuracy[:, 0] == accuracy[:, 2]).all()  # the versions are right on the same images


def test_values_are_those_of_each_version():
    tops = versions(50, 2)
    assert eces(tops) == pytest.approx([by_hand(t.conf.numpy(), t.right.numpy().astype(float)) for t in tops])


def test_versions_of_different_samples_are_refused():
    with pytest.raises(BalcalError, match="not versions of the same samples"):
        joint_draws([*versions(10, 1), *versions(11, 1)])
