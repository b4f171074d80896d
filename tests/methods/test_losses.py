"""Losses: against the shared vectors, against the formulas by hand, and where batches are odd."""

import json
import resource
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses_by_hand import BY_HAND, acls, mmce_w
from shared_files import VECTORS, needs_vectors

from balcal.core import BalcalError, Outputs
from balcal.methods.acls import Acls
from balcal.methods.cpc import Cpc, PairSum
from balcal.methods.dualfocal import DualFocal
from balcal.methods.ecp import ConfidencePenalty
from balcal.methods.esd import Esd
from balcal.methods.fl import Focal
from balcal.methods.flsd import SampleFocal
from balcal.methods.ls import LabelSmoothing
from balcal.methods.mbls import Mbls
from balcal.methods.mdca import Mdca
from balcal.methods.mmce import Mmce, MmceWeighted
from balcal.methods.vanilla import CrossEntropy
from balcal.model import batch_loss
from balcal.registry import method

BLOCKS = json.loads(VECTORS.read_text()) if VECTORS.exists() else {"losses": [], "two_head": []}

CASES = {  # by the id of the vector, without its batch
    "ce": CrossEntropy(),
    "ls005": LabelSmoothing(0.05),
    "ls003": LabelSmoothing(0.03),
    "ls_others": lambda z, y: LabelSmoothing(0.05 * z.shape[1] / (z.shape[1] - 1))(z, y),
    "fl3": Focal(3.0),
    "fl3_sum": lambda z, y: len(y) * Focal(3.0)(z, y),
    "flsd53": SampleFocal(),
    "flsd52": SampleFocal((5.0, 3.0, 2.0)),
    "dfl5": DualFocal(5.0),
    "mmce_term": Mmce().term,
    "ce_mmce1": Mmce(1.0),
    "mmcew_term": MmceWeighted().term,
    "mmcew_term_single_norm": MmceWeighted(normalisation="single").term,
    "ce_mmcew15": MmceWeighted(1.5),
    "ce_mmcew05": MmceWeighted(0.5),
    "mbls_m6": Mbls(6.0),
    "mbls_m10": Mbls(10.0),
    "mbls_sum_m10": lambda z, y: Mbls(10.0, alpha=0.1 * z.shape[1])(z, y),
    "acls_m6": Acls(margin=6.0),
    "acls_m10": Acls(margin=10.0),
    "acls_minvariant_m10": Acls(positive="range"),
    "cpc": Cpc(),
    "cpc_nodiag": Cpc(diagonal=False),
    "cpc_bdc": Cpc().discrimination,
    "cpc_bec": Cpc().exclusion,
    "ecp01": ConfidencePenalty(0.1),
    "mdca_term": Mdca().term,
    "ce_mdca1": Mdca(1.0),
    "ce_esd4": Esd(4.0),
    "esd_term": Esd().estimate,
    "mmcew_all_correct": MmceWeighted().term,
    "mmcew_all_wrong": MmceWeighted().term,
    "mmce_all_correct": Mmce().term,
    "dfl5_ties": DualFocal(5.0),
    "acls_ties": Acls(margin=-1.0),
    "mmcew_negative_radicand": MmceWeighted().term,
}
CRITERIA = {
    "CE": CrossEntropy(),
    "LS(0.05)": LabelSmoothing(0.05),
    "FL(3)": Focal(3.0),
    "FLSD(5/3)": SampleFocal(),
    "CPC(0.1,1.0)": Cpc(0.1, 1.0),
    "MMCE-weighted(1.5)": MmceWeighted(1.5),
    "MMCE(1.0)": Mmce(1.0),
    "ACLS(m=6)": Acls(margin=6.0),
    "MbLS(m=6)": Mbls(margin=6.0),
    "DualFocal(5)": DualFocal(5.0),
}
SHIFT_INVARIANT = [name for name in BY_HAND if name != "acls"]


def batch(name, dtype=torch.float64):
    logits, labels = (torch.tensor(BLOCKS["batches"][name][part]) for part in ("logits", "targets"))
    return logits.to(dtype), labels


def drawn(seed, n=7, k=5, scale=4.0):
    rng = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return z, torch.randint(k, (n,), generator=rng)


def value_and_grad(loss, z, y):
    z = z.detach().requires_grad_()
    value = loss(z, y)
    return value.detach(), torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)[0]


@needs_vectors
@pytest.mark.parametrize("entry", BLOCKS["losses"], ids=lambda e: e["id"])
def test_vector(entry):
    case = entry["id"] if entry["id"] in CASES else entry["id"][: -len("_a")]
    value, grad = value_and_grad(CASES[case], *batch(entry["batch"]))
    assert grad.isfinite().all()
    if isinstance(entry["expected"], str):
        assert 0 <= float(value) < 1e-4, entry["expected"]
        return
    assert float(value) == pytest.approx(entry["expected"], abs=1e-6)
    if "expected_grad" in entry:
        torch.testing.assert_close(grad, torch.tensor(entry["expected_grad"]).double(), atol=1e-5, rtol=0)


@needs_vectors
@pytest.mark.parametrize("entry", BLOCKS["two_head"], ids=lambda e: e["id"])
def test_two_head_vector(entry):
    (linear, labels), (etf, _) = batch(entry["linear_batch"]), batch(entry["etf_batch"])
    loss = CRITERIA[entry["criterion"]]
    assert float(loss(linear, labels)) == pytest.approx(entry["linear_loss"], abs=1e-6)
    assert float(loss(etf, labels)) == pytest.approx(entry["etf_loss"], abs=1e-6)
    share = torch.tensor([entry["gamma"], 1 - entry["gamma"]], dtype=torch.float64)
    out = Outputs(torch.stack([linear, etf]), share, share)
    both = batch_loss(lambda x, branches: out, replace(method("balcal"), loss=loss), None, labels, None, None)
    assert float(both) == pytest.approx(entry["expected"], abs=1e-6)


@needs_vectors
def test_every_vector_has_a_case():
    ids = {entry["id"] for entry in BLOCKS["losses"]}
    assert len(ids) == 66
    assert {entry["criterion"] for entry in BLOCKS["two_head"]} == set(CRITERIA)


@pytest.mark.parametrize("name", BY_HAND)
@given(seed=st.integers(0, 999), n=st.integers(1, 9), k=st.integers(2, 6), scale=st.sampled_from([0.1, 3.0, 12.0]))
def test_by_hand(name, seed, n, k, scale):
    z, y = drawn(seed, n, k, scale)
    wanted = BY_HAND[name](z.tolist(), y.tolist())
    assert float(method(name).loss(z, y)) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 999))
def test_options_by_hand(seed):
    z, y = drawn(seed, scale=12.0)
    assert float(Acls(positive="range")(z, y)) == pytest.approx(acls(z.tolist(), y.tolist(), absolute=False))
    single = MmceWeighted(normalisation="single")(z, y)
    assert float(single) == pytest.approx(mmce_w(z.tolist(), y.tolist(), single=True))


@pytest.mark.parametrize("name", [name for name in BY_HAND if name != "acls"])
@given(seed=st.integers(0, 99))
def test_gradient_is_the_slope_of_the_value(name, seed):
    """By central differences. ACLS is left out on purpose: it holds a maximum constant that its value depends on."""
    z, y = drawn(seed, n=4, k=4, scale=6.0)
    loss = method(name).loss
    _, grad = value_and_grad(loss, z, y)
    step, rng = 1e-6, torch.Generator().manual_seed(seed)
    direction = torch.randn(z.shape, generator=rng, dtype=torch.float64)
    slope = (loss(z + step * direction, y) - loss(z - step * direction, y)) / (2 * step)
    assert float((grad * direction).sum()) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_coarser_inputs_are_close_and_computed_in_float32(name, dtype):
    z, y = drawn(3, n=16, k=10)
    coarse = z.to(dtype)
    value, grad = value_and_grad(method(name).loss, coarse, y)
    exact, slope = value_and_grad(method(name).loss, coarse.double(), y)
    assert value.dtype == torch.float32
    assert exact.dtype == torch.float64
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad.double(), slope, rtol=1e-2, atol=1e-3)


ODD = {
    "all correct": lambda: (drawn(1)[0], drawn(1)[0].argmax(1)),
    "all wrong": lambda: (drawn(1)[0], drawn(1)[0].argmin(1)),
    "two, both right": lambda: (drawn(1, n=2)[0], drawn(1, n=2)[0].argmax(1)),
    "two, both wrong": lambda: (drawn(1, n=2)[0], drawn(1, n=2)[0].argmin(1)),
    "one right": lambda: (drawn(1, n=1)[0], drawn(1, n=1)[0].argmax(1)),
    "one wrong": lambda: (drawn(1, n=1)[0], drawn(1, n=1)[0].argmin(1)),
    "two classes": lambda: drawn(2, k=2),
    "equal confidences": lambda: (torch.tensor([[1.1, 0.0]] * 8), torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])),
    "equal logits": lambda: (torch.zeros(6, 4), torch.arange(6) % 4),
    "saturated": lambda: (torch.eye(4)[[0, 1, 2, 3, 0, 1]] * 500, torch.tensor([0, 1, 2, 3, 1, 2])),
    "far apart": lambda: (torch.arange(12.0).reshape(3, 4) * 100, torch.tensor([3, 0, 1])),
}


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_odd_batches_are_finite(name, odd, dtype):
    z, y = ODD[odd]()
    value, grad = value_and_grad(method(name).loss, z.to(dtype), y)
    assert value.isfinite()
    assert grad.isfinite().all()


@pytest.mark.parametrize("loss", [Focal(0.5), DualFocal(0.5), SampleFocal((0.5, 0.5, 0.5)), Focal(0.0)])
def test_a_focal_exponent_below_one_survives_saturation(loss):
    z, y = ODD["saturated"]()
    value, grad = value_and_grad(loss, z, y)
    assert value.isfinite()
    assert grad.isfinite().all()


def test_limits_are_cross_entropy():
    z, y = drawn(5)
    for loss in (LabelSmoothing(0.0), Focal(0.0), DualFocal(0.0), Acls(alpha=0.0), Cpc(0.0, 0.0), Mdca(0.0), Esd(0.0)):
        torch.testing.assert_close(loss(z, y), CrossEntropy()(z, y))
    for loss in (Acls(), Mbls()):
        within = z.clamp(-loss.idle_within, loss.idle_within)
        assert torch.equal(loss(within, y), CrossEntropy()(within, y))


@pytest.mark.parametrize("name", BY_HAND)
@given(seed=st.integers(0, 999))
def test_the_order_of_samples_does_not_matter(name, seed):
    z, y = drawn(seed, scale=9.0)
    pi = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    (value, grad), (again, moved) = (value_and_grad(method(name).loss, *pair) for pair in ((z, y), (z[pi], y[pi])))
    torch.testing.assert_close(value, again)
    torch.testing.assert_close(grad[pi], moved)


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@given(seed=st.integers(0, 999), constant=st.floats(-50, 50))
def test_a_constant_on_all_logits_changes_nothing(name, seed, constant):
    z, y = drawn(seed)
    loss = method(name).loss
    torch.testing.assert_close(loss(z, y), loss(z + constant, y), rtol=1e-7, atol=1e-9)


def test_acls_is_the_one_that_minds_a_constant():
    z, y = drawn(0, scale=12.0)
    assert not torch.isclose(Acls()(z, y), Acls()(z + 3, y))
    torch.testing.assert_close(Acls(positive="range")(z, y), Acls(positive="range")(z + 3, y))


def test_pairs_of_many_classes_need_neither_seconds_nor_gigabytes():
    """All pairs at once would be 128 x 999 x 999 numbers, several times over."""
    z, y = drawn(0, n=128, k=1000)
    unit = 1024 if sys.platform == "darwin" else 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value, grad = value_and_grad(Cpc(), z.float(), y)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000 * unit, "100 MB"
    few, _ = value_and_grad(Cpc(), z[:1], y[:1])
    assert float(few) == pytest.approx(BY_HAND["cpc"](z[:1].tolist(), y[:1].tolist()), rel=1e-9)
    assert value.isfinite()
    assert grad.isfinite().all()


def test_second_derivatives_of_pairs_are_refused_rather_than_wrong():
    z = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PairSum.apply, z)
    with pytest.raises(BalcalError, match="no second derivative"):
        torch.autograd.grad(PairSum.apply(z).sum(), z, create_graph=True)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LabelSmoothing(1.0), r"loss.alpha must lie in \[0, 1\), not 1.0"),
        (lambda: Focal(-1.0), "loss.gamma must be at least 0"),
        (lambda: DualFocal(float("nan")), "loss.gamma must be at least 0, not nan"),
        (lambda: SampleFocal((5.0, -3.0, 3.0)), "loss.gammas must be at least 0"),
        (lambda: Mmce(width=0.0), "loss.width must be above 0"),
        (lambda: MmceWeighted(-1.0), "loss.weight must be at least 0"),
        (lambda: Acls(lambda2=-1.0), "loss.lambda2 must be at least 0"),
        (lambda: Mbls(alpha=-1.0), "loss.alpha must be at least 0"),
        (lambda: Cpc(bec=-1.0), "loss.bec must be at least 0"),
        (lambda: ConfidencePenalty(-1.0), "loss.alpha must be at least 0"),
        (lambda: Mdca(-1.0), "loss.beta must be at least 0"),
        (lambda: Esd(-1.0), "loss.weight must be at least 0"),
    ],
)
def test_bad_settings_teach(make, complaint):
    with pytest.raises(BalcalError, match=complaint):
        make()
