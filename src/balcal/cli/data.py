"""`balcal data`: the files of a data set on this machine, the splits of a task, and a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from balcal import registry
from balcal.cli.text import render_table
from balcal.core import BalcalError
from balcal.data.dataset import Dataset
from balcal.data.locate import StoredFiles, verify
from balcal.data.own_images import is_own_images
from balcal.data.published_corruptions import SHIFTS, Shift
from balcal.data.splits import manifest, overlap_sentences
from balcal.evaluation.judge import load_splits
from balcal.plots.sheet import contact_sheet
from balcal.recipe import Task
from balcal.runtime.names import unknown

Stock = dict[str, Any]


def take_stock(name: str, sheet: Path | None = None) -> Stock:
    """Describe a task, a data set or a set of corruptions. Downloads what is missing, unless offline."""
    tasks, datasets = registry.table("tasks"), registry.table("datasets")
    if name in SHIFTS:
        if sheet:
            raise BalcalError(f"`{name}` holds the test images of `{SHIFTS[name].of}`, corrupted: ask for its sheet")
        return _stock_of_shift(SHIFTS[name])
    if not is_own_images(name) and name not in tasks and name not in datasets:
        raise BalcalError(unknown("task or data set", name, {*tasks, *datasets, *SHIFTS}))
    task = registry.task(name) if is_own_images(name) or name in tasks else None
    dataset = registry.dataset(task.dataset if task else name)
    train, test = dataset.load()
    stock = _described(dataset) | {"stored": [_files_of(stored) for stored in dataset.stored]}
    stock["ood"] = {other: _is_here(registry.dataset(other)) for other in dataset.ood}
    shown = train if len(train) else test
    if task:
        splits = load_splits(task)
        stock["task"] = _described_task(task) | manifest(splits)
        shown = splits.train
    if sheet:
        count = contact_sheet(shown, dataset.names() if dataset.names else dataset.classes, sheet)
        stock["sheet"] = {"path": str(sheet), "classes": count}
    return stock


def _described(dataset: Dataset) -> Stock:
    return {
        "dataset": dataset.name,
        "classes": dataset.num_classes,
        "parts": {"train": dataset.sizes[0], "test": dataset.sizes[1]},
        "side": dataset.side,
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "licence": dataset.licence,
        "source": dataset.source,
    }


def _described_task(task: Task) -> Stock:
    return {"name": task.name, "backbone": task.backbone, "augment": task.augment, "split_seed": task.split_seed}


def _stock_of_shift(shift: Shift) -> Stock:
    files = _files_of(shift.stored)
    return {"dataset": shift.name, "of": shift.of, "licence": shift.licence, "source": shift.source, "stored": [files]}


def _files_of(stored: StoredFiles[Any]) -> Stock:
    found = stored.locate()
    verify(found.form, found.path)
    files = [
        {
            "name": name,
            "bytes": path.stat().st_size if (path := found.path / name).is_file() else None,
            "checksum": "as published" if checksum else "none published",
        }
        for name, checksum in found.form.files
    ]
    title = {"title": found.form.title} if found.form.title else {}
    return {"name": stored.name, **title, "path": str(found.path), "files": files}


def _is_here(dataset: Dataset) -> bool:
    return all(stored.find() for stored in dataset.stored)


def stock_list() -> Stock:
    """Every data set of the catalog: whether it is on this machine, and where it comes from."""
    rows = {}
    for name, dataset in registry.table("datasets").items():
        here = "in the package" if not dataset.stored else "here" if _is_here(dataset) else "missing"
        rows[name] = {"state": here, "source": dataset.source}
    for shift in SHIFTS.values():
        rows[shift.name] = {"state": "here" if shift.stored.find() else "missing", "source": shift.source}
    return rows


def render_stock(stock: Stock) -> str:
    """The text of `take_stock` or `stock_list`."""
    if "dataset" not in stock:
        rows = [[name, row["state"], row["source"]] for name, row in stock.items()]
        return render_table(["data set", "state", "source"], rows)
    lines = [stock["dataset"]]
    if "parts" in stock:
        parts = " + ".join(f"{count:,}" for count in stock["parts"].values())
        lines[0] += f": {stock['classes']} classes, {parts} images of {stock['side']} x {stock['side']} pixels"
        lines.append(f"  colours   mean {_numbers(stock['mean'])}, deviation {_numbers(stock['std'])}")
    for stored in stock["stored"]:
        size = sum(file["bytes"] or 0 for file in stored["files"])
        checked = sum(file["checksum"] == "as published" for file in stored["files"])
        sums = f", {checked} with their published checksums" if checked else ""
        lines.append(f"  {stored['name']:<9} {stored['path']}: {len(stored['files'])} files, {size / 1e6:.1f} MB{sums}")
        if "title" in stored:
            lines.append(f"  form      {stored['title']}: not the published files")
    lines += [f"  source    {stock['source']}", f"  licence   {stock['licence']}"]
    if stock.get("ood"):
        lines.append("  OOD sets  " + ", ".join(n + ("" if here else " (missing)") for n, here in stock["ood"].items()))
    if task := stock.get("task"):
        lines.append(f"\ntask {task['name']}: {task['backbone']}, augmentation {task['augment']}")
        for role, part in task["roles"].items():
            lines.append(f"  {role:<10}{part['samples']:>9,}  {part['digest']}  {part['use']}")
        lines += [f"  note: {sentence}" for sentence in overlap_sentences(task)] or ["  no image is in two roles"]
    if sheet := stock.get("sheet"):
        lines.append(f"\n{sheet['path']}: ten images of {sheet['classes']} classes")
    return "\n".join(lines)


def _numbers(values: list[float]) -> str:
    return "(" + ", ".join(f"{v:.4f}" for v in values) + ")"
