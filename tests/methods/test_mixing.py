"""Mixup and MIT: the shared vectors, where the draws come from, and what a tally gets to see."""

import json

import pytest
import torch
from shared_files import VECTORS, needs_vectors
from torch import nn

import balcal
from balcal.core import BalcalError, Outputs
from balcal.methods import mit as mit_module
from balcal.methods import mixup as mixup_module
from balcal.methods.fl import Focal
from balcal.methods.mit import Mit, unmixed
from balcal.methods.mixup import Mixup, draw_beta, mixed
from balcal.methods.mmce import MmceWeighted
from balcal.methods.vanilla import CrossEntropy
from balcal.runtime.randomness import generator

BLOCKS = json.loads(VECTORS.read_text()) if VECTORS.exists() else {"mixing": []}
BY_ID = {entry["id"]: entry for entry in BLOCKS["mixing"]}
CRITERIA = {"CE": CrossEntropy(), "FL(3)": Focal(3.0), "MMCE-weighted(1.5)": MmceWeighted(1.5)}


def doubles(x):
    return torch.tensor(x, dtype=torch.float64)


def one_branch(logits):
    one = torch.ones(1, dtype=torch.float64)
    return Outputs(logits[None], one, one)


def fixed_draws(monkeypatch, module, draws, permutation):
    draws = iter(draws)
    monkeypatch.setattr(module, "draw_beta", lambda alpha, rng: next(draws))
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.tensor(permutation))


def total(terms, loss):
    return float(sum(term.weight * loss(term.outputs.logits[0], term.labels) for term in terms))


@needs_vectors
@pytest.mark.parametrize("name", ["mixup_ce", "mixup_fl3", "mixup_mmcew15"])
def test_mixup_vector(name, monkeypatch):
    entry, permutation = BY_ID[name], BY_ID["mixup_ce"]["permutation"]
    fixed_draws(monkeypatch, mixup_module, [entry["lam"]], permutation)
    logits = doubles(BLOCKS["batches"][entry["logits_batch"]]["logits"])
    labels = torch.tensor(entry["targets_a"])
    _, resolve = Mixup()(torch.zeros(6, 2), labels, None)
    terms = resolve(one_branch(logits))
    assert terms[1].labels.tolist() == entry["targets_b"]
    assert total(terms, CRITERIA[entry["criterion"]]) == pytest.approx(entry["expected"], abs=1e-6)


@needs_vectors
def test_mixup_input_vector():
    entry = BY_ID["mixup_input"]
    told = mixed(doubles(entry["x"]), torch.tensor(entry["permutation"]), entry["lam"])
    torch.testing.assert_close(told, doubles(entry["expected"]))


@needs_vectors
def test_mit_vector(monkeypatch):
    entry, permutation = BY_ID["mit_l"], BY_ID["mixup_ce"]["permutation"]
    fixed_draws(monkeypatch, mit_module, [1 - entry["l1"], 1 - entry["l2"]], permutation)
    _, resolve = Mit()(torch.zeros(6, 2), torch.tensor(entry["targets_a"]), None)
    a, b = resolve(one_branch(torch.cat([doubles(entry["output1"]), doubles(entry["output2"])])))
    torch.testing.assert_close(a.outputs.logits[0], doubles(entry["decoupled_a"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(b.outputs.logits[0], doubles(entry["decoupled_b"]), atol=1e-6, rtol=0)
    assert b.labels.tolist() == entry["targets_b"]
    for term, name in ((a, "loss_a"), (b, "loss_b")):
        assert total([term], CrossEntropy()) == pytest.approx(entry[name] / 2, abs=1e-6)
    assert total([a, b], CrossEntropy()) == pytest.approx(entry["expected"], abs=1e-6)
    assert a.counts
    assert b.counts


@needs_vectors
def test_mit_recovers_a_linear_network_exactly():
    entry = BY_ID["mit_linear_identity"]
    z_a, z_b = unmixed(doubles(entry["output1"]), doubles(entry["output2"]), entry["l1"], entry["l2"])
    torch.testing.assert_close(z_a, doubles(entry["z_a"]))
    torch.testing.assert_close(z_b, doubles(entry["z_b"]))


@pytest.mark.parametrize("mix", [Mixup(), Mixup(alpha=1.0), Mit(), Mit(alpha=0.2, margin=0.5)])
def test_pairs_depend_on_the_generator_and_on_nothing_else(mix):
    x, y = torch.randn(8, 3, 4, 4), torch.arange(8)

    def told(seed, noise):
        torch.manual_seed(noise)
        inputs, resolve = mix(x, y, generator(seed, "mix", 0, 0))
        return inputs, resolve(Outputs(torch.zeros(1, len(inputs), 8), torch.ones(1), torch.ones(1)))[1].labels

    for first, again in zip(told(1, 5), told(1, 6), strict=True):
        assert torch.equal(first, again)
    assert not torch.equal(told(1, 5)[0], told(2, 5)[0])
    before = torch.get_rng_state()
    mix(x, y, generator(3, "mix", 0, 0))
    assert torch.equal(torch.get_rng_state(), before), "torch's own generator is left alone"


def test_draws_follow_the_beta_distribution():
    draws = torch.tensor([draw_beta(0.2, generator(0, "test", i)) for i in range(2000)])
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(draws.var()) == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.01)


def test_mit_shares_lie_on_both_sides_and_apart():
    rng = generator(0, "test")
    for mix in (Mit(), Mit(alpha=0.2), Mit(alpha=4.0, margin=0.3)):
        for _ in range(300):
            l1, l2 = mix.shares(rng)
            assert 1 >= l1 >= 0.5 >= l2 >= 0
            assert l1 - l2 >= mix.margin
    with pytest.raises(BalcalError, match=r"does not give shares 0.9 apart: lower mix.margin or mix.alpha"):
        Mit(alpha=1000.0, margin=0.9).shares(rng)


def test_alpha_zero_and_a_batch_of_one_change_nothing():
    x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    inputs, resolve = Mixup(alpha=0.0)(x, y, generator(0))
    torch.testing.assert_close(inputs, x)
    assert [term.weight for term in resolve(one_branch(torch.zeros(5, 3)))] == [1.0, 0.0]
    inputs, _ = Mixup()(x[:1], y[:1], generator(0))
    torch.testing.assert_close(inputs, x[:1])


def network():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 4))


class Seen:
    """A tally that remembers what it was shown."""

    on = "train"

    def __init__(self):
        self.shown = []

    def start(self, model):
        return {"count": torch.zeros(())}

    def add(self, sums, outputs, labels):
        self.shown.append((outputs.logits.detach(), labels))

    def finish(self, sums, model):
        return {}


def counted(mix):
    """What a tally sees of one step, and the model after it."""
    tally = Seen()
    model = balcal.wrap(network(), 4, balcal.Method("seen", tally=tally, mix=mix))
    x, y = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    model.loss(x, y, generator(7, "mix")).backward()
    return tally.shown, model, x, y


def test_clean_counts_the_batch_as_it_came_and_changes_nothing():
    shown, model, x, y = counted(Mixup(counted="clean"))
    [(logits, labels)] = shown
    assert torch.equal(labels, y)
    fresh = balcal.wrap(network(), 4, "vanilla").train()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(logits, fresh.eval()(x, branches=True).logits), (
        "statistics move once per step, before it is counted"
    )
    assert model.training
    assert int(model.backbone.network[1].num_batches_tracked) == 1
    assert not logits.requires_grad


def test_dominant_counts_the_mixed_batch_with_the_labels_of_the_larger_share():
    for seed in range(6):
        mix = Mixup(alpha=1.0, counted="dominant")
        y = torch.arange(4)
        _, resolve = mix(torch.randn(4, 2), y, generator(seed))
        terms = resolve(one_branch(torch.zeros(4, 4)))
        assert [term.counts for term in terms] == [term.weight >= 0.5 for term in terms]
    [(logits, _)] = counted(Mixup(counted="dominant"))[0]
    assert logits.shape == (1, 6, 4)


def test_mit_counts_both_views_of_one_pass():
    shown, model, _, _ = counted(Mit())
    assert [logits.shape for logits, _ in shown] == [(1, 6, 4), (1, 6, 4)]
    assert int(model.backbone.network[1].num_batches_tracked) == 1, "one batch of 2 N for BatchNorm"


def test_parts_that_somebody_put_into_eval_mode_stay_there():
    model = balcal.wrap(network(), 4, "balcal-k+mixup")
    model.backbone.network[1].eval()
    model.loss(torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]))
    assert [m.training for m in model.backbone.network[:3]] == [True, False, True]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Mixup(alpha=-0.1), "mix.alpha must be at least 0, not -0.1"),
        (lambda: Mit(alpha=0.0), "mix.alpha must be above 0"),
        (lambda: Mit(margin=0.0), r"mix.margin must lie in \(0, 1\), not 0.0: un-mixing divides"),
        (lambda: Mixup()(torch.zeros(2, 2, dtype=torch.uint8), None, generator(0)), "only images of floating point"),
    ],
)
def test_mistakes_teach(make, complaint):
    with pytest.raises(BalcalError, match=complaint):
        make()
