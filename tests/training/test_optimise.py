"""Optimisers do what a plan says: one step of each, redone by hand."""

import math

import pytest
import torch
from torch import nn

import balcal
from balcal.recipe import Plan
from balcal.runtime.provenance import describe, fingerprint
from balcal.training.optimise import make_optimiser, parameter_groups, rate, set_rate


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)).double()


def step(network, optimiser, gradients):
    for weight, gradient in zip(network.parameters(), gradients, strict=True):
        weight.grad = gradient.clone()
    optimiser.step()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weights_only", [False, True])
def test_three_steps_of_sgd_by_hand(nesterov, weights_only):
    """v <- m v + g;  w <- w - lr (g + m v) if it looks ahead, else w - lr v;  g has the decay of what decays."""
    plan = Plan(
        optimiser="sgd",
        lr=0.1,
        momentum=0.9,
        weight_decay=0.01,
        nesterov=nesterov,
        decay_weights_only=weights_only,
    )
    network = small()
    optimiser = make_optimiser(network, plan)
    mine = [weight.detach().clone() for weight in network.parameters()]
    speeds = [torch.zeros_like(weight) for weight in mine]
    rates = (0.1, 0.05, 0.2)
    for lr in rates:
        gradients = [torch.randn_like(weight) for weight in mine]
        set_rate(optimiser, lr)
        step(network, optimiser, gradients)
        for number, gradient in enumerate(gradients):
            decays = not weights_only or mine[number].dim() > 1
            g = gradient + (0.01 if decays else 0.0) * mine[number]
            speeds[number] = 0.9 * speeds[number] + g
            mine[number] = mine[number] - lr * (g + 0.9 * speeds[number] if nesterov else speeds[number])
    for found, expected in zip(network.parameters(), mine, strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-12)


def test_norms_and_biases_are_those_without_decay():
    network = small()
    decayed, bare = parameter_groups(network, Plan(weight_decay=0.1, decay_weights_only=True))
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 2, 2, 2), (2, 3)]
    assert "weight_decay" not in decayed
    assert [tuple(p.shape) for p in bare["params"]] == [(3,), (3,), (3,), (2,)]
    assert bare["weight_decay"] == 0
    for kind in ("sgd", "adam", "adamw"):
        groups = make_optimiser(network, Plan(optimiser=kind, weight_decay=0.1, decay_weights_only=True)).param_groups
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    network[0].weight.requires_grad_(False)
    assert [tuple(p.shape) for p in parameter_groups(network, Plan())[0]["params"]] == [(3,), (3,), (3,), (2, 3), (2,)]
    only = parameter_groups(nn.Linear(2, 2, bias=False), Plan(decay_weights_only=True))
    assert len(only) == 1, "no empty group"


def test_without_momentum_there_is_nothing_to_look_ahead_with():
    ahead, plain = (
        make_optimiser(small(), Plan(optimiser="sgd", momentum=0.0, nesterov=flag)).defaults for flag in (True, False)
    )
    assert ahead == plain


@pytest.mark.parametrize("warmup", [0.0, 0.2, 0.75, 1.0])
def test_onecycle_is_two_straight_lines(warmup):
    plan = Plan(lr=0.3, schedule="onecycle", warmup=warmup)
    for percent in range(100):
        share = percent / 100
        by_hand = 0.3 * share / warmup if share < warmup else 0.3 * (1 - share) / (1 - warmup)
        assert rate(plan, share) == pytest.approx(by_hand)
        assert math.isfinite(rate(plan, 1.0))
    assert max(rate(plan, n / 1000) for n in range(1000)) == pytest.approx(0.3, rel=0.002), "the peak is plan.lr"


def test_new_settings_leave_old_addresses_alone():
    """A plan that does not use them is described as before there were any."""
    assert not {"nesterov", "decay_weights_only"} & describe(Plan()).keys()
    used = [Plan(nesterov=True), Plan(decay_weights_only=True), Plan(schedule="onecycle"), Plan(keep="last"), Plan()]
    assert len({fingerprint(plan) for plan in used}) == len(used)


def test_a_sum_is_the_mean_times_the_batch():
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    loader = [(part, part[:, :4].argmax(1)) for part in x.split(24)]

    def losses(**settings):
        torch.manual_seed(0)
        model = balcal.wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), 4, "vanilla")
        history = balcal.fit(model, loader, loader, epochs=3, optimiser="sgd", quiet=True, **settings)
        return [record["loss"] for record in history]

    assert losses(lr=0.24) == pytest.approx(losses(lr=0.01, sum_loss=True), rel=1e-4)


def test_the_momentum_of_batch_norms_is_set_for_all_of_them():
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = balcal.wrap(network, num_classes=3, method="etf-1")
    loader = [(torch.randn(6, 4), torch.arange(6) % 3)]
    balcal.fit(model, loader, loader, epochs=1, norm_momentum=0.01, quiet=True)
    assert {m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm1d)} == {0.01}
    assert sum(isinstance(m, nn.BatchNorm1d) for m in model.modules()) == 2
