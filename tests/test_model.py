"""Wrapping foreign networks, state that travels, and somebody else's loop."""

import json
import subprocess
import sys

import pytest
import torch
from shared_files import VECTORS, needs_vectors
from torch import nn

import balcal
from balcal.build import build
from balcal.core import BalcalError, Outputs
from balcal.registry import recipe, table

TWO_CLASSES = ("beta", "platt", "quadratic")
MEANS = ("snapshots", "tta")
NO_MAP = [
    name for name in table("methods") if not balcal.method(name).head.needs_map and name not in (*TWO_CLASSES, *MEANS)
]


class Attribute(nn.Module):
    """torchvision's manner: a stem and `fc`, `classifier`, `head`, ..."""

    def __init__(self, name, layer):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.add_module(name, layer)
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(self.body(x))


class Heads(Attribute):
    """torchvision's ViT keeps its classifier in `heads.head`; one module comes after it by name only."""

    def __init__(self):
        super().__init__("heads", nn.Sequential())
        self.heads.add_module("head", nn.Linear(8, 4))
        self.auxiliary = nn.Linear(8, 2)


class TimmLike(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.num_features = 8
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, num_classes)

    def get_classifier(self):
        return self.fc

    def reset_classifier(self, num_classes):
        self.fc = nn.Identity() if num_classes == 0 else nn.Linear(8, num_classes)

    def forward_features(self, x):
        return self.conv(x).relu()

    def forward_head(self, x, pre_logits=False):
        x = x.mean((2, 3))
        return x if pre_logits else self.fc(x)

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


class Dictionary(nn.Module):
    """Returns something that is not a tensor."""

    def __init__(self):
        super().__init__()
        self.encoder, self.out = nn.Sequential(nn.Flatten(), nn.Linear(192, 8)), nn.Linear(8, 4)

    def encode(self, x):
        return self.encoder(x).relu()

    def forward(self, x):
        return {"logits": self.out(self.encode(x))}


SEQUENTIAL = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))  # noqa: E731

FOREIGN = {
    "fc": lambda: Attribute("fc", nn.Linear(8, 4)),
    "classifier": lambda: Attribute("classifier", nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 4))),
    "head": lambda: Attribute("head", nn.Linear(8, 4)),
    "heads.head": Heads,
    "sequential": SEQUENTIAL,
    "timm": TimmLike,
}


def batch():
    return torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("method", ["vanilla", "balcal", "balcal-auto"])
def test_wrap_reads_foreign_networks_and_keeps_their_classifier(kind, method):
    network = FOREIGN[kind]()
    x, _ = batch()
    before = network(x).log_softmax(1)
    model = balcal.wrap(network, num_classes=4, method=method)
    outputs = model(x, branches=True)
    torch.testing.assert_close(outputs.logits[0].log_softmax(1), before, msg="the trained classifier was thrown away")
    assert model(x).shape == (6, 4)
    torch.testing.assert_close(model(x).exp().sum(1), torch.ones(6))


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_number_of_classes_gets_a_new_classifier(kind):
    model = balcal.wrap(FOREIGN[kind](), num_classes=30, method="balcal")
    assert model(batch()[0]).shape == (6, 30), "also where the feature is narrower than K - 1"


def test_wrap_with_one_s_own_features():
    network = Dictionary()
    model = balcal.wrap(network, 4, features=network.encode, num_features=8)
    assert model(batch()[0]).shape == (6, 4)
    with pytest.raises(BalcalError, match="pass num_features= as well"):
        balcal.wrap(Dictionary(), 4, features=network.encode)


def test_what_cannot_be_read_says_what_to_pass():
    with pytest.raises(BalcalError, match=r"found no nn.Linear in Conv2d.*pass features="):
        balcal.wrap(nn.Conv2d(3, 8, 3), 4)
    with pytest.raises(BalcalError, match=r"does not end with its layer `1` \(does a softmax follow.*pass features="):
        balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Softmax(1)), 4)


def test_a_refused_network_is_left_as_it_was():
    network = SEQUENTIAL()
    with pytest.raises(BalcalError, match="29 dimensions, there are 16: use an adapter"):
        balcal.wrap(network, 30, method="balcal-noadapter")
    with pytest.raises(BalcalError, match="at least 2 classes, not 1"):
        balcal.wrap(network, 1)
    assert network(batch()[0]).shape == (6, 4)


def test_conv_adapter_needs_a_map():
    model = balcal.wrap(TimmLike(), 4, method=conv_adapter())
    assert model(batch()[0]).shape == (6, 4)
    with pytest.raises(BalcalError, match="needs a feature map, and TappedNetwork has none"):
        balcal.wrap(SEQUENTIAL(), 4, method=conv_adapter())


def conv_adapter():
    from balcal.methods.balcal import Balanced, SolveGamma

    return balcal.Method("conv", head=Balanced(adapter="conv"), tally=SolveGamma())


@pytest.mark.parametrize("kind", [*FOREIGN, "features"])
@pytest.mark.parametrize("method", ["vanilla", "balcal", "balcal-k", "balcal-beta", "balcal-auto", "balcal-fixed"])
def test_two_calls_are_enough_in_somebody_s_own_loop(kind, method):
    if kind == "features":
        network = Dictionary()
        model = balcal.wrap(network, 4, method, features=network.encode, num_features=8)
    else:
        model = balcal.wrap(FOREIGN[kind](), 4, method)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    x, y = batch()
    losses = []
    for _ in range(3):
        model.train()
        for _ in range(8):
            optimiser.zero_grad()
            loss = model.loss(x, y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        dials = model.end_epoch([(x, y)] if method == "balcal-auto" else None)
        assert set(dials) >= {"branch", "conf", "acc", "gap"} or method in ("vanilla", "balcal-fixed")
    assert model(x).exp().gather(1, y[:, None]).mean() > 0.25, "better than chance"
    if method in ("vanilla", "balcal-fixed"):
        assert losses[-1] < losses[0]


def test_a_loss_in_eval_mode_does_not_count():
    """People compute validation losses with the same call; they are no business of gamma's."""
    x, y = batch()
    model = balcal.wrap(SEQUENTIAL(), 4, "balcal")
    model.loss(x, y)
    counted = {name: tensor.clone() for name, tensor in model._sums.items()}
    model.eval()
    model.loss(x, y)
    assert all(torch.equal(model._sums[name], counted[name]) for name in counted)
    assert float(counted["count"]) == len(y)


def test_own_loop_errors_teach():
    model = balcal.wrap(SEQUENTIAL(), 4, "balcal")
    with pytest.raises(BalcalError, match=r"call model\.loss"):
        model.end_epoch()
    with pytest.raises(
        BalcalError, match="label 4 in this batch is out of range: with 4 classes labels run from 0 to 3"
    ):
        model.loss(torch.randn(2, 3, 8, 8), torch.tensor([0, 4]))


class Unmeasured:
    """As a DataLoader of a stream: it has a length, which may not be asked."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        yield self.x, self.y

    def __len__(self):
        raise TypeError("object of type 'Stream' has no len()")


def test_without_validation_data_training_batches_are_counted_and_that_is_said():
    x, y = batch()
    model, paper = (balcal.wrap(SEQUENTIAL(), 4, method) for method in ("balcal-auto", "balcal-logits"))
    paper.load_state_dict(model.state_dict() | {"head.delta": torch.tensor(0.95)})
    for each in (model, paper):
        each.train()
        each.loss(x, y)
    with pytest.warns(UserWarning, match=r"`balcal-auto` solves on the training batches.*end_epoch\(val_loader\)"):
        told = model.end_epoch()
    assert told["branch"] == "root"
    assert told["gamma"] == pytest.approx(paper.end_epoch()["gamma"], abs=0.02), "as the paper aims, on a coarser grid"
    model.loss(x, y)
    held_out = model.end_epoch(Unmeasured(x, y))
    assert held_out["conf"] == pytest.approx((6 * held_out["acc"] + 1) / 8, abs=0.02), "six samples, and two more"
    model.loss(x, y)
    assert model._sums is None, "with validation data at hand, training batches are not counted"


def test_loss_is_the_weighted_sum_of_both_heads():
    model = balcal.wrap(SEQUENTIAL(), 4, "balcal")
    model.head.set_gamma(0.7)
    x, y = batch()
    out: Outputs = model(x, branches=True)
    s, e = (nn.functional.cross_entropy(z, y) for z in out.logits)
    torch.testing.assert_close(model.loss(x, y), 0.7 * s + 0.3 * e)
    fixed = balcal.wrap(SEQUENTIAL(), 4, "balcal-fixedloss")
    fixed.head.set_gamma(0.7)
    s, e = (nn.functional.cross_entropy(z, y) for z in fixed(x, branches=True).logits)
    torch.testing.assert_close(fixed.loss(x, y), 0.5 * s + 0.5 * e)
    torch.testing.assert_close(fixed.head.weights, torch.tensor([0.7, 0.3]))


@needs_vectors
def test_two_head_loss_against_the_shared_vector():
    from balcal.model import batch_loss

    vectors = json.loads(VECTORS.read_text())
    wanted = next(entry for entry in vectors["two_head"] if entry["id"] == "two_head_CE")
    linear, etf = (vectors["batches"][wanted[f"{head}_batch"]] for head in ("linear", "etf"))
    share = torch.tensor([wanted["gamma"], 1 - wanted["gamma"]])
    out = Outputs(torch.tensor([linear["logits"], etf["logits"]]), share, share)
    loss = batch_loss(
        lambda x, branches: out, balcal.method("balcal"), None, torch.tensor(linear["targets"]), None, None
    )
    assert float(loss) == pytest.approx(wanted["expected"], abs=1e-6)


def test_gamma_decides_who_learns():
    """At gamma = 1 the adapter gets no gradient, at gamma = 0 the learnable classifier gets none; the body always."""
    for gamma, starved in ((1.0, "head.adapter"), (0.0, "head.classifier")):
        model = balcal.wrap(SEQUENTIAL(), 4, "balcal")
        model.head.set_gamma(gamma)
        model.loss(*batch()).backward()
        for name, weight in model.named_parameters():
            assert bool(weight.grad.abs().sum() == 0) == name.startswith(starved), name


@pytest.mark.parametrize("method", NO_MAP)
def test_state_travels_to_a_fresh_process_with_another_seed(method, tmp_path):
    """The released code re-draws its ETF at load time; here everything that decides a prediction is in the state."""
    model = balcal.wrap(SEQUENTIAL(), 4, method).eval()
    if hasattr(model.head, "set_gamma"):
        model.head.set_gamma(0.123)
    if hasattr(model.head, "beta"):
        model.head.beta.fill_(3.21)
    torch.manual_seed(99)
    other = balcal.wrap(SEQUENTIAL(), 4, method).eval()
    x, _ = batch()
    assert not torch.equal(model(x), other(x))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(model(x), other(x))


def test_state_travels_to_another_process(tmp_path):
    model = balcal.wrap(SEQUENTIAL(), 4, "balcal-logits").eval()
    model.head.set_gamma(0.123)
    x, _ = batch()
    torch.save({"model": model.state_dict(), "x": x, "told": model(x)}, tmp_path / "state.pt")
    reader = f"""
import torch, balcal
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(4321)
saved = torch.load({str(tmp_path / "state.pt")!r}, weights_only=True)
network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))
model = balcal.wrap(network, 4, "balcal").eval()          # built for probability fusion
model.load_state_dict(saved["model"])
assert model.head.fusion == "logits", "fusion travels"
assert abs(float(model.head.weights[0]) - 0.123) < 1e-7
assert torch.equal(model(saved["x"]), saved["told"])
"""
    subprocess.run([sys.executable, "-c", reader], check=True)


def test_dials_are_readable():
    head = balcal.wrap(SEQUENTIAL(), 4, "balcal-k").head
    assert (float(head.beta), round(float(head.delta), 4), head.fusion) == (4.0, 0.95, "probs")
    assert head.weights.tolist() == [0.5, 0.5]
    assert {"weights", "loss_weights", "etf", "beta", "delta", "fuse_logits"} <= set(head.state_dict())


def test_bf16_features_still_give_float32_losses():
    model = balcal.wrap(SEQUENTIAL(), 4, "balcal")
    x, y = batch()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x, branches=True).logits.dtype == torch.float32
        assert model.loss(x, y).dtype == torch.float32


@pytest.mark.parametrize("setting", ["task.side=1", "task.backbone=cnn-28", "task.dataset=fashion"])
def test_images_that_do_not_fit_the_network_are_noticed_when_it_is_built(setting):
    with pytest.raises(BalcalError, match=r"pixels do not go through `cnn-.*: choose another task.side"):
        build(recipe("digits", "balcal", 0, [setting]))


def test_trying_a_network_out_leaves_no_trace():
    torch.manual_seed(5)
    plain = build(recipe("digits", "balcal", 0), weights=False)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    tried = build(recipe("digits", "balcal", 0))
    assert torch.equal(torch.get_rng_state(), after)
    assert tried.training
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, tried.state_dict()[name]), name
