"""PLP: the stages of the shared vectors, and frozen weights that really stay where they are."""

import json
from itertools import pairwise

import pytest
import torch
from runs_helper import newest_state, same, trained, trained_after_power_cut, whole
from shared_files import VECTORS, needs_vectors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal.backbones.tapped import blocks_of
from balcal.core import BalcalError
from balcal.methods.plp import Peel, groups
from balcal.registry import backbone

BLOCKS = json.loads(VECTORS.read_text()) if VECTORS.exists() else {"plp": []}


@needs_vectors
@pytest.mark.parametrize("entry", BLOCKS["plp"], ids=lambda e: e["id"])
def test_stage_vector(entry):
    boundaries, epochs, peel = entry["boundaries"], entry["epochs"], Peel(entry["gamma"])
    stages = [peel.stage(len(boundaries), epoch, epochs) for epoch in range(epochs)]
    count = [boundaries[len(boundaries) - 1 - stage] for stage in stages]
    if "trainable_count_at" in entry:
        assert {epoch: count[int(epoch)] for epoch in entry["trainable_count_at"]} == entry["trainable_count_at"]
        changes = [epoch for epoch in range(epochs) if epoch == 0 or stages[epoch] != stages[epoch - 1]]
        assert [*changes, epochs] == entry["change_epochs"]
    else:
        assert count == entry["recommended_trainable_per_epoch"]


def test_stages_by_hand():
    """Count the starts one by one."""
    for layers in (2, 3, 7, 15):
        for epochs in (1, 2, 5, 40):
            for gamma in (0.5, 1.0, 1.25, 3.0):
                for epoch in range(epochs):
                    stage = 0
                    while stage + 1 < layers and max(1, int(((stage + 1) / layers) ** gamma * epochs)) <= epoch:
                        stage += 1
                    assert Peel(gamma).stage(layers, epoch, epochs) == stage


def free(model):
    return [all(weight.requires_grad for weight in group) for group in groups(model)]


def test_the_head_goes_first_and_the_stem_stays():
    model = balcal.model.Model(backbone("wrn-10-1"), 10, balcal.method("balcal+plp"))
    assert len(groups(model)) == 5, "stem, three blocks (the last with the norm above it), the head"
    assert {id(w) for w in groups(model)[-1]} == {id(w) for w in model.head.parameters()}
    seen = []
    for epoch in range(20):
        model.method.before_epoch(model, epoch, 20)
        seen.append(sum(free(model)))
        assert free(model) == sorted(free(model), reverse=True)
    assert seen[0] == 5
    assert seen[-1] == 1
    assert seen == sorted(seen, reverse=True)


def test_boundaries_of_wrn_28_10():
    with torch.device("meta"):
        body = backbone("wrn-28-10")
    head = nn.Linear(640, 10, device="meta")

    class Whole:
        pass

    whole = Whole()
    whole.backbone, whole.head = body, head
    sizes = torch.tensor([len(group) for group in groups(whole)])
    assert sizes.cumsum(0).tolist() == [1, 8, 14, 20, 26, 33, 39, 45, 51, 58, 64, 70, 78, 80]


class Foreign(nn.Module):
    """Blocks in containers, a norm of its own, a loose token: what real networks look like."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(8))
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.norm(self.blocks(self.stem(x) + self.token)))


def test_foreign_networks_are_cut_at_their_children():
    model = balcal.wrap(Foreign(), 3, "plp")
    network = model.backbone.network
    found = [[id(weight) for weight in group] for group in groups(model)]
    layers = [
        [network.token, *network.stem.parameters()],
        [*network.blocks[0].parameters()],
        [*network.blocks[1].parameters(), *network.norm.parameters()],
        [*model.head.parameters()],
    ]
    assert found == [[id(weight) for weight in layer] for layer in layers]
    assert len(groups(balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), 3, "plp"))) == 1, "a head alone"


def test_a_shell_around_a_network_is_opened():
    class Shell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    assert len(blocks_of(Shell())) == 3
    assert len(blocks_of(nn.ModuleList([Shell()]))) == 3


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_frozen_weights_do_not_move(kind):
    """Neither by momentum, nor by weight decay, nor by a gradient left over; and their momentum rests too."""
    torch.manual_seed(0)
    model = balcal.wrap(Foreign(), 3, "plp")
    if kind == "sgd":
        optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.1)
    else:
        optimiser = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](
            model.parameters(), 0.1, weight_decay=0.1
        )
    x, y = torch.randn(12, 6), torch.arange(12) % 3

    def steps(count):
        for _ in range(count):
            model.loss(x, y).backward()
            optimiser.step()
            optimiser.zero_grad()

    def at(group):
        state = [value for w in groups(model)[group] for value in optimiser.state[w].values() if torch.is_tensor(value)]
        return [tensor.detach().clone() for tensor in [*groups(model)[group], *state]]

    model.method.before_epoch(model, 0, 4)
    steps(3)
    model.loss(x, y).backward()  # a gradient that nobody used
    model.method.before_epoch(model, 3, 4)
    assert free(model) == [True, False, False, False]
    assert all(w.grad is None for group in groups(model)[1:] for w in group)
    before = [at(group) for group in range(4)]
    steps(3)
    for group in range(4):
        assert same(at(group), before[group]) == (group > 0)


def loader():
    x = torch.randn(60, 6)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=20)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_fit_peels_and_leaves_the_model_free(optimiser):
    torch.manual_seed(0)
    model, data, kept = balcal.wrap(Foreign(), 3, "balcal+plp"), loader(), []
    model.backbone.network.norm.weight.requires_grad_(False)  # frozen by somebody else: not ours to free
    step = balcal.training.loop.train_epoch

    def watched(session):
        step(session)
        kept.append([[w.detach().clone() for w in group] for group in groups(model)])

    balcal.training.loop.train_epoch = watched
    try:
        settings = {"optimiser": optimiser, "weight_decay": 0.1, "lr": 0.01}
        balcal.fit(model, data, data, epochs=4, quiet=True, **settings)
        fresh = balcal.fit(model, data, data, epochs=2, quiet=True, **settings)
    finally:
        balcal.training.loop.train_epoch = step
    moved = [[not same(a, b) for a, b in zip(*pair, strict=True)] for pair in pairwise(kept[:4])]
    assert moved == [[True, True, False, False], [True, False, False, False], [True, False, False, False]]
    assert len(fresh) == 2, "a second training finds everything free"
    assert [w.requires_grad for w in model.backbone.network.norm.parameters()] == [False, True]
    assert sum(not w.requires_grad for w in model.parameters()) == 1


def test_short_runs_peel_too(tmp_path):
    run = trained("plp", tmp_path, settings=["plan.epochs=2", "plan.keep=all"])
    first, last = (torch.load(path, weights_only=True) for path in sorted((run / "checkpoints").glob("weights-*.pt")))
    moved = {name.split(".")[1] for name in first if not torch.equal(first[name], last[name])}
    assert moved == {"stem"}


def test_resumed_in_mid_epoch_to_the_bit(tmp_path):
    """The stage is found again from the epoch alone."""
    settings = ["plan.epochs=4", "plan.optimiser=sgd", "plan.weight_decay=1e-3", "plan.lr=0.05"]
    whole_run = trained("balcal+plp", tmp_path / "a", settings=settings)
    resumed = trained_after_power_cut("balcal+plp", tmp_path / "b", 2 * 15 + 7, settings)
    assert same(whole(whole_run), whole(resumed))
    assert newest_state(resumed)["epoch"] == 4


def test_mistakes_teach():
    with pytest.raises(BalcalError, match=r"before_epoch\.gamma must be above 0"):
        Peel(0.0)
    model = balcal.wrap(Foreign(), 3, "plp")
    for weight in groups(model)[0]:
        weight.requires_grad_(False)
    with pytest.raises(BalcalError, match="the lowest ones are frozen already"):
        model.method.before_epoch(model, 9, 10)
