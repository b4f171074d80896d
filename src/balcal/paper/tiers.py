"""Four budgets. `paper` is the published protocol. `fast` has all images of CIFAR and SVHN and a network that memorises
them, for CPUs. `cpu` has a tenth of the images. `smoke` shows in minutes that everything runs; its figures mean
nothing.

A place of the paper is a data set with a network. A tier says which task stands for each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from balcal.core import BalcalError
from balcal.runtime.names import unknown

CIFAR10, CIFAR100, SVHN = "CIFAR-10", "CIFAR-100", "SVHN"
THREE = (CIFAR10, CIFAR100, SVHN)
TINY50, TINY101 = "Tiny-ImageNet, ResNet-50", "Tiny-ImageNet, ResNet-101"
WIDE10, WIDE100 = "WRN-26-10, CIFAR-10", "WRN-26-10, CIFAR-100"
DENSE10, DENSE100 = "DenseNet-121, CIFAR-10", "DenseNet-121, CIFAR-100"
VIT100, VIT1000 = "ViT-B/16, CIFAR-100", "ViT-B/16, ImageNet"
PLACES = (*THREE, TINY50, TINY101, WIDE10, WIDE100, DENSE10, DENSE100, VIT100, VIT1000)


@dataclass(frozen=True)
class Stand:
    """What stands for a place: a task and settings; `remark` says what is not obvious about it."""

    task: str
    settings: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Tier:
    """A budget: what stands for the places of the paper, and what else is cut down."""

    name: str
    about: str
    places: Mapping[str, Stand]
    ood: Mapping[str, str]
    """OOD sets: the data set that stands for each of the paper's"""
    seeds: int
    corruptions: tuple[str, ...] = ()
    """none given: all of the data set's"""
    select: str = ""
    """the epoch that is evaluated, as a method (`last`); none: the one that each method chooses"""
    keep: int = 1
    """for items over epochs: keep the weights of every n-th epoch"""
    shifted: tuple[str, ...] = ()
    """methods that are tested on corrupted images; none given: all"""
    shifted_at: tuple[str, ...] = (CIFAR10, CIFAR100)
    """places where they are tested on them"""
    deltas: tuple[float, ...] = (0.91, 0.93, 0.95, 0.97, 0.99)
    swept: str = CIFAR100
    """where delta is swept"""
    betas: tuple[float, ...] = (1, 2, 5, 10, 20, 50)
    points: int = 2000
    """images in a t-SNE"""
    deviations: tuple[str, ...] = ()
    """that hold for everything"""


TIERS = {
    tier.name: tier
    for tier in (
        Tier(
            "smoke",
            "digits of 8 x 8 pixels, 3 epochs: shows that everything runs, in minutes; the figures mean nothing",
            dict.fromkeys(PLACES, Stand("digits", ("plan.epochs=3",))),
            {CIFAR10: "fashion", CIFAR100: "fashion", SVHN: "fashion"},
            seeds=1,
            corruptions=("gaussian_noise", "motion_blur", "contrast"),
            deltas=(0.91, 0.95, 0.99),
            betas=(1, 5, 10),
            points=300,
            deviations=(
                "every data set is digits, every OOD set fashion: columns that differ in nothing else are equal",
                "3 of 15 corruptions",
                "3 epochs are too few to learn: no figure of this tier says anything about a method",
            ),
        ),
        Tier(
            "cpu",
            "real CIFAR images, a small network that overfits: minutes a run on two cores",
            {
                CIFAR10: Stand("cifar10-cpu"),
                CIFAR100: Stand("cifar100-cpu"),
                WIDE10: Stand("cifar10-cpu", ("task.backbone=wrn-10-1",)),
                WIDE100: Stand("cifar100-cpu", ("task.backbone=wrn-10-1",)),
                DENSE10: Stand("cifar10-cpu"),
                DENSE100: Stand("cifar100-cpu"),
                TINY50: Stand("cifar100-cpu"),
                TINY101: Stand("cifar100-cpu", ("task.backbone=resnet-20",)),
            },
            {CIFAR10: "cifar10", CIFAR100: "cifar100", SVHN: "fashion"},
            seeds=1,
            shifted=("vanilla", "vanilla+ts", "plp", "tst", "vtst", "balcal", "balcal-logits", "balcal-auto"),
            shifted_at=(CIFAR10,),
            deltas=(0.75, 0.85, 0.91, 0.93, 0.95, 0.97, 0.99),
            swept=CIFAR10,
            deviations=(
                "a share of the training images, no augmentation, tens of epochs in place of hundreds",
                "nothing is trained on SVHN, and Fashion-MNIST stands for it as an OOD set",
                "no vision transformer: without pretrained weights a small one would show nothing",
                "corruptions are made of the test images of CIFAR-10, for 8 methods, if no published files are there",
                "delta is swept on CIFAR-10, and below 0.91 as well, where validation images of this task put it",
            ),
        ),
        Tier(
            "fast",
            "all images of CIFAR-10, CIFAR-100 and SVHN, a network that memorises them: a quarter of an hour a run",
            {CIFAR10: Stand("cifar10-fast"), CIFAR100: Stand("cifar100-fast"), SVHN: Stand("svhn-fast")},
            {CIFAR10: "cifar10", CIFAR100: "cifar100", SVHN: "svhn"},
            seeds=3,
            select="last",
            keep=3,
            shifted=("vanilla", "vanilla+ts", "plp", "tst", "vtst", "balcal", "balcal-logits", "balcal-auto"),
            shifted_at=(CIFAR10,),
            swept=CIFAR10,
            deviations=(
                "a small network, a one-cycle rate and a few epochs; flips but no crops, so that images are memorised",
                "the last epoch is evaluated: choosing one by validation NLL would stop the network before it is "
                "over-confident",
                "delta is 0.95 for every task: the paper recommends 0.91 to 0.99 and does not say which it used",
                "corruptions are made of the test images of CIFAR-10, for 8 methods, if no published files are there",
                "SVHN, rebuilt: see `balcal data svhn`",
            ),
        ),
        Tier(
            "paper",
            "the published protocol, for GPUs",
            {
                CIFAR10: Stand("cifar10"),
                CIFAR100: Stand("cifar100"),
                SVHN: Stand("svhn"),
                TINY50: Stand("tiny-imagenet"),
                TINY101: Stand("tiny-imagenet-101"),
                WIDE10: Stand("cifar10-sgd"),
                WIDE100: Stand("cifar100-sgd"),
                DENSE10: Stand("cifar10-densenet"),
                DENSE100: Stand("cifar100-densenet"),
                VIT100: Stand("cifar100-vit", (), "the paper only refers to Dosovitskiy et al."),
                VIT1000: Stand("imagenet", (), "the paper only refers to Dosovitskiy et al."),
            },
            {CIFAR10: "cifar10", CIFAR100: "cifar100", SVHN: "svhn"},
            seeds=3,
            keep=20,
            deviations=(
                "the paper does not say how many seeds it has",
                "delta is 0.95 for every task: the paper recommends 0.91 to 0.99 and does not say which it used",
                "`Ours` fuses probabilities, as the paper writes; `balcal-logits` logits, as the released code does",
                "corruptions are made from the test images, unless the published files are there",
            ),
        ),
    )
}


def tier(name: str) -> Tier:
    if name not in TIERS:
        raise BalcalError(unknown("tier", name, TIERS))
    return TIERS[name]
