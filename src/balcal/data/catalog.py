"""The data sets, one row each: classes, sizes, licence, source. `known_files.py` has their files and checksums."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from balcal.data import known_files
from balcal.data.cifar import Relabelled, soft_labels
from balcal.data.corruptions import ROTATION
from balcal.data.dataset import Dataset, ImageSet, Parts
from balcal.data.decoding import read_mosaic
from balcal.data.image_folders import subfolders, tiny_names
from balcal.data.text import SIDE, breast_cancer, intents_of

__all__ = ["DATASETS", "Dataset"]

EMBEDDED = Path(__file__).parent / "embedded"
DIGITS = tuple(str(k) for k in range(10))
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
NORTHCUTT = "Northcutt et al., 2021"
TEXTURES = (
    "banded", "blotchy", "braided", "bubbly", "bumpy", "chequered", "cobwebbed", "cracked", "crosshatched",
    "crystalline",
)  # fmt: skip


@cache
def fashion() -> Parts:
    """12,000 images of Fashion-MNIST, inside the package."""
    with np.load(EMBEDDED / "fashion-labels.npz") as labels:
        parts = [(part, torch.from_numpy(labels[part].astype(np.int64))) for part in ("train", "test")]
    train, test = (
        ImageSet(torch.from_numpy(read_mosaic(EMBEDDED / f"fashion-{part}.webp", 28)[: len(y), ..., None]), y)
        for part, y in parts
    )
    return train, test


@cache
def digits() -> Parts:
    """scikit-learn's 1,797 digits of 8 x 8 pixels; the last 500, by other writers, are the test part."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy((bunch.images * (255 / 16)).round().astype(np.uint8))[..., None]
    whole = ImageSet(images, torch.from_numpy(bunch.target.astype(np.int64)))
    rows = torch.arange(len(whole))
    return whole.take(rows[:-500]), whole.take(rows[-500:])


def _intents() -> tuple[str, ...]:
    return tuple(intents_of(known_files.CLINC.locate().path))


def _tiny_names() -> tuple[str, ...]:
    return tuple(tiny_names(known_files.TINY_IMAGENET.locate().path))


def _synsets() -> tuple[str, ...]:
    return tuple(subfolders(known_files.IMAGENET.locate().path / "train"))


CIFAR10 = Dataset(
    "cifar10",
    THINGS,
    known_files.CIFAR10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    sizes=(50_000, 10_000),
    side=32,
    licence="none stated; cite Krizhevsky 2009; research use",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    augment="crop+flip",
    ood=("svhn", "cifar100", "textures"),
    votes=partial(soft_labels, known_files.CIFAR10H),
    wrong_labels=(0.0054, NORTHCUTT),
)


def _cifar10n(name: str, wrong: str) -> Dataset:
    """CIFAR-10 with noisy training labels by people. The validation split has them too, the test part does not."""
    return Dataset(
        f"cifar10n-{name}",
        THINGS,
        Relabelled(known_files.CIFAR10, known_files.CIFAR10N, name),
        mean=CIFAR10.mean,
        std=CIFAR10.std,
        sizes=CIFAR10.sizes,
        side=32,
        licence="labels CC BY-NC 4.0 (Wei et al. 2022); images as cifar10",
        source=f"https://github.com/UCSC-REAL/cifar-10-100n, {name}: {wrong} of the training labels are wrong",
        augment=CIFAR10.augment,
        ood=CIFAR10.ood,
        votes=CIFAR10.votes,
        wrong_labels=CIFAR10.wrong_labels,
    )


DATASETS = {
    d.name: d
    for d in (
        Dataset(
            "fashion",
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
            fashion,
            mean=(0.2843,),
            std=(0.3516,),
            sizes=(10_000, 2_000),
            side=28,
            licence="MIT, (c) 2017 Zalando SE",
            source="10,000 + 2,000 images of Fashion-MNIST, inside the package",
        ),
        Dataset(
            "digits",
            DIGITS,
            digits,
            mean=(0.305,),
            std=(0.376,),
            sizes=(1_297, 500),
            side=8,
            licence="BSD-3-Clause",
            source="scikit-learn's digits",
        ),
        CIFAR10,
        *(
            _cifar10n(name, wrong)
            for name, wrong in (
                ("aggre", "9 %"),
                ("random1", "17 %"),
                ("random2", "18 %"),
                ("random3", "18 %"),
                ("worse", "40 %"),
            )
        ),
        Dataset(
            "cifar100",
            tuple(HUNDRED.split()),
            known_files.CIFAR100,
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            sizes=(50_000, 10_000),
            side=32,
            licence="none stated; cite Krizhevsky 2009; research use",
            source="https://www.cs.toronto.edu/~kriz/cifar.html",
            augment="crop+flip",
            ood=("svhn", "cifar10", "textures"),
            wrong_labels=(0.0585, NORTHCUTT),
        ),
        Dataset(
            "svhn",
            DIGITS,
            known_files.SVHN,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            sizes=(73_257, 26_032),
            side=32,
            licence="non-commercial use; cite Netzer et al. 2011",
            source="http://ufldl.stanford.edu/housenumbers",
            ood=("cifar10", "cifar100", "textures"),
            shift=(ROTATION,),
        ),
        Dataset(
            "tiny-imagenet",
            tuple(f"class {k}" for k in range(200)),
            known_files.TINY_IMAGENET,
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2770, 0.2691, 0.2821),
            sizes=(100_000, 10_000),
            side=64,
            licence="ImageNet's terms: non-commercial research",
            source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            augment="crop+flip",
            names=_tiny_names,
        ),
        Dataset(
            "imagenet",
            tuple(f"class {k}" for k in range(1000)),
            known_files.IMAGENET,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            sizes=(1_281_167, 50_000),
            side=224,
            licence="ImageNet's terms: non-commercial research, by registration",
            source="https://image-net.org (ILSVRC 2012)",
            augment="crop+flip",
            names=_synsets,
            wrong_labels=(0.0583, NORTHCUTT),
        ),
        Dataset(
            "textures",
            TEXTURES,
            known_files.TEXTURES,
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            sizes=(0, 1_200),
            side=32,
            licence="Describable Textures Dataset: for research",
            source="ten classes of DTD at 32 x 32 pixels, for evaluation only",
        ),
        Dataset(
            "clinc",
            tuple(f"intent {k}" for k in range(150)),
            known_files.CLINC,
            mean=(0.0,),
            std=(1 / 255,),
            sizes=(18_000, 4_500),
            side=SIDE,
            licence="CC BY 3.0; cite Larson et al., EMNLP 2019",
            source="https://github.com/clinc/oos-eval: requests as UTF-8 bytes",
            ood=("clinc-oos",),
            shift=(),
            names=_intents,
        ),
        Dataset(
            "clinc-oos",
            tuple(f"intent {k}" for k in range(150)),
            known_files.CLINC_OOS,
            mean=(0.0,),
            std=(1 / 255,),
            sizes=(0, 1_000),
            side=SIDE,
            licence="CC BY 3.0; cite Larson et al., EMNLP 2019",
            source="https://github.com/clinc/oos-eval: requests that belong to no intent, for evaluation only",
            shift=(),
        ),
        Dataset(
            "tumours",
            ("malignant", "benign"),
            breast_cancer,
            mean=(0.2197,),
            std=(0.1920,),
            sizes=(380, 189),
            side=6,
            licence="BSD-3-Clause; UCI, CC BY 4.0",
            source="scikit-learn's breast cancer table, each column rounded to 256 levels",
            shift=(),
        ),
    )
}
