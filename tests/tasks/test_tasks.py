"""Tasks say what the paper says."""

import pytest

from balcal.registry import dataset, table, task
from balcal.training.optimise import rate

PAPER = [name for name, t in table("tasks").items() if t.dataset not in ("fashion", "digits") and not t.train_size]


@pytest.mark.parametrize("name", sorted(table("tasks")))
def test_a_task_leaves_images_to_train_on(name):
    asked, row = task(name), dataset(task(name).dataset)
    assert asked.val_size + asked.calibrate_size + (asked.train_size or 1) <= row.sizes[0]
    assert row.sizes[1], "and to judge on"
    assert asked.about


@pytest.mark.parametrize("name", PAPER)
def test_training_images_are_treated_as_in_the_paper(name):
    assert task(name).augment == dataset(task(name).dataset).augment


@pytest.mark.parametrize(("name", "share"), [("cifar10", 0.15), ("cifar100", 0.05), ("svhn", 0.15)])
def test_the_main_table(name, share):
    asked = task(name)
    assert asked.val_size == round(share * dataset(name).sizes[0])
    plan = asked.plan
    assert (asked.backbone, plan.optimiser, plan.lr, plan.epochs, plan.batch_size) == (
        "wrn-28-10",
        "adam",
        1e-4,
        600,
        256,
    )
    assert plan.weight_decay == 0
    assert rate(plan, 0.99) == 1e-4


@pytest.mark.parametrize(
    ("name", "epochs", "first", "second", "batch"),
    [
        ("cifar10-sgd", 350, 150, 250, 128),
        ("cifar100-densenet", 350, 150, 250, 128),
        ("tiny-imagenet", 100, 40, 60, 64),
    ],
)
def test_rates_fall_when_the_paper_says(name, epochs, first, second, batch):
    plan = task(name).plan
    assert (plan.optimiser, plan.momentum, plan.weight_decay, plan.epochs) == ("sgd", 0.9, 5e-4, epochs)
    assert plan.batch_size == batch
    told = [rate(plan, epoch / epochs) for epoch in (first - 1, first, second - 1, second)]
    assert told == pytest.approx([0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("name", ["cifar10-cpu", "cifar100-cpu"])
def test_the_tier_for_machines_without_a_gpu(name):
    asked = task(name)
    seen = asked.plan.epochs * (asked.train_size + asked.val_size / 4)
    assert 120 <= seen / 1000 <= 360, "2 to 6 minutes at 1,000 images a second, a validation image for a quarter"
    assert asked.augment == "none", "so that the network learns its images by heart"
