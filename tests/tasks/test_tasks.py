"""Tasks say what the paper says."""

import pytest
import torch

from balcal.data.batches import Pixels
from balcal.registry import dataset, recipe, table, task
from balcal.training.optimise import rate

FAST = ["cifar10-fast", "cifar100-fast", "svhn-fast"]
OURS = [*FAST, *(name for name, t in table("tasks").items() if t.dataset in ("fashion", "digits") or t.train_size)]
PAPER = [name for name in table("tasks") if name not in OURS]


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


def test_protocols_that_the_tables_follow():
    mukhoti, liu, dosovitskiy = (task(name) for name in ("cifar10-sgd", "tiny-imagenet", "cifar100-vit"))
    assert (mukhoti.plan.sum_loss, mukhoti.plan.clip) == (True, 2)
    assert (liu.val_size, liu.plan.sum_loss, liu.plan.clip) == (10_000, False, 2)
    assert dataset("tiny-imagenet").sizes == (100_000, 10_000), "the official validation images test"
    assert recipe("tiny-imagenet", "balcal-logits").method.head.bottleneck == 128
    plan = dosovitskiy.plan
    assert (plan.optimiser, plan.momentum, plan.schedule, plan.clip) == ("sgd", 0.9, "cosine", 1)
    assert plan.batch_size * plan.accumulate == 512
    assert plan.epochs * (50_000 - dosovitskiy.val_size) / 512 == pytest.approx(10_000, rel=0.01)
    assert (dosovitskiy.side, dosovitskiy.pixels) == (224, "half")
    assert "in21k" in dosovitskiy.backbone
    assert recipe("cifar100-vit", "mmce-w").method.loss.weight == 0.5
    assert {recipe(name, "vtst").task.plan.epochs for name in ("cifar100-vit", "imagenet")} == {40}
    pixels = Pixels.of(dataset("cifar100"), torch.device("cpu"), by="half")
    seen = pixels(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 2, 1).expand(1, 1, 2, 3), torch.zeros(1, 3))
    assert seen[0, 0, 0].tolist() == [-1, 1], "mean and deviation are 0.5"


@pytest.mark.parametrize("name", ["cifar10-cpu", "cifar100-cpu"])
def test_the_tier_for_machines_without_a_gpu(name):
    asked = task(name)
    seen = asked.plan.epochs * (asked.train_size + asked.val_size / 4)
    assert 120 <= seen / 1000 <= 360, "2 to 6 minutes at 1,000 images a second, a validation image for a quarter"
    assert asked.augment == "none", "so that the network learns its images by heart"


@pytest.mark.parametrize("name", FAST)
def test_all_images_within_minutes(name):
    """The tier in which a network knows its images by heart: nothing is left out but the validation split."""
    asked = task(name)
    assert (asked.val_size, asked.train_size, asked.calibrate_size) == (5_000, None, 0)
    assert asked.augment in ("none", "flip"), "crops make it hard to learn images by heart"
    assert asked.augment == "none" or asked.dataset != "svhn", "a digit in a mirror is another one, or none"
    plan = asked.plan
    assert plan.precision == "auto"
    assert plan.kept(plan.epochs) == {plan.epochs - 1}, "the last epoch can be judged"
    assert (plan.optimiser, plan.nesterov, plan.schedule) == ("sgd", True, "onecycle")
    steps = plan.epochs * ((dataset(asked.dataset).sizes[0] - 5_000) // plan.batch_size)
    assert rate(plan, 1 - 1 / steps) < 1e-3 * plan.lr, "the rate falls to nothing"


@pytest.mark.parametrize("method", ["vanilla", "balcal", "balcal-auto", "tst", "mixup+ts", "plp"])
def test_a_fast_recipe_says_its_precision(method):
    made = recipe("cifar10-fast", method)
    assert made.task.plan.precision in ("fp32", "bf16")
    assert made.overrides[-1] == f"plan.precision={made.task.plan.precision}"
    assert recipe("cifar10-fast", method, 0, ["plan.precision=fp32"]).task.plan.precision == "fp32"
