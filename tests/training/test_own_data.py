"""Batches of all kinds: the same data in another form give the same model; weights count as numbers of samples."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import balcal
from balcal.core import BalcalError
from balcal.data.targets import weighted_loss
from balcal.registry import method, table

rng = torch.Generator().manual_seed(2)
Y = torch.randint(4, (64,), generator=rng)
X = torch.randn(64, 8, generator=rng)
X[torch.arange(64), Y] += 2
ROWS = torch.arange(64).split(16)
PLAIN = [(X[rows], Y[rows]) for rows in ROWS]
ONE_HOT = torch.eye(4)[Y]
LOSSES = [name for name, each in table("methods").items() if "loss" in each.changes]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 16), nn.Linear(3, 16), nn.Linear(16, 4)

    def forward(self, left, right):
        return self.out((self.a(left) + self.b(right)).relu())


def wrapped(name="balcal-auto", network=None):
    torch.manual_seed(1)
    return balcal.wrap(network or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), 4, name)


def fitted(train, val=PLAIN, name="balcal-auto", **settings):
    model = wrapped(name)
    balcal.fit(model, train, val, **{"epochs": 2, "lr": 1e-2, "quiet": True} | settings)
    return model


def difference(first, second, x=X):
    with torch.no_grad():
        return float((first.eval()(x).exp() - second.eval()(x).exp()).abs().max())


FORMS = {
    "weights of one": lambda x, y: (x, y, torch.ones(len(y))),
    "a dictionary": lambda x, y: {"pixels": x, "labels": y},
    "its weights": lambda x, y: {"x": x, "label": y, "weight": [1.0] * len(y)},
    "one-hot labels": lambda x, y: (x, torch.eye(4)[y]),
    "nearly one-hot": lambda x, y: (x, torch.eye(4)[y].mul(1 - 1e-7).add(0.25e-7)),
    "arrays": lambda x, y: [x.numpy(), y.numpy()],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_data_in_another_form(form):
    other = [FORMS[form](x, y) for x, y in PLAIN]
    assert difference(fitted(PLAIN), fitted(other, other)) < 1e-4
    found = balcal.predict(wrapped(), other)
    assert torch.equal(found.labels, Y)


def test_several_inputs_by_position_and_by_name():
    batches = [((x[:, :5], x[:, 5:]), y) for x, y in PLAIN]
    forms = [
        (batches, {}),
        ([[list(x), y] for x, y in batches], {}),
        ([{"left": x[0], "right": x[1], "labels": y} for x, y in batches], {}),
        ([{"left": x[0], "right": x[1], "answer": y} for x, y in batches], {"target": "answer"}),
        ([(*x, y) for x, y in batches], {"target": -1}),
    ]
    seen = []
    for loader, settings in forms:
        model = wrapped(network=Two())
        model.load_state_dict(seen[0][0]) if seen else None
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        balcal.fit(model, loader, loader, epochs=1, quiet=True, **settings)
        seen.append((before, balcal.predict(model, loader, **settings).log_probs))
    assert all(torch.equal(each, seen[0][1]) for _, each in seen)
    with pytest.raises(BalcalError, match="`mixup` mixes images, one tensor each, not a tuple"):
        balcal.fit(wrapped("mixup", Two()), batches, batches, epochs=1, quiet=True)


def test_a_stream_is_counted_or_limited():
    stream = DataLoader(Stream(), batch_size=16)
    assert difference(fitted(PLAIN), fitted(stream)) == 0
    assert difference(fitted(PLAIN[:2]), fitted(stream, steps_per_epoch=2)) == 0
    assert len(balcal.predict(wrapped(), stream)) == 64
    with pytest.raises(BalcalError, match="an iterator, which is used up"):
        fitted(iter(PLAIN))


@pytest.mark.parametrize("loader", [[X], DataLoader(TensorDataset(X), 16), [{"x": X}]], ids=["x", "(x,)", "named"])
def test_predict_needs_no_labels(loader):
    model = wrapped()
    found = balcal.predict(model, loader)
    torch.testing.assert_close(found.log_probs, model.eval()(X), rtol=1e-4, atol=1e-5)
    assert len(found) == 64
    with pytest.raises(BalcalError, match="these predictions have no labels"):
        balcal.verdict(found)
    with pytest.raises(BalcalError, match="one batch is no loader"):
        balcal.predict(model, (X, Y))


def test_ignored_samples_are_as_if_they_were_not_there():
    kept = Y != 2
    masked = torch.where(kept, Y, torch.tensor(-100))
    with_them = [(X[rows], masked[rows]) for rows in ROWS]
    without = [(X[rows][kept[rows]], Y[rows][kept[rows]]) for rows in ROWS]
    assert difference(fitted(without, without), fitted(with_them, with_them, ignore_index=-100)) == 0
    assert len(balcal.predict(wrapped(), with_them, ignore_index=-100)) == int(kept.sum())
    none = (X[:16], torch.full((16,), -100))
    whole = [*with_them, none]
    assert difference(fitted(without, without), fitted(without, whole, ignore_index=-100)) < 1e-5
    assert len(balcal.predict(wrapped(), whole, ignore_index=-100)) == int(kept.sum())
    model = wrapped("vanilla").train()
    assert model.loss(none[0], Y[:16], weight=torch.zeros(16)).item() == 0
    fitted(whole, whole, ignore_index=-100, class_weight="balanced")  # a batch without a label goes by
    with pytest.raises(BalcalError, match="every sample of the loader is ignored or has weight 0"):
        fitted([none], PLAIN, ignore_index=-100)


@pytest.mark.parametrize("name", [*LOSSES, "vanilla"])
def test_weights_go_through_every_loss(name):
    loss = method(name).loss
    g = torch.Generator().manual_seed(4)
    z, y = 3 * torch.randn(9, 5, generator=g).double(), torch.randint(5, (9,), generator=g)
    w = torch.tensor([1.0, 2, 0, 1, 3, 1, 2, 0, 1]).double()
    weighted = partial(weighted_loss, loss)
    torch.testing.assert_close(weighted(z, y, torch.full_like(w, 2.5)), loss(z, y), msg="equal weights change nothing")
    torch.testing.assert_close(weighted(z, y, (w > 0).double()), loss(z[w > 0], y[w > 0]), msg="0 leaves a sample out")
    if name not in ("esd", "mmce-w"):  # these compare a sample with all others; mmce-w divides by counts twice
        often = w.long()
        repeated = loss(z.repeat_interleave(often, 0), y.repeat_interleave(often))
        torch.testing.assert_close(weighted(z, y, w), repeated, msg="weight 2 is twice the same sample")
    leaf = z.clone().requires_grad_()
    weighted(leaf, y, w).backward()
    assert not leaf.grad[w == 0].any()
    assert leaf.grad.isfinite().all()


def test_a_loss_that_compares_samples_must_say_how():
    with pytest.raises(BalcalError, match=r"is no mean over samples.*give it `weighted`"):
        weighted_loss(lambda z, y: z.std(), torch.randn(5, 3), torch.zeros(5).long(), torch.ones(5))


@pytest.mark.parametrize("name", ["balcal", "balcal-logits", "balcal-auto", "balcal-beta", "mixup+balcal", "balcal+ts"])
def test_weights_count_as_samples_in_tally_validation_and_maps(name):
    often = torch.tensor([1, 3, 0, 2] * 16)
    weighted = [(X, Y, often.float())]
    repeated = [(X.repeat_interleave(often, 0), Y.repeat_interleave(often))]
    histories = []
    for val in (weighted, repeated):
        model = wrapped(name)
        train = [(X, Y, torch.ones(64))]
        history = balcal.fit(model, train, val, epochs=2, lr=1e-2, quiet=True)
        histories.append([{k: v for k, v in record.items() if isinstance(v, float)} for record in history])
    for first, second in zip(*histories, strict=True):
        assert first == pytest.approx(second, abs=2e-5)


def test_soft_labels_are_mixed_losses():
    soft = torch.softmax(torch.randn(64, 4, generator=rng), 1)
    model = wrapped("vanilla").eval()
    by_hand = -(soft * model(X)).sum(1).mean()
    torch.testing.assert_close(model.loss(X, soft), by_hand)
    weight = torch.rand(64, generator=rng)
    by_hand = -(weight[:, None] * soft * model(X)).sum() / weight.sum()
    torch.testing.assert_close(model.loss(X, soft, weight=weight), by_hand)
    assert fitted([(X, soft)], [(X, soft)], "balcal-auto+ts") is not None
    with pytest.raises(BalcalError, match="soft labels in batch 1 must be rows of probabilities"):
        fitted([(X, soft * 2)])


def test_class_and_sample_weights_of_fit():
    loader = DataLoader(TensorDataset(X, Y), 16)
    counts = torch.bincount(Y, minlength=4)
    balanced = 64 / (4 * counts)
    of_sample = balanced[Y]
    in_batches = [(x, y, balanced[y]) for x, y in PLAIN]
    expected = fitted(in_batches, in_batches, name="vanilla")
    assert difference(expected, fitted(PLAIN, name="vanilla")) > 1e-3
    for given in ("balanced", balanced.tolist(), dict(enumerate(balanced.tolist()))):
        assert difference(expected, fitted(PLAIN, name="vanilla", class_weight=given)) < 1e-5
    assert difference(expected, fitted(loader, in_batches, name="vanilla", sample_weight=of_sample.numpy())) < 1e-5
    held_out = fitted(loader, None, sample_weight=of_sample)
    assert difference(held_out, fitted(loader, None)) > 1e-4
    for settings, words in {
        ("class_weight", "even"): 'must be "balanced", a mapping or 4 numbers, not "even"',
        ("class_weight", (1.0, 2.0)): "class_weight has 2 numbers, and there are 4 classes",
        ("class_weight", ((7, 1.0),)): "class 7",
        ("class_weight", 5): 'must be "balanced", a mapping or 4 numbers, not 5',
        ("class_weight", (1, 2, 3, "x")): "4 numbers, not",
        ("class_weight", (1, 1, 1, -1)): "none below 0",
        ("sample_weight", (1.0,)): "the data set 64 samples",
        ("sample_weight", (0.0,) * 64): "sample_weight must be finite, none below 0, and not all 0",
        ("sample_weight", (-1.0,) * 64): "sample_weight must be finite, none below 0",
    }.items():
        name, value = settings
        with pytest.raises(BalcalError, match=words):
            fitted(loader, **{name: dict(value) if value == ((7, 1.0),) else value})
