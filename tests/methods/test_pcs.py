"""PCS: stitched as in the shared vector, drawn from seed and candidate alone, chosen within the floor."""

import json

import pytest
import torch
from runs_helper import history, same, trained
from shared_files import VECTORS, needs
from torch import nn

import balcal
from balcal.core import BalcalError
from balcal.methods.pcs import Stitch, WithinFloor, block_names, stitch
from balcal.registry import backbone


@needs(VECTORS)
def test_stitch_vector():
    entry = json.loads(VECTORS.read_text())["pcs"]
    kept = {int(epoch): weights for epoch, weights in entry["checkpoints"].items()}
    picks = dict(zip(entry["blocks"], (kept[epoch] for epoch in entry["combination"]), strict=True))
    assert stitch(kept[max(kept)], picks) == entry["expected"]


def test_a_block_is_not_one_whose_name_only_begins_alike():
    assert stitch({"b1.w": 1, "b10.w": 1}, {"b1": {"b1.w": 2, "b10.w": 2}}) == {"b1.w": 2, "b10.w": 1}


def test_blocks_by_name():
    assert block_names(backbone("cnn-8")) == ["backbone.stem", "backbone.body", "backbone.neck", "head"]
    with torch.device("meta"):
        wide = backbone("wrn-16-2")
    names = block_names(wide)
    assert names[0] == "backbone.stem"
    assert len(names) == 8
    foreign = balcal.wrap(nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 3)), 3, "pcs")
    kept = foreign.state_dict()
    assert all(any(name.startswith(f"{block}.") for block in block_names(foreign.backbone)) for name in kept)


class Kept:
    """A parent by hand: epochs whose weights tell where they come from."""

    epochs = (0, 1, 2, 4)
    chosen = 2

    def __init__(self, model):
        self.names = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def weights(self, epoch):
        return {name: torch.full_like(tensor, epoch) for name, tensor in self.names.items()}


def picked(model, epoch, seed):
    torch.manual_seed(seed)
    assert model.method.before_epoch(model, epoch, 9) is True
    values = {name: int(tensor.flatten()[0]) for name, tensor in model.state_dict().items() if tensor.numel()}
    blocks = block_names(model.backbone)
    found = [{v for name, v in values.items() if name.startswith(f"{block}.")} for block in blocks]
    assert all(len(each) == 1 for each in found), "a block comes from one epoch, buffers and all"
    rest = {v for name, v in values.items() if not any(name.startswith(f"{block}.") for block in blocks)}
    assert rest == {4}, "everything else from the last epoch"
    return tuple(each.pop() for each in found)


def test_what_a_candidate_is_made_of():
    model = balcal.model.Model(backbone("wrn-10-1"), 10, balcal.method("balcal+pcs"))
    model.parent = Kept(model)
    assert set(picked(model, 0, 0)) == {2}, "the first candidate is the parent as it was chosen"
    draws = {picked(model, 1, seed) for seed in range(8)}
    assert len(draws) == 8
    assert {e for draw in draws for e in draw} == {0, 1, 2, 4}
    assert picked(model, 1, 3) == picked(model, 5, 3)


def test_the_run_of_its_candidates(tmp_path):
    run = trained("pcs", tmp_path, settings=["plan.epochs=4", "plan.keep=all"])
    parent = json.loads((run / "recipe.json").read_text())["parent"]
    kept = [
        torch.load(path, weights_only=True) for path in sorted((tmp_path / parent / "checkpoints").glob("weights-*"))
    ]
    mine = [torch.load(path, weights_only=True) for path in sorted((run / "checkpoints").glob("weights-*"))]
    assert (len(kept), len(mine)) == (4, 4)
    came_from = []
    for candidate in mine:
        sources = []
        for block in block_names(backbone("cnn-8")):
            names = [name for name in candidate if name.startswith(f"{block}.") and candidate[name].numel() > 1]
            far = [sum(float((candidate[n] - each[n]).square().sum()) for n in names) for each in kept]
            sources.append(far.index(min(far)))
        came_from.append(tuple(sources))
    best = min(range(4), key=lambda e: history(tmp_path / parent)[e]["val_nll"])
    assert came_from[0] == (best,) * 4
    assert len(set(came_from)) == 4, "each candidate is another one, and one gentle epoch does not hide it"
    chosen = json.loads((run / "metrics.json").read_text())["epoch"]
    assert chosen == WithinFloor()(history(run))
    other = trained("pcs", tmp_path, seed=1, settings=["plan.epochs=4"])
    assert history(other) != history(run)


def test_ts_on_top_reads_the_same_run(tmp_path):
    run = trained("pcs", tmp_path)
    assert trained("pcs+ts", tmp_path) == run
    assert json.loads((run / "metrics+ts.json").read_text())["method"] == "pcs+ts"
    assert json.loads((run / "metrics.json").read_text())["method"] == "pcs"


def test_each_candidate_starts_with_a_fresh_optimiser():
    """With momentum left over from the candidate before, the second would end elsewhere."""
    x = torch.randn(40, 6)
    data = [(x[:20], x[:20, :3].argmax(1)), (x[20:], x[20:, :3].argmax(1))]

    def network():
        torch.manual_seed(0)
        return balcal.wrap(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 3, "pcs")

    class One(Kept):
        epochs, chosen = (0,), 0

        def weights(self, epoch):
            return self.names

    model = network()
    model.parent = One(model)
    settings = {"optimiser": "sgd", "momentum": 0.9, "lr": 0.1, "quiet": True}
    records = balcal.fit(model, data, data, epochs=3, **settings)
    assert len({r["val_nll"] for r in records}) == 1, "three times the same candidate"


def test_within_the_floor():
    def history_of(*figures):
        return [{"val_acc": acc, "val_nll": nll, "val_ece": -nll} for acc, nll in figures]

    assert WithinFloor()(history_of((0.9, 1.0))) == 0
    assert WithinFloor()(history_of((0.9, 1.0), (0.95, 0.5), (0.9, 0.7))) == 1
    assert WithinFloor()(history_of((0.9, 1.0), (0.85, 0.5), (0.895, 0.7))) == 2
    assert WithinFloor(floor=0.05)(history_of((0.9, 1.0), (0.85, 0.5), (0.895, 0.7))) == 1
    assert WithinFloor()(history_of((0.9, 1.0), (0.1, 0.5))) == 0
    assert WithinFloor("val_ece")(history_of((0.9, 1.0), (0.9, 2.0), (0.9, 0.5))) == 1


def test_mistakes_teach():
    with pytest.raises(BalcalError, match=r"before_epoch\.every must be at least 1"):
        Stitch(0)
    with pytest.raises(BalcalError, match=r"select\.floor must be at least 0"):
        WithinFloor(floor=-1.0)
    model = balcal.wrap(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), 3, "pcs")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = [(torch.randn(6, 6), torch.arange(6) % 3)]
    with pytest.raises(BalcalError, match="pcs combines the epochs of a finished run: use `balcal train TASK pcs`"):
        balcal.fit(model, data, data, epochs=1, quiet=True)
    assert same(dict(model.state_dict()), before)
