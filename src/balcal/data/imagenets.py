"""ImageNet and Tiny-ImageNet: folders of image files by synset, decoded once into a mapped file.

Both are judged on their validation images, because the labels of their test images were never published.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from balcal.data.decoded import image_files
from balcal.data.decoding import SUFFIXES
from balcal.data.images import ImageSet, Parts

Labelled = list[tuple[Path, str]]
"""image files with the name of their class"""


def pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def by_folder(folder: Path) -> Labelled:
    """One subfolder for each class; the images in it, or in its `images`."""
    found = []
    for name in subfolders(folder):
        inside = folder / name / "images"
        found += [(path, name) for path in pictures(inside if inside.is_dir() else folder / name)]
    return found


def part(name: str, labelled: Labelled, classes: list[str], side: int) -> ImageSet:
    number = {synset: k for k, synset in enumerate(classes)}
    return image_files(name, [path for path, _ in labelled], [number[synset] for _, synset in labelled], side)


def tiny(folder: Path) -> Parts:
    classes = tiny_classes(folder)
    train = part("tiny-imagenet-train", by_folder(folder / "train"), classes, 64)
    if subfolders(folder / "val") == ["images"]:
        told = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
        held_out = [(folder / "val" / "images" / line[0], line[1]) for line in told]
    else:
        held_out = by_folder(folder / "val")  # as many scripts rearrange it
    return train, part("tiny-imagenet-val", held_out, classes, 64)


def tiny_classes(folder: Path) -> list[str]:
    return sorted((folder / "wnids.txt").read_text().split())


def tiny_names(folder: Path) -> list[str]:
    words = dict(line.split("\t", 1) for line in (folder / "words.txt").read_text().splitlines())
    return [words[synset].split(",")[0] for synset in tiny_classes(folder)]


def imagenet(folder: Path, side: int = 224) -> Parts:
    labelled = by_folder(folder / "train")
    classes = subfolders(folder / "train")
    held_out = by_folder(folder / "val")
    if not held_out:
        synsets = _flat_synsets(folder)
        held_out = [(path, synsets[path.stem]) for path in pictures(folder / "val")]
    return part("imagenet-train", labelled, classes, side), part("imagenet-val", held_out, classes, side)


SYNSET_LISTS = ("LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt", "val.txt")


def _flat_synsets(folder: Path) -> Mapping[str, str]:
    """Of validation images in one heap, by file name: Kaggle's table, or one synset a line in the order of the files,
    or a file name and a synset a line."""
    for place in (folder, folder / "val", folder.parent, *folder.parents[:3]):
        for name in SYNSET_LISTS:
            if (place / name).is_file():
                return _synsets(place / name, folder)
    raise ValueError(
        f"the images of {folder / 'val'} are not in folders by synset, and none of {', '.join(SYNSET_LISTS)} is there"
    )


def _synsets(table: Path, folder: Path) -> Mapping[str, str]:
    with open(table, newline="") as file:
        if table.suffix == ".csv":
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
        lines = [line.split() for line in file if line.strip()]
    if all(len(line) == 1 for line in lines):
        lines = [[path.name, line[0]] for path, line in zip(pictures(folder / "val"), lines, strict=True)]
    return {Path(name).stem: synset for name, synset in lines}
