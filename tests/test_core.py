"""Outputs fuse as they say, and everything downstream may treat the result as logits."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from balcal.core import BeforeEpoch, HeadSpec, Outputs, PostHoc, Tally
from balcal.registry import method, table


def outputs(seed, fusion, gamma):
    z = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(seed)) * 5
    weights = torch.tensor([gamma, 1 - gamma])
    return Outputs(z, weights, weights, fusion)


@given(st.integers(0, 999), st.floats(0, 1, width=32))
def test_probability_fusion_is_the_mixture(seed, gamma):
    out = outputs(seed, "probs", gamma)
    p = out.logits.softmax(-1)
    torch.testing.assert_close(out.log_probs().exp(), gamma * p[0] + (1 - gamma) * p[1])


@given(st.integers(0, 999), st.floats(0, 1, width=32))
def test_logit_fusion_is_the_softmax_of_the_mixture(seed, gamma):
    out = outputs(seed, "logits", gamma)
    torch.testing.assert_close(out.log_probs().exp(), (gamma * out.logits[0] + (1 - gamma) * out.logits[1]).softmax(-1))


@given(st.integers(0, 999), st.sampled_from(["probs", "logits"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_log_probs_are_normalised_and_differentiable_at_the_ends_too(seed, fusion, gamma):
    out = outputs(seed, fusion, gamma)
    out.logits.requires_grad_()
    log_p = out.log_probs()
    torch.testing.assert_close(log_p.logsumexp(1), torch.zeros(9), atol=1e-5, rtol=0)
    log_p[:, 0].sum().backward()
    assert out.logits.grad.isfinite().all()


def test_predictions_without_a_network_stay_as_they_are():
    for dtype in (torch.float16, torch.float64):
        scores = torch.tensor([[900.0, -torch.inf], [0.1, 0.2]], dtype=dtype)
        assert torch.equal(Outputs.of(scores).log_probs(), scores)


def test_roles_inherit_what_they_may_say_of_themselves():
    bases = {"head": HeadSpec, "before_epoch": BeforeEpoch, "tally": Tally, "posthoc": PostHoc}
    for name in table("methods"):
        for role, base in bases.items():
            value = getattr(method(name), role)
            assert value is None or base in type(value).__mro__, f"{name}: {role}"


def test_one_branch_is_nothing_special():
    z = torch.randn(1, 5, 3)
    one = torch.ones(1)
    for fusion in ("probs", "logits"):
        torch.testing.assert_close(Outputs(z, one, one, fusion).log_probs(), z[0].log_softmax(-1))
