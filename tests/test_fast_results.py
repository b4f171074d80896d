"""results/scripts/fast.py: a queue of runs that goes on where it was stopped, and a file of figures for each."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from balcal import metrics, registry
from balcal.data.corruptions import CORRUPTIONS, corrupt
from balcal.evaluation.judge import evaluate, load, load_chosen, load_splits
from balcal.runs import Run
from balcal.runtime.claims import claim

RESULTS = Path(__file__).parents[1] / "results"
CPU = torch.device("cpu")
SETTINGS = ["plan.epochs=2", "plan.keep=last"]
PART = "balcal-fixed head.fusion=logits"
WITH_PART = "balcal-fixedloss head.fusion=logits"


@pytest.fixture
def scripts(monkeypatch):
    """They import each other by name."""
    monkeypatch.syspath_prepend(str(RESULTS / "scripts"))


@pytest.fixture
def fast(scripts, monkeypatch, tmp_path):
    """The script, for digits and two epochs in place of its own tasks."""
    import fast

    asked = {"settings": SETTINGS}
    real = registry.recipe

    def short(task, method, seed=0, overrides=()):
        return real(task, method, seed, [*asked["settings"], *overrides])

    monkeypatch.setattr(fast.registry, "recipe", short)
    monkeypatch.setattr(fast, "METHODS", {"digits": ("vanilla", "balcal-logits", PART)})
    monkeypatch.setattr(fast, "PARTS", (PART,))
    monkeypatch.setattr(fast, "SEEDS", (0,))
    threads = str(torch.get_num_threads())
    folders = ["--runs", str(tmp_path / "runs"), "--to", str(tmp_path / "figures")]
    monkeypatch.setattr(sys, "argv", ["fast.py", *folders, "--threads", threads])
    fast.asked = asked
    return fast


def figures(tmp_path):
    return {path.stem: json.loads(path.read_text()) for path in (tmp_path / "figures").glob("*.json")}


def test_every_run_leaves_its_figures(fast, tmp_path, monkeypatch):
    fast.main()
    told = figures(tmp_path)
    part = f"digits-{PART.replace(' ', '-').replace('=', '-')}-seed0"
    assert sorted(told) == [part, "digits-balcal-logits-seed0", "digits-vanilla-seed0"]
    assert told[part]["method"] == PART
    recipe = Run.at(tmp_path / "runs" / told[part]["run"]).recipe
    assert recipe.method.head.fusion == "logits"
    fused = evaluate(Run.at(tmp_path / "runs" / told[part]["run"]), fast.under(recipe, "+last"), CPU)
    assert told[part]["figures"]["last"]["nll"] == pytest.approx(fused["metrics"]["nll"])
    each = told["digits-balcal-logits-seed0"]
    assert [*each["figures"]] == ["chosen", "ts", "last", "last+ts"]
    assert each["figures"]["last"]["epoch"] == 2
    assert each["figures"]["last+ts"]["temperature"] > 0
    assert len(each["history"]["gamma"]) == len(each["history"]["val_nll"]) == 2
    assert each["precision"] == "fp32"
    run = Run.at(tmp_path / "runs" / each["run"])
    model, train = (
        load_chosen(run, registry.method("balcal-logits+last"), CPU).eval(),
        load_splits(run.recipe.task).train,
    )
    row = registry.dataset("digits")
    seen = (train.images.float() / 255 - row.mean[0]) / row.std[0]
    with torch.no_grad():
        right = model(seen.permute(0, 3, 1, 2)).argmax(1) == train.labels
    assert each["training_accuracy"]["last"] == pytest.approx(float(right.double().mean()), abs=2e-3)
    plain = told["digits-vanilla-seed0"]
    assert [*plain["against"]] == ["vanilla+ts"]
    for name, which in (("vanilla", "last"), ("vanilla+ts", "last+ts")):
        for figure, (value, low, high) in each["against"][name].items():
            assert value == pytest.approx(each["figures"]["last"][figure] - plain["figures"][which][figure], abs=1e-5)
            assert low < high
    assert [*told[part]["against"]] == ["vanilla", "vanilla+ts", WITH_PART]
    other = Run(tmp_path / "runs", fast.recipe_of("digits", WITH_PART, 0))
    solved = evaluate(other, fast.under(other.recipe, "+last"), CPU)["metrics"]
    for figure, (value, _, _) in told[part]["against"][WITH_PART].items():
        assert value == pytest.approx(fused["metrics"][figure] - solved[figure], abs=1e-5)
    monkeypatch.setattr(fast, "train_recipe", lambda *_: pytest.fail("all of it is there"))
    fast.main()


def test_plain_training_is_run_where_a_method_is_compared_with_it(fast, tmp_path):
    recipe = fast.registry.recipe("digits", "balcal-logits")
    plain = fast.registry.recipe("digits", "vanilla")
    with claim(tmp_path / "runs" / plain.address(), shared=True):
        assert not fast.written("balcal-logits", recipe, tmp_path / "runs", tmp_path / "figures")
    assert fast.written("balcal-logits", recipe, tmp_path / "runs", tmp_path / "figures")
    assert [*figures(tmp_path)] == ["digits-balcal-logits-seed0"]
    assert Run(tmp_path / "runs", plain).finished


def run_of(seed, ece, accuracy, against=None):
    half = 0.004 if against is None else 0.2  # intervals of single runs do not matter where pairs were compared
    figures = {"ece": ece, "accuracy": accuracy, "ece_interval": [ece - half, ece + half]}
    known = {} if against is None else {"against": {"vanilla": against}}
    return {"task": "cifar10-fast", "method": "any", "seed": seed, "figures": {"last": figures}, **known}


def test_differences_from_plain_training_allow_for_images_and_seeds(scripts):
    import fast_claims

    plain = [run_of(seed, 0.04, 0.9) for seed in range(3)]
    pairs = [(run_of(0, 0.03, 0.91), plain[0])]
    half = 100 * (2 * 0.004**2) ** 0.5
    assert fast_claims.difference(pairs, "ece") == pytest.approx((-1, -1 - half, -1 + half))
    half = 196 * ((0.91 * 0.09 + 0.9 * 0.1) / 10_000) ** 0.5
    assert fast_claims.difference(pairs, "accuracy") == pytest.approx((1, 1 - half, 1 + half))
    against = [(-0.010, -0.013, -0.008), (-0.012, -0.016, -0.009), (-0.011, -0.012, -0.007)]
    pairs = [(run_of(seed, 0, 0, {"ece": each}), plain[seed]) for seed, each in enumerate(against)]
    assert fast_claims.difference(pairs[:1], "ece") == pytest.approx((-1, -1.3, -0.8))
    seeds = 4.302653**2 * 0.1**2 / 3  # Student, two degrees of freedom; the deviation is 0.1 points
    low, high = ((sum(x**2 for x in halves) / 3 + seeds) ** 0.5 for halves in ((0.3, 0.4, 0.1), (0.2, 0.3, 0.4)))
    assert fast_claims.difference(pairs, "ece") == pytest.approx((-1.1, -1.1 - low, -1.1 + high))
    assert fast_claims.lower_ece(pairs) == "holds (-1.10)"
    assert fast_claims.lower_ece([(theirs, ours | {"figures": theirs["figures"]}) for ours, theirs in pairs]) == (
        "cannot be told (+0.00)"
    )
    assert fast_claims.lower_ece([]) == "not run"


def test_claims_about_parts_and_deltas_follow_from_the_intervals(scripts):
    import fast_claims

    shorter = {"ece": (0.02, 0.01, 0.04), "nll": (0.1, -0.1, 0.3), "accuracy": (-0.003, -0.005, -0.001)}
    alone = {"ece": (0.001, -0.004, 0.006), "nll": (0.0, -0.1, 0.1), "accuracy": (0.0, -0.01, 0.01)}
    plain = run_of(0, 0.04, 0.9)
    found = {
        ("cifar10-fast", "vanilla"): [plain],
        ("cifar10-fast", "balcal"): [run_of(0, 0.02, 0.9)],
        ("cifar10-fast", "balcal-noadapter"): [run_of(0, 0.04, 0.9) | {"against": {"balcal": shorter}}],
        ("cifar10-fast", "etf-1"): [run_of(0, 0.04, 0.9, alone)],
        ("cifar10-fast", "balcal-beta"): [run_of(0, 0.04, 0.9, alone)],
    }
    assert fast_claims.subtracted(found, "balcal-noadapter", "balcal", "ece") == pytest.approx((2, 1, 4))
    assert fast_claims.subtracted(found, "balcal", "balcal-noadapter", "ece") == pytest.approx((-2, -4, -1))
    rows = {tuple(line.strip("| ").split(" | ")[:2]): line for line in fast_claims.part_claims(found)}
    adapter = rows["+ adapter", "probabilities"]
    assert adapter.endswith("| -2.00 [-4.00, -1.00] | -0.100 | +0.30 | lower | holds |")
    alone = [line for line in rows.values() if line.startswith("| ETF classifier alone")]
    assert [line.rsplit(" | ", 2)[1:] for line in alone] == [
        ["not lower", "holds |"],  # cannot be told apart
        ["not lower", "not run |"],
        ["lower", "cannot be told |"],
    ]
    assert rows["+ learnable classifier, adapter", "logits"].endswith("| – | – | – | lower | not run |")
    assert fast_claims.every_delta(found, "cifar10-fast", "balcal") == "not run"  # one is not a range
    for ece, deltas, expected in (
        (0.02, [0.99], "cannot be told (2 of 5 deltas: -2.00 to -2.00)"),
        (0.02, [0.91, 0.93, 0.97, 0.99], "holds (5 of 5 deltas: -2.00 to -2.00)"),
        (0.05, [0.99], "**does not hold** (2 of 5 deltas: -2.00 to +1.00)"),
    ):
        swept = found | {("cifar10-fast", f"balcal head.delta={delta}"): [run_of(0, ece, 0.9)] for delta in deltas}
        assert fast_claims.every_delta(swept, "cifar10-fast", "balcal") == expected


def test_a_method_that_does_not_learn_is_a_result(fast, tmp_path):
    fast.asked["settings"] = [*SETTINGS, "plan.lr=1e30"]
    fast.main()
    for each in figures(tmp_path).values():
        assert "lower the learning rate" in each["failed"]
        assert each["run"]


def test_what_another_process_trains_comes_later(fast, tmp_path):
    asked = fast.registry.recipe("digits", "vanilla")
    with claim(tmp_path / "runs" / asked.address(), shared=True):
        assert not fast.written("vanilla", asked, tmp_path / "runs", tmp_path / "figures")
    assert figures(tmp_path) == {}
    assert fast.written("vanilla", asked, tmp_path / "runs", tmp_path / "figures")
    assert [*figures(tmp_path)] == ["digits-vanilla-seed0"]


def test_what_another_process_evaluates_is_not_evaluated_twice(fast, tmp_path, monkeypatch):
    asked = fast.registry.recipe("digits", "vanilla")
    monkeypatch.setattr(fast, "train_recipe", lambda *_: pytest.fail("the other process has it"))
    with claim(tmp_path / "runs" / "figures" / "digits-vanilla-seed0", shared=True):
        assert not fast.written("vanilla", asked, tmp_path / "runs", tmp_path / "figures")
        figures = tmp_path / "figures" / "digits-vanilla-seed0.json"
        figures.parent.mkdir()
        figures.write_text(json.dumps({"run": asked.address()}))
        assert fast.written("vanilla", asked, tmp_path / "runs", tmp_path / "figures")  # what is there needs no claim


def test_a_method_that_chooses_its_epoch_has_a_last_one_too(fast):
    recipe = registry.recipe("digits", "balcal-released")
    assert fast.under(recipe, "") == recipe.method
    last = fast.under(recipe, "+last+ts")
    assert last.select([{}, {}, {}]) == 2
    assert last.select != recipe.method.select
    assert last.posthoc == registry.method("vanilla+ts").posthoc


def test_corrupted_images_are_evaluated_at_the_last_epoch(fast, tmp_path, monkeypatch):
    """Against each set predicted by hand: 40 images, one corruption at one severity at a time."""
    monkeypatch.setattr(fast, "CORRUPTED", 40)
    fast.asked["settings"] = [*SETTINGS, "plan.epochs=1", "task.train_size=200", "task.val_size=100"]
    recipe = fast.registry.recipe("fashion", "vanilla")
    run = Run.at(Path(fast.train_recipe(recipe, tmp_path / "runs", "cpu")["run"]))
    found = fast.shifts(run)
    assert [*found] == ["last", "last+ts"]
    row, test = registry.dataset("fashion"), load_splits(recipe.task).test
    models = {"last": load(run.path), "last+ts": load(run.path, "ts")}
    for severity, which in ((1, "last"), (5, "last"), (5, "last+ts")):
        figures = []
        for name in CORRUPTIONS:
            images = corrupt(test.images[:40], name, severity).float() / 255
            with torch.no_grad():
                probs = models[which](((images - row.mean[0]) / row.std[0]).permute(0, 3, 1, 2)).exp()
            figures.append(
                [getattr(metrics, each)(probs=probs, labels=test.labels[:40]) for each in ("accuracy", "ece")]
            )
        accuracy, ece = np.mean(figures, axis=0)
        at = {name: values[severity - 1] for name, values in found[which].items()}
        assert at["accuracy"] == pytest.approx(accuracy, rel=1e-5)
        assert at["ece"] == pytest.approx(ece, abs=1e-4)
        assert at["ece_low"] <= ece <= at["ece_high"]


def test_a_delta_is_named_where_validation_images_prefer_it_to_the_usual_one(scripts):
    """From the files, read anew."""
    import fast_page
    import fast_tables

    found = fast_tables.runs()
    assert {"cifar10-fast", "svhn-fast"} <= {task for task, _ in found}
    for task in fast_tables.TITLES:
        kept = [
            json.loads(path.read_text())
            for path in (RESULTS / "data" / "fast").glob(f"{task}-balcal-logits*-seed0.json")
        ]
        ends = sorted((run["history"]["val_nll"][-1], run["method"]) for run in kept)
        prefers = ends[0][1] if len(ends) > 1 else ""
        assert fast_tables.by_validation(task, found) == prefers
        rows = fast_page.with_fitted_delta(("balcal", "balcal-logits", "ls"), task, found)
        assert rows == ["balcal", *dict.fromkeys(("balcal-logits", prefers or "balcal-logits")), "ls"]
    shown = [fast_tables.titled(entry) for entry in ("balcal", "balcal-logits head.delta=0.99", PART)]
    assert shown == ["`balcal`", "`balcal-logits`, delta = 0.99", "`balcal-fixed`, logits"]


def test_the_picture_shows_our_ece_and_the_papers(scripts):
    import fast_picture
    import fast_tables

    found = fast_tables.runs()
    axes = fast_picture.picture(found).axes[0]  # CIFAR-10
    rows = {text.get_text(): place for place, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    points = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    drawn = {(line.get_marker(), *line.get_xydata()[0].round(6)) for line in points}
    for name, trained, which, theirs in (
        ("vanilla", "vanilla", "last", 6.38),
        ("vanilla+ts", "vanilla", "last+ts", 1.12),
        ("balcal-logits", "balcal-logits", "last", 0.76),
    ):
        ours = np.mean([100 * run["figures"][which]["ece"] for run in found["cifar10-fast", trained]])
        assert ("o", ours.round(6), rows[name]) in drawn
        assert ("D", theirs, rows[name]) in drawn
    assert not [theirs for mark, theirs, place in drawn if mark == "D" and place == rows["balcal-auto"]]


def test_the_picture_of_deltas_shows_every_run_with_seed_0(scripts):
    import fast_picture
    import fast_tables

    left, right = fast_picture.delta_picture(fast_tables.runs()).axes
    drawn = {line.get_label(): line.get_xydata().round(6).tolist() for line in left.get_lines()}
    courses = {line.get_label(): list(line.get_ydata()) for line in right.get_lines()}
    for name in ("balcal", "balcal-logits"):
        runs = {}
        for path in (RESULTS / "data" / "fast").glob(f"cifar10-fast-{name}*-seed0.json"):
            run = json.loads(path.read_text())
            method, _, delta = run["method"].partition(" head.delta=")
            if method == name:
                runs[float(delta or 0.95)] = run
        assert len(runs) > 1 or name == "balcal"
        assert drawn[name] == [[d, round(100 * runs[d]["figures"]["last"]["ece"], 6)] for d in sorted(runs)]
    for delta, run in runs.items():
        assert courses[f"delta = {delta:g}"] == run["history"]["gamma"]
