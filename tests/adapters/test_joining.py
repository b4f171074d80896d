"""`balcal.join` and `balcal.tta` make models like any other of one's own."""

import numpy as np
import pytest
import torch
from torch import nn

import balcal
from balcal import decisions


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def data(n=300):
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(n, 1, 4, 4, generator=rng)
    return x, x[:, 0, 0, :3].argmax(1)


@pytest.fixture
def joined():
    """Two models of balcal and a plain network."""
    return balcal.join([balcal.wrap(network(0), 3, "vanilla"), balcal.wrap(network(1), 3, quiet=True), network(2)])


def test_it_is_used_like_any_other_model(joined, tmp_path):
    x, y = data()
    members = joined.backbone.members
    probs = torch.stack([m(x).log_softmax(1).exp() for m in members]).mean(0)
    torch.testing.assert_close(joined(x).exp(), probs, atol=1e-6, rtol=1e-5)
    predictions = balcal.predict(joined, [(x[:200], y[:200]), (x[200:], y[200:])], role="test")
    torch.testing.assert_close(predictions.probs, probs.detach(), atol=1e-6, rtol=1e-5)
    before = balcal.metrics.nll(log_probs=predictions.log_probs, labels=y)
    balcal.calibrate(joined, [(x, y)], "ts")
    after = balcal.predict(joined, [(x, y)])
    assert balcal.metrics.nll(log_probs=after.log_probs, labels=y) < before
    card = balcal.export(joined, x[:3], tmp_path / "joined.pt2", after)
    assert card["verified"]["largest_difference"] < 1e-5
    assert card["bytes"] == (tmp_path / "joined.pt2").stat().st_size
    assert "3 models" in balcal.report(joined, [(x, y)], out=tmp_path / "page.html").read_text()
    fresh = balcal.join([balcal.wrap(network(3), 3, "vanilla"), balcal.wrap(network(4), 3, quiet=True), network(5)])
    again = balcal.load(balcal.save(joined, tmp_path / "joined.pt"), network=fresh)
    assert torch.equal(again(x), joined.eval()(x))
    assert decisions.threshold(after, accuracy=0.2).threshold is not None
    monitor = balcal.Monitor(after.probs.amax(1).numpy(), (after.probs.argmax(1) == y).numpy())
    assert monitor.see(after.probs.amax(1).numpy()) == []


def test_views_of_an_image_by_hand():
    """Shifts repeat the edge; flips are of columns; flipped ones are shifted too."""
    x, _ = data(6)
    plain = network(0)
    seen = [x.numpy()]
    wide = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    seen += [wide[:, :, 1 + a : 5 + a, 1 + b : 5 + b] for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    seen += [view[..., ::-1] for view in seen]
    mean = torch.stack([plain(torch.from_numpy(view.copy())).softmax(1) for view in seen]).mean(0)
    torch.testing.assert_close(balcal.tta(plain, num_classes=3)(x).exp(), mean, atol=1e-6, rtol=1e-5)
    both = balcal.tta(balcal.join([plain, network(1)], 3), flip=False, shift=0)
    half = (plain(x).softmax(1) + network(1)(x).softmax(1)) / 2
    torch.testing.assert_close(both(x).exp(), half, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: balcal.join([]), "join takes a list of models"),
        (lambda: balcal.join([network(0)]), "cannot know how many classes these modules have: pass num_classes="),
        (lambda: balcal.join([balcal.wrap(network(0), 3, "vanilla")], 4), "models of 3 and 4 classes cannot be joined"),
        (lambda: balcal.join([network(0)], 5)(data()[0]), r"a member gave \(300, 3\) in place of logits \(N, 5\)"),
        (
            lambda: balcal.join([nn.Sequential(network(0), nn.Softmax(1))], 3)(data()[0]),
            "a member gives probabilities: have it give logits",
        ),
        (lambda: balcal.tta(network(0)), "tta cannot know how many classes this module has"),
        (lambda: balcal.tta(nn.Linear(4, 3), num_classes=3)(torch.randn(2, 4)), "other inputs have no such views"),
        (lambda: balcal.wrap(network(0), 3, "vanilla+tta"), "is the mean of several predictions: use balcal.join"),
    ],
)
def test_mistakes_are_one_clear_sentence(make, words):
    with pytest.raises(balcal.BalcalError, match=words):
        make()
