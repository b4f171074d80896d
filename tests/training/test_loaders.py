"""Somebody's loaders: what is wrong with them is said in a sentence, and never becomes a number."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

import balcal
from balcal.core import BalcalError
from balcal.data.splits import hold_out

rng = torch.Generator().manual_seed(2)
Y = torch.randint(4, (64,), generator=rng)
X = torch.randn(64, 8, generator=rng)
X[torch.arange(64), Y] += 2
GOOD = [(X[rows], Y[rows]) for rows in torch.arange(64).split(16)]


def net(*between):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), *between, nn.ReLU(), nn.Linear(16, 4))


def wrapped(method="balcal-auto", *between):
    return balcal.wrap(net(*between), 4, method)


class Claims:
    """Batches, and another length than theirs."""

    def __init__(self, length, batches=GOOD):
        self.length, self.batches = length, batches

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.batches)


class Once(Claims):
    """An iterator with a length: used up after the first time."""

    def __init__(self):
        super().__init__(4, iter(GOOD))


USES = {
    "fit": lambda loader: balcal.fit(wrapped(), loader, GOOD, epochs=2, quiet=True),
    "fit, to validate": lambda loader: balcal.fit(wrapped(), GOOD, loader, epochs=2, quiet=True),
    "predict": lambda loader: balcal.predict(wrapped(), loader),
    "calibrate": lambda loader: balcal.calibrate(wrapped(), loader, "ts"),
    "calibrate gamma": lambda loader: balcal.calibrate(wrapped(), loader, "gamma"),
    "retrofit": lambda loader: balcal.retrofit(net(), loader, GOOD, epochs=1),
    "retrofit, to validate": lambda loader: balcal.retrofit(net(), GOOD, loader, epochs=1),
    "end_epoch": lambda loader: wrapped().end_epoch(loader),
}
SHORT, LONG = Claims(8), Claims(3)
everywhere = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


@everywhere
@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (SHORT, "the loader has ended after 4 of 8 batches: make len"),
        (LONG, "the loader gives more than 3 batches, which is its length"),
        ([*GOOD, (X[:5], Y[:4])], "batch 5.* has 5 images and 4 labels: each image needs one label"),
        ([*GOOD, (X[:4], Y[:4] + 0.5)], r"must be a list of class indices, not torch.float32 \(4,\)"),
        ([*GOOD, (X[:4], Y[:4, None, None])], r"must be a list of class indices, not torch.int64 \(4, 1, 1\)"),
        ([*GOOD, (X[:2], ("cat", "dog"))], "labels in batch 5 must be class indices, not names like 'cat': let the"),
        ([*GOOD, (X[:4], Y[:4] * 1j)], "must be a list of class indices, not torch.complex64"),
        ([(X, Y, Y[:9])], "the third part of batch 1 must be the weights of its 64 samples"),
        ([(X, Y, X[:, 0])], "finite and none below 0"),
        ([(X, X, X, Y)], "gives 4 parts: say where the labels are, target=-1"),
        ([(X, "cat")], "the labels of batch 1 are no numbers"),
        ([(X[0], Y[0])], "must be a list of class indices"),
        ([], "empty"),
    ],
)
def test_a_loader_that_is_not_what_it_says(use, loader, words):
    with pytest.raises(BalcalError, match=words):
        use(loader)


@everywhere
@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (X, "one batch is no loader: pass a DataLoader, or a list of batches"),
        ((X, Y), "one batch is no loader"),
        ((X.numpy(), Y.numpy()), "one batch is no loader"),
        ({"x": X, "labels": Y}, "one batch is no loader"),
        (TensorDataset(X, Y), r"a data set is no loader: pass DataLoader\(dataset, batch_size=64\)"),
        (0.1, "a loader is a DataLoader, or a list of batches, .*, not float"),
        ([(X, Y, torch.zeros(64))], "every sample .*has weight 0"),
        ([(X, Y, ["heavy"] * 64)], "the third part of batch 1 must be the weights of its 64 samples, .* not list"),
    ],
    ids=["tensor", "pair", "arrays", "dictionary", "data set", "share", "weights of 0", "words as weights"],
)
def test_what_is_no_loader(use, loader, words):
    if isinstance(loader, list) and "weight 0" in words and use is USES["predict"]:
        assert len(use(loader)) == 64
        return
    with pytest.raises(BalcalError, match=words):
        use(loader)


def test_labels_that_can_mean_only_one_thing_are_converted():
    one_hot = nn.functional.one_hot(Y, 4)
    texts = [str(int(y)) for y in Y]
    column = pd.Series(Y.numpy(), index=range(5, 69))
    kinds = (Y.float(), Y.double()[:, None], Y[:, None], one_hot, one_hot.float(), texts, np.array(texts))
    for labels in (*kinds, Y.numpy().astype(object), column):
        assert torch.equal(balcal.predict(wrapped(), [(X, labels)]).labels, Y)


def test_tables_of_pandas_are_inputs():
    model = wrapped()
    found = balcal.predict(model, [(pd.DataFrame(X.numpy()), pd.Series(Y.numpy()))])
    assert torch.equal(found.log_probs, balcal.predict(model, [(X, Y)]).log_probs)


@pytest.mark.parametrize("use", ["fit", "fit, to validate", "retrofit", "retrofit, to validate", "end_epoch"])
def test_labels_that_no_class_has(use):
    with pytest.raises(BalcalError, match=r"label 4 in .* is out of range: with 4 classes labels run from 0 to 3"):
        USES[use]([*GOOD, (X, Y + 1)])


def test_images_that_are_no_numbers_do_not_reach_a_retrofit():
    with pytest.raises(BalcalError, match="image 2 of batch 5 has NaN or infinite values"):
        balcal.retrofit(net(), [*GOOD, (X.clone().index_fill_(0, torch.tensor([2]), torch.nan), Y)], GOOD, epochs=1)


@pytest.mark.parametrize("where", ["train", "val"])
def test_an_iterator_is_used_up_after_the_first_epoch(where):
    loaders = {"train": GOOD, "val": GOOD} | {where: Once()}
    with pytest.raises(BalcalError, match=r"ended after 0 of 4 batches.*an iterator is used up after the first"):
        balcal.fit(wrapped(), loaders["train"], loaders["val"], epochs=2, quiet=True)


def test_a_wrong_length_leaves_no_epoch_behind(tmp_path):
    """Else the mean of 4 losses, divided by 8, would stand in the history."""
    with pytest.raises(BalcalError, match="ended after 4 of 8"):
        balcal.fit(wrapped(), SHORT, GOOD, epochs=2, out=tmp_path, quiet=True)
    assert not list(tmp_path.glob("**/*.pt"))
    assert not (tmp_path / "history.jsonl").exists()


def test_without_a_length_there_is_nothing_to_count():
    """Where no length is needed, a generator will do."""
    predictions = balcal.predict(wrapped(), (batch for batch in GOOD))
    assert torch.equal(predictions.labels, Y)
    with pytest.raises(BalcalError, match="the loader is empty"):
        balcal.predict(wrapped(), iter([]))
    with pytest.raises(BalcalError, match="the loader is an iterator"):
        balcal.fit(wrapped(), (batch for batch in GOOD), GOOD, epochs=1, quiet=True)


def test_a_last_batch_of_one_and_batch_norm():
    data = TensorDataset(X[:33], Y[:33])
    words = r"BatchNorm cannot be trained on a batch of 1: have the last batch left out \(drop_last=True\)"
    with pytest.raises(BalcalError, match=words):
        balcal.fit(wrapped("balcal", nn.BatchNorm1d(16)), DataLoader(data, 16), GOOD, epochs=1, quiet=True)
    model = wrapped("balcal", nn.BatchNorm1d(16))
    with pytest.raises(BalcalError, match=words):
        model.loss(X[:1], Y[:1])
    records = balcal.fit(model, DataLoader(data, 16, drop_last=True), GOOD, epochs=1, quiet=True)
    assert len(records) == 1
    assert len(balcal.predict(model, DataLoader(data, 16)).labels) == 33, "in use one sample is as good as many"


def test_in_one_s_own_loop_batches_are_looked_at_too():
    model = wrapped()
    for images, labels, words in [
        (X[:5], Y[:4], "this batch has 5 images and 4 labels"),
        (X[:0], Y[:0], "this batch is empty"),
        (X[:4], Y[:4] + 0.5, "must be a list of class indices"),
    ]:
        with pytest.raises(BalcalError, match=words):
            model.loss(images, labels)
    model.loss(X, Y)
    for empty in ([], [(X[:0], Y[:0])]):
        with pytest.raises(BalcalError, match="the validation loader is empty"):
            model.end_epoch(empty)
    record = model.end_epoch(GOOD)
    assert 0 <= record["gamma"] == pytest.approx(model.head.gamma)


def test_of_samples_drawn_with_replacement_none_can_be_held_out():
    """A tenth held out, the rest would be drawn in another way than was asked for."""
    data = TensorDataset(X, Y)
    for sampler in (RandomSampler(data, replacement=True), RandomSampler(data, num_samples=32)):
        with pytest.raises(BalcalError, match=r"no samples can be held out.*: pass val_loader="):
            hold_out(DataLoader(data, 8, sampler=sampler), seed=0)


def test_a_sampler_that_wants_the_epoch_gets_it():
    """Else each epoch of a DistributedSampler would have the same order."""
    orders = []

    class Seen(DistributedSampler):
        def __iter__(self):
            orders.append(list(super().__iter__()))
            return iter(orders[-1])

    sampler = Seen(TensorDataset(X, Y), num_replicas=2, rank=0, shuffle=True)
    for loader in (
        DataLoader(TensorDataset(X, Y), 16, sampler=sampler),
        DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(sampler, 16, drop_last=False)),
    ):
        orders.clear()
        balcal.fit(wrapped(), loader, GOOD, epochs=3, quiet=True)
        assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize(("samples", "held"), [(20, 4), (64, 13), (500, 100), (900, 100), (3000, 300)])
def test_more_than_a_tenth_is_held_out_of_few(samples, held):
    """A hundred, but no more than a fifth."""
    loader = DataLoader(TensorDataset(torch.zeros(samples, 8), torch.zeros(samples).long()), 8)
    rest, found = hold_out(loader, seed=0)
    assert (len(found.dataset), len(rest.dataset)) == (held, samples - held)


@pytest.mark.parametrize(("method", "fits"), [("balcal-auto", True), ("vanilla+ts", True), ("balcal", False)])
def test_few_held_out_samples_are_said_to_be_few(method, fits, capsys):
    """A method that fits nothing on them says nothing; nor does any on a hundred."""
    words = f"64 held-out samples are few for `{method}`: below 100 an accuracy is known to 3 points or worse"
    for val in (GOOD, DataLoader(TensorDataset(X, Y), 16)):
        balcal.fit(wrapped(method), GOOD, val, epochs=1)
        assert (words in capsys.readouterr().err) == fits
    balcal.fit(wrapped(method), GOOD, GOOD * 2, epochs=1)
    assert "are few" not in capsys.readouterr().err
