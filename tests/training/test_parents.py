"""Runs that start from another run: found or trained first, addressed with it, resumed to the bit in either stage."""

import json
import multiprocessing
import random
import signal

import pytest
import torch
from command_line import balcal_cli
from runs_helper import history, same, train_until_killed, trained, trained_after_power_cut, whole

import balcal
from balcal.core import BalcalError
from balcal.recipe import THE_REST, Method, Plan
from balcal.registry import recipe
from balcal.runtime.provenance import describe


def runs(root):
    return sorted((root / "digits").iterdir(), key=lambda run: run.name)


def weights(run, epoch):
    return torch.load(next((run / "checkpoints").glob(f"weights-e{epoch:04d}.*.pt")), weights_only=True)


def chosen(run):
    return weights(run, json.loads((run / "metrics.json").read_text())["epoch"])


def test_two_methods_share_one_parent(tmp_path):
    first = trained("tst", tmp_path)
    vanilla = next(run for run in runs(tmp_path) if run.name.startswith("vanilla"))
    before = {path: path.stat().st_mtime_ns for path in vanilla.rglob("*")}
    second = trained("vtst", tmp_path)
    assert len(runs(tmp_path)) == 3
    assert {path: path.stat().st_mtime_ns for path in vanilla.rglob("*")} == before
    assert same(whole(vanilla), whole(trained("vanilla", tmp_path / "alone"))), "an ordinary run of vanilla"
    for run in (first, second):
        asked = json.loads((run / "recipe.json").read_text())
        assert asked["parent"] == f"digits/{vanilla.name}"
        assert asked["recipe"]["parent"]["method"]["name"] == "vanilla"
        theirs, ours = chosen(vanilla), chosen(run)
        body = [name for name in ours if name.startswith("backbone.")]
        assert body
        assert all(torch.equal(ours[name], theirs[name]) for name in body), "the chosen body, and it does not move"
    assert balcal.load(first).method.name == "tst"


def test_a_finished_run_does_not_ask_for_its_parent(tmp_path):
    run = trained("tst", tmp_path)
    vanilla = next(run for run in runs(tmp_path) if run.name.startswith("vanilla"))
    vanilla.rename(tmp_path / "away")
    assert trained("tst+ts", tmp_path) == run
    assert len(runs(tmp_path)) == 1


def test_what_the_user_says_of_the_plan_holds_for_both_stages():
    made = recipe("digits", "tst", 0, ["plan.batch_size=32", "task.val_size=100", "head.latent=16"])
    assert made.parent.task.plan.batch_size == 32
    assert made.parent.task.val_size == 100
    assert made.method.head.latent == 16
    plain = recipe("digits", "vanilla", 0, ["plan.batch_size=32", "task.val_size=100"])
    assert made.parent.address() == plain.address(), "what the task tuned for the child is not the parent's"
    assert (made.task.plan.epochs, made.parent.task.plan.epochs) == (5, 20)
    apart = recipe("digits", "tst", 0, ["plan.epochs=7", "parent.plan.epochs=20"])
    assert (apart.task.plan.epochs, apart.parent.task.plan.epochs) == (7, 20)
    assert apart.parent.address() == recipe("digits", "vanilla").address()
    with pytest.raises(BalcalError, match=r"`parent\.plan\.epochs` cannot be set: method `fl` does not start from"):
        recipe("digits", "fl", 0, ["parent.plan.epochs=3"])


def test_the_rest_of_a_name_is_its_parent():
    assert balcal.method("pcs").starts_from == balcal.method("vanilla+pcs").starts_from == "vanilla"
    assert balcal.method("balcal+fl+pcs+ts").starts_from == balcal.method("pcs+balcal+fl").starts_from == "balcal+fl"
    made = recipe("digits", "balcal+fl+pcs", 0, ["head.delta=0.9", "loss.gamma=2", "before_epoch.every=4"])
    assert (made.parent.method.head.delta, made.parent.method.loss.gamma) == (0.9, 2.0)
    assert (made.task.plan.keep, made.parent.task.plan.keep) == ("best", 4)
    assert (made.task.plan.optimiser, made.parent.task.plan.optimiser) == ("sgd", "adam")
    assert recipe("digits", "pcs").parent.task.plan.keep == "all"
    assert recipe("digits", "pcs", 0, ["plan.lr=0.01"]).task.plan.lr == 0.01, "its own settings give way"


def test_the_address_knows_the_parent_and_only_where_there_is_one():
    addresses = {recipe("digits", "tst", 0, [s]).address() for s in ("parent.plan.epochs=3", "parent.plan.epochs=4")}
    assert len(addresses) == 2
    assert recipe("digits", "tst+ts").address() == recipe("digits", "tst").address()
    assert "parent" not in json.dumps(describe(recipe("digits", "balcal")))


def test_a_select_that_comes_with_training_stays_with_the_run():
    training = recipe("digits", "balcal+pcs+ts", 0, ["select.floor=0.5", "posthoc.by=ece"]).for_training()
    assert training.method.name == "balcal+pcs"
    assert training.method.select.floor == 0.5
    assert training.overrides == ("select.floor=0.5",)
    assert training.method.posthoc is None
    assert training == training.for_training()
    assert recipe("digits", "balcal", 0, ["select.figure=val_ece"]).for_training().overrides == ()


def test_two_parents_cannot_be_joined():
    with pytest.raises(BalcalError, match="both set `parent`: vanilla and \\*"):
        Method("a", parent="vanilla") + Method("b", parent=THE_REST)
    with pytest.raises(BalcalError, match=r"both set `head`: Balanced\(.*TwoStage\("):
        balcal.method("balcal+tst")


@pytest.mark.parametrize("method", ["tst", "vtst", "balcal+pcs"])
@pytest.mark.parametrize("step", [20, 45 + 22])
def test_interrupted_in_either_stage_it_resumes_to_the_bit(method, step, tmp_path):
    trained(method, tmp_path / "whole")
    trained_after_power_cut(method, tmp_path / "cut", step)
    for cut, uncut in zip(runs(tmp_path / "cut"), runs(tmp_path / "whole"), strict=True):
        assert cut.name == uncut.name
        assert same(whole(cut), whole(uncut))
    log = "".join((run / "log.txt").read_text() for run in runs(tmp_path / "cut"))
    assert "resuming at epoch 2, batch" in log


def test_kills_in_both_stages_leave_no_trace(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["balcal.training.fit", "balcal.methods.balcal", "sklearn.datasets", "torch._dynamo"]
    )
    settings, rng = ["plan.epochs=6", "plan.batch_size=32"], random.Random(4)

    for stage in ("vanilla", "vanilla", "pcs", "pcs", None):
        strike = (stage, 1, rng.uniform(0, 0.02)) if stage else None
        args = ("pcs", tmp_path / "killed", settings, tmp_path / "err.txt", strike)
        process = context.Process(target=train_until_killed, args=args)
        process.start()
        process.join()
        if stage:
            assert process.exitcode == -signal.SIGKILL, (tmp_path / "err.txt").read_text()[-2000:]
    assert process.exitcode == 0, (tmp_path / "err.txt").read_text()[-2000:]
    trained("pcs", tmp_path / "whole", settings=settings)
    for killed, unharmed in zip(runs(tmp_path / "killed"), runs(tmp_path / "whole"), strict=True):
        assert (killed / "log.txt").read_text().count("resuming at epoch") == 2
        assert same(whole(killed), whole(unharmed))


def test_every_nth_epoch_and_the_best_one_stay(tmp_path):
    run = trained("vanilla", tmp_path, settings=["plan.epochs=8", "plan.keep=3", "plan.lr=0.3"])
    best = min(history(run), key=lambda r: r["val_nll"])["epoch"]
    assert best not in (1, 4, 7), "the case must tell them apart"
    assert {int(path.name[9:13]) for path in (run / "checkpoints").glob("weights-*")} == {1, 4, 7, best}
    with pytest.raises(BalcalError, match=r"plan\.keep must be best, last, all or a number from 1 on, not 0"):
        Plan(keep=0)


def test_show_names_the_parent(capsys):
    _, out, _ = balcal_cli("show", "balcal+pcs+ts", capsys=capsys)
    assert "  parent       balcal   (by pcs)" in out
    assert "PCS (random search)" in out
    assert "Return a string" not in out
    _, out, _ = balcal_cli("show", "pcs", "--json", capsys=capsys)
    assert json.loads(out)["parent"] == "vanilla"
