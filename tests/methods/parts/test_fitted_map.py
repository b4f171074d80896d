"""What every post-hoc calibrator owes: one clear sentence on a bad set, a state that travels, the laws it promises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from posthoc_helper import calibrated, held_out, nll
from torch import nn

from balcal import registry
from balcal.core import BalcalError, Outputs
from balcal.methods.parts.affine import MOST_CLASSES
from balcal.methods.parts.fitted_map import keep_top, minimise

ROLES = {name: method.posthoc for name, method in registry.table("methods").items() if "posthoc" in method.changes}
BINARY = ["platt", "beta", "quadratic"]
NAMES = [
    name for name, role in ROLES.items() if not (role.reads_branches or role.reads_features) and name not in BINARY
]
PER_CLASS = ["vs", "ms", "dirichlet", "isotonic-ovr", "histogram"]
CONTAINS_IDENTITY = ["ts", "ts-uniform", "vs", "ms", "dirichlet", "ets"]
KEEPS_ORDER = ["ts", "ts-uniform", "ets", "isotonic"]


class OnScores(nn.Module):
    """A map as a module of tensors, which is what torch.export takes."""

    def __init__(self, fitted):
        super().__init__()
        self.fitted = fitted

    def forward(self, scores):
        return self.fitted(Outputs.of(scores))


def spec(name):
    return registry.method(name).posthoc


def test_all_of_the_field_is_there():
    assert {"ts", "vs", "ms", "ets", "dirichlet", "isotonic", "isotonic-ovr", "histogram"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bad_sets_are_refused_in_one_sentence(name):
    z, y = held_out(0)
    nan, inf, void = z.clone(), z.clone(), z.clone()
    nan[7, 1], inf[8, 0], void[9] = torch.nan, torch.inf, -torch.inf
    for scores, labels, sentence in [
        (z[:0], y[:0], rf"cannot fit `{name}` on an empty split: hold out some validation data"),
        (z[:50], y[:49], rf"cannot fit `{name}` on scores of shape \(50, 4\) and labels of shape \(49,\): it takes"),
        (z[0], y, r"it takes a row of K scores \(N, K\) for each of N labels"),
        (nan, y, rf"cannot fit `{name}`: the scores of sample 7 are NaN or infinite"),
        (inf, y, rf"cannot fit `{name}`: the scores of sample 8 are NaN or infinite"),
        (void, y, rf"cannot fit `{name}`: the scores of sample 9 are NaN or infinite"),
        (z, y + 1, r"label 4 in the calibration set is out of range"),
        (z[:7], y[:7], rf"`{name}` needs at least \d+ calibration samples for 4 classes, not 7: .*hold out more data"),
        (z[:50], y[:50] * 0 + 3, r"the 50 calibration labels are all class 3: a calibrator learns from errors"),
    ]:
        with pytest.raises(BalcalError, match=sentence) as told:
            spec(name).fit(Outputs.of(scores), labels)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_that_does_not_occur(name):
    z, y = held_out(1)
    y[y == 2] = 0
    if name in PER_CLASS:
        with pytest.raises(
            BalcalError, match=rf"class 2 does not occur in the calibration set, so `{name}` cannot fit"
        ):
            spec(name).fit(Outputs.of(z), y)
    else:
        assert calibrated(spec(name), z, y).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_state_travels_to_the_bit(name):
    z, y = held_out(2)
    fitted, fresh = spec(name).fit(Outputs.of(z), y), spec(name).identity(4)
    torch.testing.assert_close(fresh(Outputs.of(z)), z.log_softmax(1), msg="before the fit it changes nothing")
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh(Outputs.of(z)), fitted(Outputs.of(z)))
    assert not list(fitted.parameters())
    if name in (*PER_CLASS, "svs", "sms", "auto"):
        with pytest.raises(RuntimeError, match="size mismatch"):
            spec(name).identity(5).load_state_dict(fitted.state_dict())
    exported = torch.export.export(OnScores(fitted), (z[:6],), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    assert torch.equal(exported.module()(z), fitted(Outputs.of(z))), "nothing branches on the data"


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_and_zeros(name):
    z, y = held_out(3, hot=3.0)
    told = calibrated(spec(name), z.float(), y)
    assert told.dtype == torch.float32
    torch.testing.assert_close(
        told, calibrated(spec(name), z.float(), y, z.float().double()).float(), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(told.exp().sum(1), torch.ones(len(y)))
    zeros = z.log_softmax(1).masked_fill(z.softmax(1) < 1e-4, -torch.inf)
    told = calibrated(spec(name), zeros, y)
    assert told.isfinite().all(), "a probability of 0 goes in, none comes out"
    assert told.gather(1, y[:, None]).min() > -200


@pytest.mark.filterwarnings("ignore:all .* calibration samples are right")
@pytest.mark.parametrize("name", NAMES)
def test_separable_data_has_a_finite_answer(name):
    z, _ = held_out(4)
    fitted = spec(name).fit(Outputs.of(z), z.argmax(1))
    assert all(value.isfinite().all() and value.abs().max() <= 1e5 for value in fitted.state_dict().values())
    assert fitted(Outputs.of(z)).isfinite().all()
    assert nll(fitted(Outputs.of(z)), z.argmax(1)) < nll(z.log_softmax(1), z.argmax(1))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), hot=st.floats(0.2, 8))
def test_laws(name, seed, hot):
    z, y = held_out(seed, hot=hot)
    told = calibrated(spec(name), z, y)
    rng = torch.Generator().manual_seed(seed)
    torch.testing.assert_close(told.exp().sum(1), torch.ones(len(y)).double())
    if name in CONTAINS_IDENTITY:
        assert nll(told, y) <= nll(z.log_softmax(1), y) + 1e-3, "but for what the imagined samples do"
    if name in KEEPS_ORDER:
        assert torch.equal(told.argmax(1), z.argmax(1))
    if name in ("ets", "isotonic"):
        single = z.float()
        assert torch.equal(calibrated(spec(name), z, y, single).argmax(1), single.argmax(1)), (
            "also where rounding makes ties"
        )
    order = torch.randperm(len(y), generator=rng)
    torch.testing.assert_close(calibrated(spec(name), z[order], y[order], z), told, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_classes_have_no_order(name):
    z, y = held_out(5)
    role = spec(name)
    order = torch.tensor([2, 0, 3, 1])
    renamed = calibrated(role, z[:, order], order.argsort()[y])
    torch.testing.assert_close(renamed, calibrated(role, z, y)[:, order], rtol=1e-5, atol=1e-5)


def test_top_is_kept_where_rounding_made_a_tie():
    scores = torch.tensor([[0.1, 0.3, 0.2], [0.1, 0.1, 0.0]])
    tied = torch.full((2, 3), 1 / 3).log()
    told = keep_top(tied, scores)
    assert told.argmax(1).tolist() == [1, 0]
    torch.testing.assert_close(told, tied)


def test_minimiser_says_when_it_did_not_arrive():
    wide = torch.logspace(0, 6, 30, dtype=torch.float64)

    def valley(u):
        return (wide * (u - 1).square()).sum() / 2, wide * (u - 1)

    torch.testing.assert_close(minimise(valley, torch.zeros(30), "it"), torch.ones(30).double(), rtol=1e-5, atol=1e-5)
    with pytest.raises(BalcalError, match=r"the fit of `it` did not settle \(its slope is still .*\): use `ts`, or"):
        minimise(valley, torch.zeros(30), "it", steps=1)
    kept = torch.ones(30).double()
    assert torch.equal(minimise(valley, kept, "it"), kept), "the start stays if nothing is lower"


def test_a_device_without_float64_gets_float32():
    def apples(tensor):
        if tensor.dtype == torch.float64:
            raise TypeError("no float64 here")
        return tensor

    z, y = held_out(6)
    fitted = spec("vs").fit(Outputs.of(z), y)
    assert fitted._apply(apples).weight.dtype == torch.float32
    assert fitted(Outputs.of(z)).isfinite().all()


def test_settings_are_checked():
    for setting in ("posthoc.penalty=-1", "posthoc.penalty=nan"):
        with pytest.raises(BalcalError, match=r"posthoc.penalty must be at least 0, or None to have it chosen"):
            registry.recipe("digits", "ms", 0, [setting])
    with pytest.raises(BalcalError, match="bins must be at least 1"):
        registry.recipe("digits", "histogram", 0, ["posthoc.bins=0"])
    assert registry.recipe("digits", "dirichlet", 0, ["posthoc.penalty=0.1"]).method.posthoc.penalty == 0.1
    assert registry.recipe("digits", "ets", 0, ["posthoc.loss=mse"]).method.posthoc.loss == "mse"
    k = MOST_CLASSES + 1
    with pytest.raises(BalcalError, match=f"`ms` would have to fit {k * (k + 1)} numbers for {k} classes"):
        spec("ms").fit(Outputs.of(torch.randn(3 * k, k)), torch.arange(3 * k) % k)
