"""The frame's geometry, and Theorem 1 of the paper as properties of the ETF head."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import balcal
from balcal.core import BalcalError
from balcal.methods.balcal import Balanced, Etf
from balcal.methods.parts.etf import ConvAdapter, VectorAdapter, adapted_width, largest_confidence, simplex_etf


@given(st.integers(2, 60), st.integers(0, 40), st.integers(0, 2**31))
def test_frame_is_a_simplex_in_any_space_that_can_hold_it(classes, extra, seed):
    check_frame(simplex_etf(classes - 1 + extra, classes, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(("features", "classes"), [(1, 2), (2, 2), (999, 1000), (1280, 1000), (640, 100)])
def test_frame_at_the_sizes_people_use(features, classes):
    check_frame(simplex_etf(features, classes))


def check_frame(m):
    classes = m.shape[1]
    gram = m.double().T @ m.double()
    wanted = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(m.double().sum(1), torch.zeros(len(m), dtype=torch.float64), atol=1e-5, rtol=0)


def test_frame_has_no_favourite_direction():
    """The released code's frame pointed its first class away from where features live; ours treats all alike."""
    rng = torch.Generator().manual_seed(0)
    first = torch.stack([simplex_etf(8, 4, rng)[:, 0] for _ in range(2000)])
    assert first.mean(0).abs().max() < 0.05


def test_frame_says_what_it_needs():
    with pytest.raises(BalcalError, match="at least 9 dimensions, there are 4"):
        simplex_etf(4, 10)
    with pytest.raises(BalcalError, match="at least 2 classes"):
        simplex_etf(4, 1)


def test_adapters_widen_only_where_they_must():
    z, feature_map = torch.randn(5, 16), torch.randn(5, 16, 4, 4)
    for classes, width in ((10, 16), (17, 16), (18, 18), (100, 100)):
        assert adapted_width(16, classes) == width
        assert VectorAdapter(16, width)(z, None).shape == (5, width)
        assert ConvAdapter(16, width)(z, feature_map).shape == (5, width)
    assert VectorAdapter(16, 16)(z.relu(), None).min() < 0, "the output must be signed"
    assert ConvAdapter(16, 16)(z, feature_map.relu()).min() < 0, "the output must be signed"


# Theorem 1: beta alone sets the ETF head's confidence.

features = st.integers(0, 2**31).map(lambda seed: torch.randn(64, 12, generator=torch.Generator().manual_seed(seed)))


def head(beta, classes=7):
    torch.manual_seed(3)
    return Etf(beta=beta)(12, classes)


@given(features, st.floats(0.05, 20), st.floats(1.05, 5))
def test_confidence_grows_with_beta_and_accuracy_does_not_move(z, beta, factor):
    low, high = (head(b)(z, None).log_probs() for b in (beta, beta * factor))
    assert torch.equal(low.argmax(1), high.argmax(1))
    assert (high.max(1).values >= low.max(1).values - 1e-6).all()
    assert high.exp().max(1).values.mean() > low.exp().max(1).values.mean()


@given(features)
def test_confidence_tends_to_one_over_k_and_to_one(z):
    torch.testing.assert_close(head(1e-6)(z, None).log_probs().exp(), torch.full((64, 7), 1 / 7), atol=1e-5, rtol=0)
    gap = head(1.0)(z, None).logits[0].topk(2).values
    clear = (gap[:, 0] - gap[:, 1]) > 1e-3
    assert head(1e5)(z, None).log_probs().exp().max(1).values[clear].min() > 0.999


@given(features, st.floats(0.1, 10))
def test_ratios_follow_the_exponential_law(z, beta):
    """p_i / p_j = exp(beta (cos_i - cos_j)), with cosines from the frame itself."""
    etf = head(beta)
    cosines = torch.nn.functional.normalize(z, dim=1) @ etf.etf
    log_p = etf(z, None).log_probs()
    torch.testing.assert_close(log_p[:, 0] - log_p[:, 1], beta * (cosines[:, 0] - cosines[:, 1]), atol=1e-4, rtol=1e-4)


@given(features, st.sampled_from([1.0, 3.0]))
def test_confidence_has_its_cap(z, beta):
    cap = 1 / (1 + 6 * math.exp(-beta * 7 / 6))
    etf = head(beta)
    assert etf(z, None).log_probs().exp().max() <= cap + 1e-6
    assert etf(etf.etf.T.contiguous(), None).log_probs().exp().diagonal().allclose(torch.tensor(cap), atol=1e-5)


def test_the_released_adapter_has_the_released_number_of_weights():
    adapter = Balanced(adapter="released")(640, 10, channels=640).adapter
    assert sum(p.numel() for p in adapter.parameters()) == 3_689_600
    assert adapter(torch.zeros(2, 640), torch.randn(2, 640, 8, 8)).min() >= 0, "it ends in a relu"
    small = Balanced(bottleneck=8)(640, 10).adapter
    assert sum(p.numel() for p in small.parameters()) == 2 * 640 * 8 + 8 + 2 * 8 + 640


@pytest.mark.parametrize(("adapter", "reached"), [("norm", True), ("none", False)])
def test_the_ceiling_of_an_etf_classifier_alone_can_be_reached(adapter, reached):
    """0.2524 at K = 10 and beta = 1. Features that are not negative do not get there, signed ones do."""
    torch.manual_seed(0)
    labels = torch.arange(400) % 10  # ten classes in each batch of 50
    images = torch.eye(10)[labels] + 0.05 * torch.randn(400, 10)
    network = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 10))
    method = balcal.method("etf-1")
    if adapter == "none":
        method = replace(method, head=replace(method.head, adapter=None))
    model = balcal.wrap(network, num_classes=10, method=method)
    loader = list(zip(images.split(50), labels.split(50), strict=True))
    balcal.fit(model, loader, loader, epochs=40, lr=0.01, quiet=True)
    confidence = balcal.predict(model, loader).probs.max(1).values
    assert largest_confidence(1, 10) == pytest.approx(0.2524, abs=5e-5)
    assert confidence.max() <= largest_confidence(1, 10) + 1e-6
    assert (confidence.mean() > 0.2510) == reached, float(confidence.mean())
