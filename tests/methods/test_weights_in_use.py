"""Which epoch is judged: the chosen one, the last one, the most accurate one; all of one training run."""

import json

import pytest
import torch
from runs_helper import trained
from torch.nn import functional as F

from balcal.build import build
from balcal.core import BalcalError
from balcal.evaluation.judge import batches_of, evaluate, load_chosen, load_splits
from balcal.methods.weights_in_use import LastEpoch, MostAccurate
from balcal.recipe import Plan
from balcal.registry import method, recipe
from balcal.runs import Run

CPU = torch.device("cpu")
TURNING = [(0.9, 0.5, 0.40), (0.7, 0.8, 0.35), (0.8, 0.8, 0.30), (0.85, 0.7, 0.33), (0.95, 0.75, 0.36)]
"""(NLL, accuracy, NLL after a temperature): each is best in another epoch, and none in the last"""


def history():
    return [{"val_nll": nll, "val_acc": acc, "val_nll_ts": ts} for nll, acc, ts in TURNING]


@pytest.mark.parametrize(("name", "epoch"), [("vanilla", 1), ("last", 4), ("by-accuracy", 1), ("late", 2)])
def test_each_name_chooses_its_epoch(name, epoch):
    assert method(name).select(history()) == epoch
    assert method("by-accuracy").select(history()[1:3]) == 0, "the first, if several are equal"


@pytest.mark.parametrize("name", ["last", "by-accuracy"])
def test_they_find_the_run_of_plain_training(name):
    for base in ("vanilla", "balcal", "balcal-auto"):
        assert recipe("digits", f"{base}+{name}").address() == recipe("digits", base).address()
    assert recipe("digits", name).for_training().method.name == "vanilla"
    assert method(f"balcal+{name}+ts").changes == {
        "head": "balcal",
        "tally": "balcal",
        "select": name,
        "posthoc": "ts",
    }
    with pytest.raises(BalcalError, match="both set `select`"):
        method("last+by-accuracy")


def test_values_print_as_what_they_are():
    assert (str(LastEpoch()), str(MostAccurate())) == ("LastEpoch()", "MostAccurate()")


def test_the_plan_keeps_the_last_epoch():
    plan = Plan(epochs=10, keep="last")
    assert [plan.kept(n) for n in (3, 9, 10)] == [set(), set(), {9}]


SETTINGS = ["plan.epochs=12", "plan.lr=0.02", "plan.keep=last"]
"""a rate so high that the last epoch is not the best one"""


def test_both_epochs_of_one_run_are_judged(tmp_path):
    path = trained("vanilla", tmp_path, settings=SETTINGS)
    run = Run.at(path)
    ended = run.ending()
    chosen, last = run.chosen, len(ended.history) - 1
    assert chosen != last, "else this test says nothing"
    assert {chosen, last} <= set(ended.weights)
    figures = evaluate(run, method("vanilla+last"), CPU)
    assert figures["epoch"] == last
    assert figures["method"] == "vanilla+last"
    assert json.loads((path / "metrics.json").read_text())["epoch"] == chosen, "what was judged before stays"
    assert evaluate(run, method("vanilla+last+ts"), CPU)["posthoc"]["name"] == "ts"
    final = torch.load(max((path / "checkpoints").glob("state-*.pt")), weights_only=True)["model"]
    model = load_chosen(run, method("vanilla+last"), CPU)
    assert all(torch.equal(tensor, final[name]) for name, tensor in model.state_dict().items()), "where training ended"
    accurate = evaluate(run, method("by-accuracy"), CPU)
    figures = [record["val_acc"] for record in ended.history]
    assert accurate["epoch"] == figures.index(max(figures))


def test_a_run_without_its_last_epoch_says_what_to_do(tmp_path):
    run = Run.at(trained("vanilla", tmp_path, settings=SETTINGS[:2]))
    if len(run.ending().history) - 1 in run.ending().weights:
        pytest.skip("the last epoch is among the kept ones by itself")
    with pytest.raises(BalcalError, match="did not keep the weights of epoch 11: train it with --keep-epochs"):
        evaluate(run, method("vanilla+last"), CPU)


def test_the_released_choice_is_the_lowest_sum_of_both_losses(tmp_path):
    run = Run.at(trained("balcal-released", tmp_path, settings=["plan.keep=all"]))
    val = load_splits(run.recipe.task).val
    sums = []
    for epoch in range(3):
        model = build(run.recipe).eval()
        model.load_state_dict(run.load_weights(epoch))
        with torch.no_grad():
            logits = torch.cat([model(x, branches=True).logits for x, _ in batches_of(run, val, CPU).epoch(0)], 1)
        sums.append(sum(float(F.cross_entropy(branch, val.labels)) for branch in logits))
    assert [record["val_head_losses"] for record in run.history()] == pytest.approx(sums, rel=1e-5)
    assert evaluate(run, method("balcal-released"), CPU)["epoch"] == sums.index(min(sums))
    plain = Run.at(trained("vanilla", tmp_path))
    with pytest.raises(BalcalError, match="its history has no losses of two classifiers"):
        evaluate(plain, method("by-head-losses"), CPU)
