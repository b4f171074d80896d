"""The average is what the formula says, training sees nothing of it, and it survives interruption (test_kill.py)."""

from dataclasses import replace

import pytest
import torch
from runs_helper import history, newest_state, same, trained
from torch import nn

import balcal
from balcal.core import BalcalError
from balcal.recipe import Plan
from balcal.registry import recipe
from balcal.training.optimise import RunningMean


@pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
def test_later_steps_count_more_by_the_power(power):
    """By hand: a step's share, times what every later step leaves of it; in the limit, density (p + 1) t^p."""
    model = balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 3, "vanilla")
    mean, steps = RunningMean(model, power), 400
    seen = torch.randn(steps, sum(tensor.numel() for tensor in mean.live))
    for row in seen:
        with torch.no_grad():
            for p, part in zip(model.parameters(), row.split([p.numel() for p in model.parameters()]), strict=True):
                p.copy_(part.view_as(p))  # in place, as an optimiser does
        mean.add()
    shares = [(power + 1) / (k + power) for k in range(1, steps + 1)]
    left = torch.tensor([1.0, *(1 - share for share in reversed(shares[1:]))]).cumprod(0).flip(0)
    weights = left * torch.tensor(shares)
    assert float(weights.sum()) == pytest.approx(1)
    found = torch.cat([tensor.flatten() for tensor in mean.mean])
    torch.testing.assert_close(found, (weights[:, None] * seen).sum(0), atol=1e-5, rtol=1e-4)
    late = float(weights[steps // 2 :].sum())
    assert late == pytest.approx(1 - 0.5 ** (power + 1), abs=0.01)


def test_epochs_of_one_step_are_averaged_and_training_goes_its_own_way(tmp_path):
    """With one step per epoch, and every step counting the same, the k-th epoch's weights are a mean of k."""
    settings = ["plan.epochs=3", "plan.batch_size=2000", "plan.keep=all"]
    plain = trained("vanilla", tmp_path, settings=settings)
    averaged = trained("vanilla", tmp_path, settings=[*settings, "plan.average=0"])
    assert plain != averaged
    own, means = (
        [torch.load(path, weights_only=True) for path in sorted((run / "checkpoints").glob("weights-*.pt"))]
        for run in (plain, averaged)
    )
    assert len(own) == len(means) == 3
    for k, mean in enumerate(means, 1):
        for name, value in mean.items():
            if value.is_floating_point():
                expected = torch.stack([weights[name] for weights in own[:k]]).mean(0)
                torch.testing.assert_close(value, expected, msg=name)


def test_in_use_the_model_is_the_average_and_afterwards_itself():
    model = balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 3, "balcal")
    mean = RunningMean(model, 0.0)
    own = [p.detach().clone() for p in model.parameters()]
    mean.add()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    mean.add()
    with mean.in_use():
        for p, before in zip(model.parameters(), own, strict=True):
            torch.testing.assert_close(p.detach(), 2 * before)
        model.head.set_gamma(0.25)
    for p, before in zip(model.parameters(), own, strict=True):
        assert torch.equal(p.detach(), 3 * before)
    assert model.head.gamma == 0.25, "what was set meanwhile stays"


def test_a_method_brings_it_to_fit_and_the_user_has_the_last_word():
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16)

    def ends(method, **settings):
        torch.manual_seed(0)
        model = balcal.wrap(nn.Sequential(nn.Linear(4, 3)), 3, method)
        balcal.fit(model, loader, loader, epochs=1, quiet=True, **settings)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    plain, averaged = ends("vanilla"), ends("averaged")
    assert not torch.equal(plain, averaged)
    assert torch.equal(plain, ends("averaged", average=None))
    assert torch.equal(averaged, ends("vanilla", average=3.0))


def chosen_weights(run, epoch):
    return torch.load(next((run / "checkpoints").glob(f"weights-e{epoch:04d}*.pt")), weights_only=True)


@pytest.mark.parametrize(
    ("settings", "better"),
    [
        (["plan.average=0"], "last step"),  # the first steps count as much as the last ones
        (["plan.lr=0.03", "plan.schedule=constant", "plan.batch_size=16"], "average"),  # steps that undo each other
    ],
)
def test_at_the_end_validation_images_say_average_or_last_step(settings, better, tmp_path):
    """Epochs before the last are those of the average, to the bit; the last is the better of two, with its gamma."""
    settings = ["plan.epochs=8", "plan.keep=all", *settings]
    average = trained("balcal-mean", tmp_path, settings=settings)
    either = trained("balcal-auto", tmp_path, settings=settings)
    unasked = trained("balcal-auto", tmp_path, settings=[*settings, "plan.average_or_last=false"])
    assert same(history(unasked), history(average)), "a setting like any other"
    *before, end = history(either)
    *as_average, end_of_average = history(average)
    assert same(before, as_average)
    for epoch in range(7):
        assert same(chosen_weights(either, epoch), chosen_weights(average, epoch))
    assert end["weights"] == better
    if better == "average":
        assert same(end, end_of_average | {"weights": "average"})
        assert same(chosen_weights(either, 7), chosen_weights(average, 7))
        return
    assert end["val_nll_ts"] < end_of_average["val_nll_ts"]
    assert end["loss"] == end_of_average["loss"], "training saw nothing of it"
    kept, state = chosen_weights(either, 7), newest_state(average)
    assert state["step"] == 0
    for name, value in kept.items():
        if name not in ("head.weights", "head.loss_weights"):
            assert torch.equal(value, state["model"][name]), name
    assert float(kept["head.weights"][0]) == pytest.approx(end["gamma"])
    assert end["gamma"] != end_of_average["gamma"]


def test_a_power_below_zero_is_refused():
    with pytest.raises(BalcalError, match=r"plan\.average must be 0 or above"):
        Plan(average=-1.0)


def test_it_is_a_method_of_its_own_name_and_joins_any_other():
    plain, averaged, joined = (recipe("digits", name) for name in ("vanilla", "averaged", "averaged+late+ts"))
    assert averaged.method.changes == {"settings": "averaged"}
    assert averaged.task.plan == replace(plain.task.plan, average=3.0)
    assert joined.address() == averaged.address() != plain.address()
    both = recipe("digits", "balcal+averaged", overrides=["plan.average=1"])
    assert both.address().startswith("digits/balcal+averaged-seed0-")
    assert both.task.plan.average == 1.0
