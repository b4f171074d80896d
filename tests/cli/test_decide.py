"""`balcal decide` as a person meets it: a run, a file, groups, costs, mistakes."""

import json

import numpy as np
import pytest
from command_line import balcal_cli
from runs_helper import trained

from balcal import decisions


def saved(path, seed, n=3000):
    rng = np.random.default_rng(seed)
    conf = 0.5 + 0.5 * rng.beta(4, 0.4, n)
    right = rng.random(n) < conf
    probs, labels = np.stack([conf, 1 - conf], axis=1), (~right).astype(int)
    np.savez(path, probs=probs, labels=labels)
    return {"probs": probs, "labels": labels}


def test_a_file(tmp_path, capsys):
    data, other = saved(tmp_path / "held.npz", 0), saved(tmp_path / "test.npz", 1)
    options = ["--accuracy", "0.97", "--sets", "0.95", "--check", tmp_path / "test.npz"]
    code, out, err = balcal_cli("decide", tmp_path / "held.npz", *options, "--json", capsys=capsys)
    assert code == 0, err
    found = json.loads(out)
    expected = decisions.threshold(**data, accuracy=0.97)
    assert found["threshold"]["threshold"] == expected.threshold
    assert found["checked"]["accepted"] == expected.accept(probs=other["probs"]).sum()
    sets = decisions.prediction_sets(**data, alpha=0.05)
    assert found["sets"]["limits"] == pytest.approx(sets.limits.tolist())
    assert found["sets_checked"]["coverage"] == pytest.approx(sets.evaluate(**other).coverage)
    code, out, _ = balcal_cli("decide", tmp_path / "held.npz", *options, capsys=capsys)
    assert "act where confidence is at least" in out
    assert "on 3,000 test samples" in out
    assert "lac prediction sets from 3,000 held-out samples" in out


def test_groups_and_costs(tmp_path, capsys):
    saved(tmp_path / "held.npz", 2)
    (tmp_path / "groups.txt").write_text("group\n" + "old\nnew\n" * 1500)
    (tmp_path / "costs.csv").write_text("0,1,0.2\n10,0,0.2\n")
    options = ["--groups", tmp_path / "groups.txt", "--costs", tmp_path / "costs.csv", "--accuracy", "0.9"]
    code, out, err = balcal_cli("decide", tmp_path / "held.npz", *options, capsys=capsys)
    assert code == 0, err
    assert "2 of 2 groups have a threshold" in out
    assert "expected cost" in out
    assert "2 groups, 0 with a gap" in out
    np.save(tmp_path / "groups.npy", np.arange(3000) % 3)
    code, out, _ = balcal_cli(
        "decide", tmp_path / "held.npz", "--groups", tmp_path / "groups.npy", "--json", capsys=capsys
    )
    assert set(json.loads(out)["groups"]) == {"0", "1", "2"}


def test_a_run(tmp_path, capsys):
    run = trained("vanilla", tmp_path)
    code, out, err = balcal_cli("decide", run, "--accuracy", "0.7", "--sets", "0.9", "--with", "ts", capsys=capsys)
    assert code == 0, err
    assert "on 500 test samples" in out
    assert "The same held-out samples chose the epoch and fitted ts" in out
    rows = [["0" if a == k else "5" for a in range(10)] + ["1"] for k in range(10)]
    (tmp_path / "costs.csv").write_text("\n".join(map(",".join, rows)))
    code, out, err = balcal_cli("decide", run, "--costs", tmp_path / "costs.csv", "--with", "ts", capsys=capsys)
    assert code == 0, err
    assert "against the probabilities before" in out
    assert "abstains in" in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--accuracy", "1.5"], "accuracy must lie between 0 and 1"),
        (["--sets", "0.99999"], "alpha 1e-05 needs at least"),
        (["--costs", "none.csv"], "cannot read none.csv"),
        (["--groups", "none.txt"], "cannot read none.txt"),
        (["--with", "ts"], "--with goes with a run"),
        (["--check", "none.npz"], "there is no file none.npz"),
    ],
)
def test_mistakes_get_one_sentence(options, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("held.npz", 3, 300)
    code, out, err = balcal_cli("decide", "held.npz", *options, capsys=capsys)
    assert code == 1
    assert out == ""
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
