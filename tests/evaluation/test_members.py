"""Joined runs: the mean by hand, no training where the members are there, and nothing lost when somebody is killed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from runs_helper import QUICK, trained, trained_after_power_cut

import balcal
from balcal.core import BalcalError
from balcal.deploy.predictor import load
from balcal.registry import recipe
from balcal.runs import Run
from balcal.training import fit

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of `vanilla`, joined, and the folder of all."""
    root = tmp_path_factory.mktemp("runs")
    return root, trained("3*vanilla", root)


def probs(path, split="test"):
    with np.load(path / "predictions" / f"{split}.npz") as file:
        return np.exp(file["log_probs"].astype(np.float64))


def of_seeds(root, split="test"):
    return [probs(Run(root, recipe("digits", "vanilla", seed, QUICK)).path, split) for seed in SEEDS]


@pytest.fixture
def untrained(monkeypatch):
    """Inside, nothing can be trained."""
    monkeypatch.setattr(fit, "run_epochs", lambda session: pytest.fail("it trains"))


@pytest.mark.usefixtures("untrained")
def test_it_is_the_mean_of_its_members_and_trains_nothing_if_they_are_there(runs):
    root, run = runs
    for split in ("test", "val"):
        assert np.abs(probs(run, split) - sum(of_seeds(root, split)) / 3).max() < 1e-12
    two = trained("2*vanilla", root, seed=1)
    assert np.abs(probs(two) - (of_seeds(root)[1] + of_seeds(root)[2]) / 2).max() < 1e-12
    seals = torch.load(next((two / "checkpoints").glob("weights-*.pt")), weights_only=True)["members"]
    assert [address for address, _, _ in seals] == [
        recipe("digits", "vanilla", seed, QUICK).address() for seed in (1, 2)
    ]
    history = json.loads((run / "history.jsonl").read_text())
    with np.load(run / "predictions" / "val.npz") as file:
        nll = -np.log(probs(run, "val")[np.arange(297), file["labels"]]).mean()
    assert history["val_nll"] == pytest.approx(nll, rel=1e-9)


@pytest.mark.usefixtures("untrained")
def test_a_temperature_comes_after_the_mean_or_before_it(runs):
    root, run = runs
    labels = torch.from_numpy(np.load(run / "predictions" / "val.npz")["labels"])

    def scaled(held_out, test):
        return balcal.Calibrator("ts").fit(held_out, labels).predict_proba(test)

    after = trained("3*vanilla+ts", root)
    assert after == run
    nll = json.loads((run / "metrics+ts.json").read_text())["metrics"]["nll"]
    true = np.load(run / "predictions" / "test.npz")["labels"]
    by_hand = scaled(probs(run, "val"), probs(run))
    assert nll == pytest.approx(-np.log(by_hand[np.arange(500), true]).mean(), rel=1e-6)
    before = trained("3*vanilla+ts", root, settings=["join.posthoc=before"])
    assert before != run
    nll = json.loads((before / "metrics+ts.json").read_text())["metrics"]["nll"]
    by_hand = sum(map(scaled, of_seeds(root, "val"), of_seeds(root))) / 3
    assert nll == pytest.approx(-np.log(by_hand[np.arange(500), true]).mean(), rel=1e-5)


def test_snapshots_are_late_epochs_of_one_run(tmp_path):
    settings = ["plan.keep=all", "join.members=2"]
    run = trained("snapshots", tmp_path, settings=settings)
    alone = Run(tmp_path, recipe("digits", "vanilla", 0, [*QUICK, settings[0]]))
    model, by_hand = balcal.load(alone.path), []
    images = torch.from_numpy(registry_images())
    for epoch in (1, 2):
        model.load_state_dict(alone.load_weights(epoch))
        by_hand.append(model(images).exp().detach().double().numpy())
    assert np.abs(probs(run)[:64] - sum(by_hand) / 2).max() < 1e-6
    with pytest.raises(BalcalError, match="3 epochs have no 5 snapshots, 1 apart: set join"):
        trained("snapshots", tmp_path)


def registry_images():
    """The first 64 test images of digits, as the network sees them."""
    from balcal.data.batches import Pixels
    from balcal.evaluation.judge import load_splits
    from balcal.registry import dataset, task

    part = load_splits(task("digits")).test
    pixels = Pixels.of(dataset("digits"), torch.device("cpu"))
    return (part.images[:64].float() * pixels.scale - pixels.shift).permute(0, 3, 1, 2).numpy()


def test_it_goes_on_after_a_power_cut_in_its_second_member(runs, tmp_path):
    root, _ = runs
    again = trained_after_power_cut("2*vanilla", tmp_path, 60)
    whole = trained("2*vanilla", root)
    assert np.array_equal(probs(again), probs(whole))
    assert (again / "history.jsonl").read_text() == (whole / "history.jsonl").read_text()
    for path in (again / "checkpoints").glob("finished.*"):
        path.unlink()  # as if it had been killed before the last file was there
    assert trained("2*vanilla", tmp_path) == again
    assert np.array_equal(probs(again), probs(whole))


def test_a_member_that_changed_or_went_away_is_noticed(runs, tmp_path, capsys):
    root, run = runs
    shutil.copytree(root / "digits", tmp_path / "digits")
    copy = tmp_path / "digits" / run.name
    assert balcal_cli("check", copy, capsys=capsys)[0] == 0
    other = Run(tmp_path, recipe("digits", "vanilla", 2, QUICK))
    shutil.rmtree(other.path)
    code, _, err = balcal_cli("evaluate", copy, capsys=capsys)
    assert (code, err.count("\n")) == (1, 1)
    assert "a run that is joined, is missing or not finished: `balcal train` trains it" in err
    code, out, _ = balcal_cli("check", copy, capsys=capsys)
    assert code == 1
    assert "1 do not fit" in out
    weights = next((copy / "checkpoints").glob("weights-*.pt"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balcal.training.loop.set_rate", lambda *_: None)  # another training under the same name
        trained("vanilla", tmp_path, seed=2)
    with pytest.raises(BalcalError, match="has been trained anew since: `balcal train` joins them again"):
        balcal.load(copy)
    assert trained("3*vanilla", tmp_path) == copy
    assert not weights.exists()
    assert np.abs(probs(copy) - sum(of_seeds(tmp_path)) / 3).max() < 1e-12


@pytest.mark.usefixtures("untrained")
def test_one_file_holds_all_members_and_says_its_size(runs, tmp_path, capsys):
    run = trained("2*vanilla", runs[0])
    file = tmp_path / "joined.onnx"
    code, out, _ = balcal_cli("export", run, "--with", "ts", "--out", file, capsys=capsys)
    assert code == 0
    assert f"{file} ({file.stat().st_size / 1e6:.1f} MB)" in out
    assert "Verified against the live model on 500 test images" in out
    card = load(file).card
    assert len(card["members"]) == 2
    state = tmp_path / "joined.pt"
    assert balcal_cli("export", run, "--with", "tta+ts", "--to", "state", "--out", state, capsys=capsys)[0] == 0
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    assert load(state).predict_proba(images).shape == (5, 10)


@pytest.mark.usefixtures("untrained")
def test_members_that_disagree_show_what_they_do_not_know(runs, capsys):
    root, run = runs
    code, out, _ = balcal_cli("evaluate", run, "--ood", "--against", "fashion", "--json", capsys=capsys)
    assert code == 0
    scores = json.loads(out)["ood"]["sets"]["fashion"]["scores"]
    assert list(scores) == ["confidence", "entropy", "energy", "mutual_information", "disagreement"]

    def entropy(p):
        return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)

    def by_hand(tables):
        mean = sum(tables) / 3
        votes = [table.argmax(1) for table in tables]
        apart = sum((votes[a] != votes[b]).astype(float) for a, b in ((0, 1), (0, 2), (1, 2))) / 3
        return entropy(mean) - sum(map(entropy, tables)) / 3, apart

    inside, outside = by_hand(of_seeds(root)), by_hand(of_seeds(root, "outside-fashion"))
    for score, low, high in zip(("mutual_information", "disagreement"), inside, outside, strict=True):
        more = (high[None] > low[:, None]).mean() + (high[None] == low[:, None]).mean() / 2
        assert scores[score]["auroc"] == pytest.approx(more, abs=2e-3)
    page = Path(json.loads(balcal_cli("report", run, "--json", capsys=capsys)[1])["report"]).read_text()
    for words in ("mutual_information", "3 runs joined", "The mean of its members", "Seed 1, epoch"):
        assert words in page


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("3*snapshots", "`3\\*snapshots` would join twice: `3\\*` and `snapshots`; leave one out"),
        ("1*vanilla", "join.members must be at least 2, not 1"),
        ("3*vanila", "unknown method `vanila`; did you mean `vanilla`"),
        ("vanilla+3*fl", "unknown method `3\\*fl`"),
    ],
)
def test_names_that_join_nothing(method, words):
    with pytest.raises(BalcalError, match=words):
        recipe("digits", method)


def test_what_a_joined_run_cannot_do_it_says(runs, capsys):
    _, run = runs
    for arguments, words in (
        (["retrofit", run], "joins several networks: retrofit each of its members"),
        (["evaluate", run, "--with", "last"], "has joined its epochs already: train `3*vanilla+last` to join others"),
    ):
        code, _, err = balcal_cli(*arguments, capsys=capsys)
        assert (code, err.count("\n")) == (1, 1)
        assert words in err
