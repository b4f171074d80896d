"""Run folders when things go wrong: damage, strangers, full disks, two at once."""

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs_helper import newest_state, same, trained, whole

import balcal
from balcal.core import BalcalError
from balcal.registry import recipe
from balcal.runs import Run
from balcal.runtime.checkpoints import Folder
from balcal.runtime.files import load_sealed, save_sealed, write_atomic

HALF = ["plan.epochs=6"]


def unfinished(run):
    """A finished run as it was before that was written down."""
    for path in [*run.glob("checkpoints/finished.*"), *run.glob("metrics*.json"), *run.glob("predictions/*")]:
        path.unlink()
    return run


def states(run):
    return sorted((run / "checkpoints").glob("state-*.pt"))


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_damaged_newest_state_is_reported_and_the_one_before_it_used(tmp_path):
    whole_run = whole(trained("balcal", tmp_path / "a", settings=HALF))
    run = unfinished(trained("balcal", tmp_path / "b", settings=HALF))
    assert len(states(run)) == 2
    flip_a_byte(states(run)[-1])
    again = subprocess.run(
        [sys.executable, "-m", "balcal", "train", "digits", "balcal", "--out", str(tmp_path / "b"), "--set", HALF[0]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is damaged: its content does not match the checksum in its name; it is set aside" in again.stderr
    assert "resuming at epoch 6, batch 1" in again.stderr
    assert same(whole(run), whole_run)


def test_if_nothing_is_whole_it_says_what_to_delete(tmp_path):
    run = unfinished(trained("vanilla", tmp_path, settings=HALF))
    for path in states(run):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BalcalError, match=r"no checkpoint in .* is whole: delete that folder to train from the start"):
        trained("vanilla", tmp_path, settings=HALF)


def test_a_stranger_s_checkpoint_is_refused(tmp_path):
    other = trained("vanilla", tmp_path / "other")
    run = unfinished(trained("balcal", tmp_path, settings=HALF))
    for path in states(run):
        path.unlink()
    stranger = states(other)[-1]
    (run / "checkpoints" / stranger.name).write_bytes(stranger.read_bytes())
    with pytest.raises(BalcalError, match="belongs to another recipe: move it away"):
        trained("balcal", tmp_path, settings=HALF)
    (run / "checkpoints" / stranger.name).unlink()
    save_sealed(run / "checkpoints", "state-e0003-s000000", [1, 2])
    with pytest.raises(BalcalError, match="belongs to another recipe"):
        trained("balcal", tmp_path, settings=HALF)


def test_damaged_or_foreign_weights_are_refused_on_use(tmp_path):
    run = trained("vanilla", tmp_path)
    weights = next((run / "checkpoints").glob("weights-*.pt"))
    good = weights.read_bytes()
    flip_a_byte(weights)
    with pytest.raises(BalcalError, match="is damaged: its content does not match the checksum"):
        balcal.load(run)
    weights.write_bytes(good)
    balcal.load(run)
    weights.unlink()
    save_sealed(run / "checkpoints", weights.name.split(".")[0], {"unknown": torch.zeros(2)})
    with pytest.raises(BalcalError, match="are not those that it kept"):
        balcal.load(run)


def test_only_tensors_and_plain_values_are_ever_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "broken-in"),))

    path = save_sealed(tmp_path, "state", Evil())
    with pytest.raises(BalcalError, match="is not a checkpoint of balcal"):
        load_sealed(path)
    assert not (tmp_path / "broken-in").exists()


def test_damaged_predictions_say_what_to_do(tmp_path):
    run = trained("vanilla", tmp_path)
    (run / "predictions" / "test.npz").write_bytes(b"PK\3\4 nonsense")
    with pytest.raises(BalcalError, match=r"test.npz is damaged: delete it, and it will be computed again"):
        trained("vanilla", tmp_path)
    (run / "predictions" / "test.npz").unlink()
    trained("vanilla", tmp_path)


def test_two_trainings_of_one_recipe_do_not_meet(tmp_path):
    run = Run(tmp_path, recipe("digits", "vanilla", 0, ["plan.epochs=3"]))
    run.path.mkdir(parents=True)
    with open(run.path / ".claim", "w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        with pytest.raises(BalcalError, match="is being trained or evaluated by another process"):
            trained("vanilla", tmp_path)
    trained("vanilla", tmp_path)


def test_a_full_disk_loses_nothing_and_leaves_no_debris(tmp_path):
    """A limit on the size of files stands in for the end of the disk: the write really fails half-way."""
    folder = Folder(tmp_path, "mine")
    folder.save_state({"epoch": 1, "step": 0, "history": [{"epoch": 0}], "model": {"w": torch.ones(3)}})
    before = {p: p.read_bytes() for p in tmp_path.glob("**/*") if p.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(BalcalError, match=r"cannot write .*File too large.*: make room or choose another folder"):
            folder.save_state({"epoch": 2, "step": 0, "history": [], "model": {"w": torch.ones(50_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {p: p.read_bytes() for p in tmp_path.glob("**/*") if p.is_file()} == before
    assert folder.load_state()["epoch"] == 1


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", "/proc/balcal-cannot-write-here"):
        with pytest.raises(BalcalError, match=r"cannot write to .*: choose another folder with --out"):
            trained("vanilla", out)
    with pytest.raises(BalcalError, match="cannot write"):
        write_atomic(tmp_path / "file" / "x.json", b"")


def test_what_is_not_a_run_is_not_read_as_one(tmp_path):
    with pytest.raises(BalcalError, match=r"is not a run: it has no readable recipe.json"):
        balcal.load(tmp_path)
    run = trained("vanilla", tmp_path)
    asked = json.loads((run / "recipe.json").read_text())
    asked["names"]["seed"] = 5
    (run / "recipe.json").write_text(json.dumps(asked))
    with pytest.raises(BalcalError, match="was made with other settings"):
        balcal.load(run)


def test_a_state_can_be_read_with_plain_torch(tmp_path):
    state = newest_state(trained("balcal", tmp_path))
    assert {"model", "optimiser", "history", "epoch", "step"} <= set(state)
    assert "head.etf" in state["model"]


def test_the_commit_of_the_code_is_recorded_and_whether_it_was_modified(tmp_path):
    """`commit` names its own file to git, so it must be found wherever that file lies."""
    shutil.copytree(Path(balcal.__file__).parent, tmp_path / "src" / "balcal", ignore=shutil.ignore_patterns("*.pyc"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    probe = "import subprocess, sys; from balcal.runs import commit; print(commit()); commit.cache_clear()\n"
    probe += f"for c in (['add', 'src'], ['commit', '-qm', 'a']): subprocess.run({git!r} + c, check=True)\n"
    probe += "print(commit()); commit.cache_clear(); open('src/balcal/core.py', 'a').write('#'); print(commit())"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    untracked, clean, modified = done.stdout.split()
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (untracked, clean, modified) == ("None", head, f"{head}-dirty")
