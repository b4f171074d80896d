"""The runs of the `-fast` tasks, one after another; the same command goes on where it was stopped.

BALCAL_DATA=../shared/data python results/scripts/fast.py --runs DIR [--threads 2] [TASK ...]
BALCAL_DATA=../shared/data python results/scripts/fast.py --runs DIR --methods ls,fl --seeds 0,1     only some of them
BALCAL_DATA=../shared/data python results/scripts/fast.py --runs DIR --picture   only docs/front.png, from these runs

Each finished run becomes a file in results/data/fast: accuracy, ECE and NLL on the test images for the chosen and the
LAST epoch, with and without temperature scaling; accuracy on the training images; detection of the other two data sets
by confidence, and figures on corrupted test images (seed 0 of CIFAR-10), last epoch; differences from plain training
with the same seed, image by image, and for BalCAL without a part from BalCAL with it; gamma after each epoch; minutes,
precision, CPU, commit. What a run is compared with is trained first where it is missing. Several of these commands may
share a folder of runs: each takes the next run that nobody is at work on. To evaluate a run anew, delete its file.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cpu import in_few_colours
from fast_asked import CORRUPTED, FIRST, METHODS, OOD, PARTS, PLAIN, SEEDS, SHIFTED, WITH_PART
from folders import DATA, DOCS

from balcal import registry
from balcal.core import BalcalError, Outputs
from balcal.data.batches import MemoryBatches
from balcal.data.corruptions import SEVERITIES, corrupt
from balcal.data.dataset import ImageSet
from balcal.evaluation.judge import batches_of, calibrated_predictions, evaluate, load_chosen, load_splits
from balcal.evaluation.ood import evaluate_ood
from balcal.evaluation.other_images import RunPredictor
from balcal.evaluation.predict import predict_batches
from balcal.evaluation.shift import CorruptedSets, MeanFigures
from balcal.metrics.comparison import compare
from balcal.plots import reliability_diagram
from balcal.recipe import Method, Recipe
from balcal.runs import Run
from balcal.runtime.claims import Claimed, claim
from balcal.runtime.devices import Stopped
from balcal.runtime.files import write_atomic
from balcal.training.fit import train_recipe

SHOWN = ("accuracy", "ece", "nll", "mean_confidence", "adaptive_ece", "brier")
WRITTEN = ("loss", "gamma", "val_acc", "val_nll", "val_ece", "val_nll_ts")
"""of each epoch"""
AFTER = ("", "+ts", "+last", "+last+ts")
COMPARED = ("accuracy", "ece", "nll")
FRONT = {
    "plain training": ("vanilla", "+last"),
    "BalCAL (balcal-logits)": ("balcal-logits", "+last"),
    "balcal-auto": ("balcal-auto", "+last"),
}
PATIENCE = 60.0
"""seconds to wait where all that is left is being trained by others"""
CPU = torch.device("cpu")


def queue(tasks: list[str]) -> Iterator[tuple[str, Recipe]]:
    """Entries and their recipes, in rounds: what the claims are about comes first, on all tasks; other methods are a
    seed behind, and of parts there is only one seed."""
    for round_number in range(len(SEEDS) + 2):
        for task in tasks:
            for entry in METHODS[task]:
                seed = round_number - (2 if entry in PARTS else entry not in FIRST)
                if 0 <= seed < (1 if entry in PARTS else len(SEEDS)):
                    yield entry, recipe_of(task, entry, SEEDS[seed])


def recipe_of(task: str, entry: str, seed: int) -> Recipe:
    method, *settings = entry.split()
    return registry.recipe(task, method, seed, settings)


def figures_of(entry: str, recipe: Recipe, runs: Path) -> dict[str, Any]:
    """Train or find the run, then all figures of it."""
    figures = train_recipe(recipe, runs, "cpu")
    assert figures is not None
    run = Run.at(Path(figures["run"]))
    against = differences(run, entry, runs)  # first: it may have to wait for another run
    with run.in_use():
        ended = run.ending()
        judged = {after: evaluate(run, under(recipe, after), CPU) for after in AFTER}
    seconds = epoch_seconds(run)
    same = judged[""]["epoch"] == judged["+last"]["epoch"]
    learned = {"last": knows(run, under(recipe, "+last"))}
    learned = {"chosen": learned["last"] if same else knows(run, under(recipe, "")), **learned}
    return {
        "task": recipe.task.name,
        "method": entry,
        "seed": recipe.seed,
        "run": recipe.address(),
        "figures": {
            after.strip("+") or "chosen": {
                "epoch": each["epoch"] + 1,
                **{figure: each["metrics"][figure] for figure in SHOWN},
                "ece_interval": each["test"]["ece_interval"],
                **({"temperature": each["posthoc"].get("temperature")} if "ts" in after else {}),
            }
            for after, each in judged.items()
        },
        "training_accuracy": learned,
        "ood": detects(run, under(recipe, "+last")),
        "shift": shifts(run) if entry in SHIFTED.get(recipe.task.name, ()) and recipe.seed == 0 else {},
        "against": against,
        "history": {
            key: [short(record[key]) for record in ended.history] for key in WRITTEN if key in ended.history[0]
        },
        "minutes": round(sum(run.seconds()) / 60, 2),
        "fastest_epoch_seconds": min(seconds) if seconds else None,
        "precision": recipe.task.plan.precision,
        "environment": run.environment(),
        "cpu": cpu_name(),
        "title": (ended.data or {}).get("title"),
    }


def picture(runs: Path, path: Path) -> None:
    """Reliability diagrams on CIFAR-10, for the README."""
    drawn = {}
    for title, (method, after) in FRONT.items():
        run = Run(runs, recipe := registry.recipe("cifar10-fast", method, 0))
        _, drawn[title], _ = calibrated_predictions(run, under(recipe, after), CPU)
    reliability_diagram(drawn).savefig(path, dpi=110)
    in_few_colours(path)


def short(value: float) -> float:
    return float(f"{value:.6g}")


def in_lines(figures: dict[str, Any]) -> bytes:
    """JSON with each list of numbers in one line."""
    text = json.dumps(figures, indent=1)
    return (re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text) + "\n").encode()


def under(recipe: Recipe, after: str) -> Method:
    """The method with a temperature, or at the last epoch, which holds for one that chooses in its own way too."""
    last = registry.method("vanilla+last").select
    found = recipe.method + registry.method("ts") if "+ts" in after else recipe.method
    return replace(found, select=last) if "+last" in after else found


def knows(run: Run, method: Method) -> float:
    """Accuracy on the training images, as they are."""
    model = load_chosen(run, method, CPU)
    batches: MemoryBatches = batches_of(run, load_splits(run.recipe.task).train, CPU)
    seen = predict_batches(model, batches)
    return float((seen.log_probs.argmax(1) == seen.labels).double().mean())


def detects(run: Run, method: Method) -> dict[str, dict[str, float]]:
    """Detection of other data sets by confidence, and confidence and entropy (nats) on them."""
    names = OOD.get(run.recipe.task.name)
    if names is None:
        return {}
    with run.in_use():
        found = evaluate_ood(RunPredictor(run, method, CPU), names)["sets"]
    return {
        name: {
            **{figure: each["scores"]["confidence"][figure] for figure in ("auroc", "fpr95")},
            "confidence": each["mean_confidence"],
            "entropy": each["mean_entropy"],
        }
        for name, each in found.items()
    }


def shifts(run: Run) -> dict[str, dict[str, list[float]]]:
    """Figures on corrupted test images, a number for each severity: means over the corruptions, last epoch, without and
    with `ts`."""
    recipe = run.recipe
    model = load_chosen(run, under(recipe, "+last"), CPU)
    maps = {which: calibrated_predictions(run, under(recipe, f"+{which}"), CPU)[0] for which in ("last", "last+ts")}
    test = load_splits(recipe.task).test.take(torch.arange(CORRUPTED))
    found = {which: CorruptedSets() for which in maps}
    for name in registry.dataset(recipe.task.dataset).shift:
        for severity in SEVERITIES:
            images = ImageSet(corrupt(test.images, name, severity), test.labels)
            seen = predict_batches(model, batches_of(run, images, CPU))
            for which, fitted in maps.items():
                found[which].add(name, severity, replace(seen, log_probs=fitted(Outputs.of(seen.log_probs))))
    return {which: columns([sets.mean(severity=severity) for severity in SEVERITIES]) for which, sets in found.items()}


def differences(run: Run, entry: str, runs: Path) -> dict[str, dict[str, list[float]]]:
    """Last epoch minus that of plain training, and of what has the part that this entry lacks: value and 95 % interval,
    with the same seed and on the same test images."""
    _, ours, _ = calibrated_predictions(run, under(run.recipe, "+last"), CPU)
    found = {}
    for name, after in (PLAIN | dict.fromkeys(WITH_PART.get(entry, ()), "+last")).items():
        recipe = recipe_of(run.recipe.task.name, name.removesuffix("+ts"), run.recipe.seed)
        if (run.recipe.address(), after) == (recipe.address(), "+last"):
            continue
        try:
            trained = train_recipe(recipe, runs, "cpu")
        except (Claimed, Stopped):
            raise
        except BalcalError:  # it does not learn
            continue
        assert trained is not None
        other = Run.at(Path(trained["run"]))
        with other.in_use():
            _, theirs, _ = calibrated_predictions(other, under(recipe, after), CPU)
        each = compare(theirs, ours)
        intervals = {figure: getattr(each, figure) for figure in COMPARED}
        found[name] = {figure: [short(x) for x in (of.value, of.low, of.high)] for figure, of in intervals.items()}
    return found


def columns(means: list[MeanFigures]) -> dict[str, list[float]]:
    low, high = zip(*(each["ece_interval"] for each in means), strict=True)
    rows = {"accuracy": [each["accuracy"] for each in means], "ece": [each["ece"] for each in means]}
    rows |= {"ece_low": [*low], "ece_high": [*high], "nll": [each["nll"] for each in means]}
    return {name: [short(value) for value in each] for name, each in rows.items()}


def epoch_seconds(run: Run) -> list[float]:
    """Of each whole epoch, from the run's log: the fastest one says what a quiet machine would need."""
    lines = (run.path / "log.txt").read_text().splitlines()
    return [float(found[1]) for line in lines if (found := re.search(r"epoch \d+/\d+ .* ([\d.]+) s$", line))]


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"{', '.join(METHODS)}; all, one after another, if left out")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--to", type=Path, default=DATA / "fast", help="where the figures go")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--methods", default="", help="only these, with commas between them")
    parser.add_argument("--seeds", default="", help="only these, with commas between them")
    parser.add_argument("--picture", action="store_true", help="train nothing; draw the README's picture")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.picture:
        picture(given.runs, DOCS / "front.png")
        return
    methods, seeds = (set(filter(None, each.split(","))) for each in (given.methods, given.seeds))
    left = [
        (entry, recipe)
        for entry, recipe in queue(given.tasks or list(METHODS))
        if (not methods or entry in methods) and (not seeds or str(recipe.seed) in seeds)
    ]
    while left:
        try:
            taken = [each for each in left if not written(*each, given.runs, given.to)]
        except Stopped as stopped:
            raise SystemExit(str(stopped)) from None
        if len(taken) == len(left):
            time.sleep(PATIENCE)
        left = taken


def written(entry: str, recipe: Recipe, runs: Path, to: Path) -> bool:
    """Whether its figures are there now; if not, another process is at work on it, or on what it is compared with."""
    path = to / f"{recipe.task.name}-{re.sub('[ =]', '-', entry)}-seed{recipe.seed}.json"
    if known(path, recipe):
        return True
    try:
        with claim(runs / "figures" / path.stem, shared=False):
            if not known(path, recipe):  # another process may have written it meanwhile
                write_atomic(path, in_lines(outcome(entry, recipe, runs)))
    except Claimed as error:
        print(f"{error}; the next one, then", flush=True)
        return False
    return True


def known(path: Path, recipe: Recipe) -> bool:
    return path.exists() and bool(json.loads(path.read_text())["run"] == recipe.address())


def outcome(entry: str, recipe: Recipe, runs: Path) -> dict[str, Any]:
    """All figures; of a method that does not learn with this plan, which is a result too, the reason."""
    try:
        return figures_of(entry, recipe, runs)
    except (Claimed, Stopped):
        raise
    except BalcalError as error:
        print(error, flush=True)
        names = {"task": recipe.task.name, "method": entry, "seed": recipe.seed, "run": recipe.address()}
        return {**names, "failed": str(error)}


if __name__ == "__main__":
    main()
