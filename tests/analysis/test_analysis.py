"""Looks into networks, each against a computation by another hand."""

import json
import math

import numpy as np
import pytest
import torch
from runs_helper import same, trained, whole
from torch import nn

from balcal import registry
from balcal.analysis.collapse import collapse, prototype_distances
from balcal.analysis.features import (
    ETF,
    LEARNABLE,
    Reading,
    activation_maps,
    breadth,
    over_epochs,
    read_all,
    read_head,
    silhouette,
    tsne,
)
from balcal.build import as_method
from balcal.core import BalcalError
from balcal.data.loaders import LoaderBatches
from balcal.methods.parts.etf import largest_confidence, simplex_etf
from balcal.model import Model
from balcal.runs import Run

CPU = torch.device("cpu")


def model(method="balcal", backbone="wrn-10-1", classes=4):
    return Model(registry.backbone(backbone), classes, as_method(method)).eval()


def by_hand(features, labels, weight, bias):
    """The four conditions with D x D matrices and loops over classes."""
    h, w, k = features.numpy(), weight.numpy(), len(weight)
    mu = np.stack([h[labels == c].mean(0) for c in range(k)])
    m = mu - mu.mean(0)
    within = sum(np.cov(h[labels == c].T, bias=True) for c in range(k)) / k
    between = m.T @ m / k

    def angles(v):
        cosines = [
            v[i] @ v[j] / math.dist(v[i], 0 * v[i]) / math.dist(v[j], 0 * v[j]) for i in range(k) for j in range(i)
        ]
        return np.mean([abs(c + 1 / (k - 1)) for c in cosines])

    def norms(v):
        lengths = [math.sqrt(row @ row) for row in v]
        return np.std(lengths) / np.mean(lengths)

    wrong = 0
    for row in h:
        picked = np.argmax(w @ row + bias.numpy())
        wrong += picked != min(range(k), key=lambda c: math.dist(row, mu[c]))
    return {
        "nc1": np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / k,
        "nc2_norms": norms(m),
        "nc2_angles": angles(m),
        "nc2_norms_weights": norms(w),
        "nc2_angles_weights": angles(w),
        "nc3": np.linalg.norm(w / np.linalg.norm(w) - m / np.linalg.norm(m)) ** 2,
        "nc4": wrong / len(h),
    }


def test_collapse_is_what_the_definitions_say():
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0, 1])
    features, weight, bias = torch.randn(10, 5).double(), torch.randn(3, 5).double(), torch.randn(3).double()
    told = collapse(Reading(features, weight, bias), labels).as_dict()
    assert told == pytest.approx(by_hand(features, labels, weight, bias))
    assert 0 < told["nc4"] < 1


def test_a_collapsed_network_has_zeros():
    frame = simplex_etf(8, 5).T.double()
    labels = torch.arange(5).repeat(4)
    told = collapse(Reading(3 * frame[labels] + 1, 7 * frame, None), labels).as_dict()
    assert told == pytest.approx(dict.fromkeys(told, 0), abs=1e-6)


def test_collapse_needs_every_class():
    with pytest.raises(BalcalError, match="class 1 has no image"):
        collapse(Reading(torch.randn(2, 3), torch.randn(2, 3), None), torch.tensor([0, 0]))


@pytest.mark.parametrize("method", ["vanilla", "balcal", "balcal-k", "balcal-noadapter", "etf-1", "tst"])
def test_readings_give_the_logits_of_the_branches(method):
    made, images = model(method), torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        feature_map, features = made.features(images)
        found = read_head(made.head, features, feature_map)
        for reading, logits in zip(found.values(), made(images, branches=True).logits, strict=True):
            torch.testing.assert_close(reading.logits(), logits)
    assert list(found) == [name for name in (LEARNABLE, ETF) if name in found]


def test_reading_many_images_keeps_their_order_and_the_limit():
    made = model("vanilla")
    images, labels = torch.randn(7, 3, 32, 32), torch.arange(7) % 4
    pairs = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    found, true = read_all(made, LoaderBatches(pairs, CPU, 0), limit=6)
    assert torch.equal(true, labels[:6])
    torch.testing.assert_close(found[LEARNABLE].features, made.features(images)[1][:6].detach())


def test_prototypes_are_carried_back_through_the_adapter():
    """Four features and ten classes: the adapter widens, and its linear path carries prototypes back."""
    head = as_method("balcal-k").head(4, 10)
    w, m, p = head.classifier.weight.detach(), head.etf.T, head.adapter.skip.weight.detach()
    cosine, l2 = [], []
    for k in range(10):
        back = [sum(10 * float(m[k, j]) * float(p[j, i]) for j in range(10)) for i in range(4)]
        mine = w[k].tolist()
        dot, lengths = sum(a * b for a, b in zip(mine, back, strict=True)), math.hypot(*mine) * math.hypot(*back)
        cosine.append(1 - dot / lengths)
        l2.append(math.dist(mine, back))
    assert prototype_distances(head) == pytest.approx({"cosine": np.mean(cosine), "l2": np.mean(l2)}, rel=1e-5)


def test_the_same_prototypes_are_no_distance_apart():
    head = as_method("balcal").head(16, 4)
    with torch.no_grad():
        head.classifier.weight.copy_(2 * head.etf.T)
    assert prototype_distances(head) == pytest.approx({"cosine": 0, "l2": 1}, abs=1e-6)
    with pytest.raises(BalcalError, match="two classifiers"):
        prototype_distances(as_method("vanilla").head(16, 4))


class Pooled(nn.Module):
    """A backbone that pools a map by its mean."""

    num_features = 6

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward_features(self, x):
        return self.conv(x)

    def forward_head(self, x, pre_logits=False):
        return x.mean((2, 3))


def test_for_a_linear_classifier_the_map_is_the_class_activation_map():
    made, images = Model(Pooled(), 3, as_method("balcal")).eval(), torch.randn(2, 3, 5, 5)
    learnable, _ = activation_maps(made, images, torch.tensor([2, 0]))
    seen, w = made.backbone.conv(images).detach(), made.head.classifier.weight.detach()
    for n, k in ((0, 2), (1, 0)):
        for i in range(5):
            for j in range(5):
                value = sum(float(w[k, c] * seen[n, c, i, j]) for c in range(6)) / 25
                assert float(learnable[n, i, j]) == pytest.approx(max(0.0, value), abs=1e-6)


def test_the_map_of_the_fixed_classifier_follows_its_logit():
    """Slopes by small differences: add a little to a whole channel, see what the logit does."""
    made, images = Model(Pooled(), 3, as_method("balcal")).eval().double(), torch.randn(1, 3, 4, 4).double()
    _, etf = activation_maps(made, images, torch.tensor([1]))
    with torch.no_grad():
        seen = made.backbone.conv(images)

        def logit(feature_map):
            return float(made.head(feature_map.mean((2, 3)), None).logits[1, 0, 1])

        value = torch.zeros(4, 4).double()
        for c in range(6):
            step = torch.zeros(1, 6, 1, 1).double()
            step[0, c] = 1e-4
            value += (logit(seen + step) - logit(seen - step)) / 2e-4 / 16 * seen[0, c]
    torch.testing.assert_close(etf[0], value.relu(), rtol=1e-3, atol=1e-6)


def test_maps_leave_the_model_as_it_was_and_refuse_tokens():
    made = model().train()
    activation_maps(made, torch.randn(2, 3, 32, 32))
    assert made.training
    assert all(p.grad is None for p in made.parameters())
    made.backbone.forward_features = lambda x: torch.randn(len(x), 5, 64)
    with pytest.raises(BalcalError, match="tokens"):
        activation_maps(made, torch.randn(2, 3, 32, 32))


def test_breadth_of_one_place_and_of_all():
    one, all_ = torch.zeros(4, 4), torch.full((4, 4), 0.3)
    one[1, 2] = 5
    assert breadth(torch.stack([one, all_])).tolist() == pytest.approx([1 / 16, 1])


def test_embeddings_are_the_same_twice_and_keep_far_groups_apart():
    labels = torch.arange(60) % 3
    features = torch.randn(60, 5) + 50 * torch.eye(5)[labels]
    placed = tsne(features)
    assert np.array_equal(placed, tsne(features))
    assert silhouette(torch.from_numpy(placed), labels) > 0.5


def test_silhouette_is_the_mean_over_images_of_how_much_nearer_their_own_class_is():
    labels, features = torch.arange(12) % 3, torch.randn(12, 4)
    shares = []
    for i in range(12):
        far = [[math.dist(features[i], features[j]) for j in range(12) if j != i and labels[j] == c] for c in range(3)]
        own, other = (np.mean(far[labels[i]]), min(np.mean(far[c]) for c in range(3) if c != labels[i]))
        shares.append((other - own) / max(own, other))
    assert silhouette(features, labels) == pytest.approx(np.mean(shares))


@pytest.mark.parametrize(("beta", "k"), [(1, 10), (3.5, 100)])
def test_no_feature_makes_an_etf_classifier_surer(beta, k):
    frame = simplex_etf(k + 3, k).double()
    best = torch.softmax(beta * frame.T @ frame, 1).diagonal().mean()
    assert largest_confidence(beta, k) == pytest.approx(float(best), rel=1e-6)


def test_keeping_epochs_changes_neither_bits_nor_address(tmp_path):
    plain, kept = trained("balcal", tmp_path / "a"), trained("balcal", tmp_path / "b", keep_epochs=1)
    assert plain.name == kept.name
    before, after = whole(plain), whole(kept)
    assert {f"weights-e{n:04d}" for n in range(3)} <= after.keys()
    assert all(same(value, after[name]) for name, value in before.items())
    records = over_epochs(Run.at(kept), lambda m: prototype_distances(m.head), CPU)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert len({record["l2"] for record in records}) == 3


def test_a_run_that_kept_nothing_is_trained_again_in_its_place(tmp_path):
    run = trained("vanilla", tmp_path)
    before = whole(run)
    with pytest.raises(BalcalError, match="--keep-epochs"):
        over_epochs(Run.at(run), lambda m: {}, CPU)
    assert trained("vanilla", tmp_path, keep_epochs=1) == run
    after = whole(run)
    assert all(same(value, after[name]) for name, value in before.items())
    stamp = (run / "metrics.json").stat().st_mtime_ns, json.loads((run / "environment.json").read_text())["started"]
    trained("vanilla", tmp_path, keep_epochs=1)
    trained("vanilla", tmp_path, keep_epochs=2)  # has more than that already
    again = json.loads((run / "environment.json").read_text())["started"]
    assert again == stamp[1]
    assert len(Run.at(run).kept()) == 3
