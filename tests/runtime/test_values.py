"""Settings: one rule for Plan(...), fit(...), retrofit(...), --set and methods' own; what cannot be is refused."""

import json
import math
import string
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from command_line import balcal_cli
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import balcal
from balcal.core import BalcalError
from balcal.recipe import ROLES, Method, Plan, Recipe
from balcal.registry import method, override, recipe, table, task
from balcal.runtime.provenance import describe
from balcal.training.fit import train_recipe

NAN, INF = math.nan, math.inf
BAD = [
    ("epochs", 0, "plan.epochs must be at least 1, not 0"),
    ("epochs", 1.5, "`plan.epochs=1.5` does not fit: input should be a valid integer"),
    ("epochs", True, "`plan.epochs=True` does not fit"),
    ("optimiser", "foo", "`plan.optimiser='foo'` does not fit: input should be 'sgd', 'adam' or 'adamw'"),
    ("schedule", "foo", "input should be 'constant', 'step', 'cosine' or 'onecycle'"),
    ("precision", "fp8", "input should be 'fp32', 'bf16' or 'auto'"),
    ("compile", 1, "`plan.compile=1` does not fit: input should be a valid boolean"),
    ("lr", 0.0, "plan.lr must be above 0, not 0.0"),
    ("lr", NAN, "plan.lr must be above 0, not nan"),
    ("lr", INF, "plan.lr must be above 0 and finite in float32, not inf"),
    ("lr", 10**300, "plan.lr must be above 0 and finite in float32, not 1000"),
    ("lr", "0.1", "`plan.lr='0.1'` does not fit: input should be a valid number"),
    ("lr", None, "`plan.lr=None` does not fit"),
    ("momentum", 2.0, r"plan.momentum must lie in \[0, 1\), not 2.0"),
    ("momentum", NAN, r"plan.momentum must lie in \[0, 1\), not nan"),
    ("weight_decay", -1.0, "plan.weight_decay must be at least 0, not -1.0"),
    ("weight_decay", INF, "plan.weight_decay must be at least 0 and finite"),
    ("milestones", (0.7, 0.3), r"plan.milestones must increase from one to the next, not \(0.7, 0.3\)"),
    ("milestones", (0.5, 0.5), "plan.milestones must increase"),
    ("milestones", (0.5, 1.0), r"plan.milestones must lie in \(0, 1\)"),
    ("milestones", (0.5, NAN), r"plan.milestones must lie in \(0, 1\)"),
    ("milestones", 0.5, "`plan.milestones=0.5` does not fit"),
    ("warmup", 5.0, r"plan.warmup must lie in \[0, 1\], not 5.0"),
    ("clip", -1.0, "plan.clip must be above 0, or none, not -1.0"),
    ("clip", 0.0, "plan.clip must be above 0"),
    ("accumulate", 1.5, "`plan.accumulate=1.5` does not fit"),
    ("accumulate", 0, "plan.accumulate must be at least 1"),
    ("nesterov", 1, "`plan.nesterov=1` does not fit: input should be a valid boolean"),
    ("decay_weights_only", "yes", "`plan.decay_weights_only='yes'` does not fit"),
    ("average", NAN, "plan.average must be 0 or above, or none, not nan"),
    ("average_or_last", "yes", "`plan.average_or_last='yes'` does not fit"),
    ("keep", 0, "plan.keep must be best, last, all or a number from 1 on"),
    ("keep", True, "`plan.keep=True` does not fit"),
    ("keep", "worst", "`plan.keep='worst'` does not fit"),
]


def wrapped():
    return balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(8, 4)), 4, "vanilla")


def batches():
    return [(torch.randn(6, 8), torch.arange(6) % 4)]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_a_plan_that_cannot_be_is_refused_whoever_makes_it(name, value, words):
    with pytest.raises(BalcalError, match=words):
        Plan(**{name: value})
    with pytest.raises(BalcalError, match=words):
        balcal.fit(wrapped(), batches(), batches(), quiet=True, **{name: value})
    if name != "epochs":  # of which `fit` has one of its own
        model = wrapped()
        model.method = replace(model.method, settings={f"plan.{name}": value})
        with pytest.raises(BalcalError, match=words):
            balcal.fit(model, batches(), batches(), quiet=True)
    if not isinstance(value, str):  # a text is read as one that was typed
        with pytest.raises(BalcalError, match=f"plan.{name}"):
            override(recipe("digits", "vanilla"), f"plan.{name}", value)


ADDRESSES = {
    ("digits", "balcal"): "digits/balcal-seed0-126b1b4e81",
    ("fashion", "balcal-auto"): "fashion/balcal-auto-seed0-50c8e30504",
    ("cifar10", "vanilla"): "cifar10/vanilla-seed0-fc5b852644",
    ("cifar100-sgd", "balcal+fl"): "cifar100-sgd/balcal+fl-seed0-7cc9324ac1",
    ("cifar10-cpu", "acls"): "cifar10-cpu/acls-seed0-7c47eb61ba",
    ("digits", "pcs"): "digits/pcs-seed0-71f71922c0",
    ("imagenet", "vtst"): "imagenet/vtst-seed0-e2c56afc3a",
}


def test_runs_keep_their_addresses():
    assert {asked: recipe(*asked).address() for asked in ADDRESSES} == ADDRESSES
    settings = ["plan.milestones=0.3,0.6", "plan.clip=2", "task.train_size=50", "head.beta=2"]
    mixed = recipe("digits", "balcal-k+mixup", 3, settings)
    assert mixed.address() == "digits/balcal-k+mixup-seed3-c6e805fd33"


@pytest.mark.parametrize(
    "setting",
    [
        *("plan.clip=-1", "plan.weight_decay=-1", "plan.lr=inf", "plan.lr=nan", "plan.momentum=2", "plan.warmup=5"),
        *("plan.milestones=0.9,0.1", "plan.milestones=0.5,2", "plan.average=nan", "plan.keep=-3"),
        *("task.side=0", "task.side=-3", "task.val_size=0", "task.val_size=-1", "task.train_size=0"),
        *("task.calibrate_size=-1", "task.split_seed=-1", "task.augment=twirl", "task.dataset=mnits"),
        *(
            "task.backbone=resnt-8",
            "plan.lr=1e+300",
            "head.delta=nan",
            "head.beta=nan",
            "head.beta=inf",
            "head.gamma=nan",
        ),
        *("tally.points=1", "tally.points=-5", "tally.points=1000000000000", "tally.guard=nan", "tally.guard=-1"),
    ],
)
def test_a_wrong_setting_leaves_no_folder(setting, tmp_path, capsys):
    code, out, err = balcal_cli("train", "digits", "balcal", "--set", setting, "--out", tmp_path, capsys=capsys)
    assert code == 1
    assert out == ""
    assert len(err.splitlines()) == 1, err
    name, _, value = setting.partition("=")
    assert (name in err and value.split(",")[0].lstrip("-") in err) or f"`{value}`" in err
    assert not list(tmp_path.iterdir())


def test_seeds_count_from_zero(tmp_path, capsys):
    code, _, err = balcal_cli("train", "digits", "vanilla", "--seed", "-1", "--out", tmp_path, capsys=capsys)
    assert code != 0
    assert "seed" in err
    assert not list(tmp_path.iterdir())
    for seed in (-1, 1.0, True, "0", None):
        with pytest.raises(BalcalError, match="seed"):
            Recipe(task("digits"), method("vanilla"), seed)
        with pytest.raises(BalcalError, match="seed"):
            balcal.fit(wrapped(), batches(), batches(), epochs=1, seed=seed)
        with pytest.raises(BalcalError, match="seed"):
            balcal.retrofit(wrapped(), batches(), seed=seed)


def test_numbers_of_numpy_are_numbers():
    """Of a seed they decide every draw: the same seed must not be another one."""
    plan = Plan(epochs=np.int64(2), lr=np.float32(0.5), milestones=[np.float64(0.25), 0.5])
    assert plan == Plan(epochs=2, lr=0.5, milestones=(0.25, 0.5))
    assert hash(plan)
    assert json.dumps(describe(plan))
    histories = []
    for seed in (3, np.int64(3)):
        torch.manual_seed(0)
        histories.append(balcal.fit(wrapped(), batches(), batches(), epochs=2, seed=seed, quiet=True))
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 0}, "plan.epochs must be at least 1"),
        ({"lr": NAN}, "plan.lr must be above 0"),
        ({"batch_size": 0}, "plan.batch_size must be at least 1"),
        ({"batch_size": 2.5}, "`plan.batch_size=2.5` does not fit"),
        ({"held_out": NAN}, r"held_out must lie in \[0, 1\], not nan"),
        ({"held_out": -0.5}, r"held_out must lie in \[0, 1\]"),
        ({"tolerance": NAN}, r"tolerance must lie in \[0, 1\], not nan"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
        ({"num_classes": 2.0}, "`num_classes=2.0` does not fit"),
    ],
)
def test_retrofit_looks_at_its_arguments_before_anything_else(settings, words):
    with pytest.raises(BalcalError, match=words):
        balcal.retrofit(nn.Linear(8, 4), iter([]), **settings)


def test_only_what_was_wrapped_can_be_fitted():
    with pytest.raises(BalcalError, match=r"balcal\.wrap has made, not a Linear: wrap it first"):
        balcal.fit(nn.Linear(8, 4), batches(), batches())


def settable():
    """(method, path, the value it has) of every setting that there is."""
    found = {}
    for name in table("methods"):
        for role in ROLES:
            record = getattr(method(name), role)
            for field in fields(record) if hasattr(record, "__dataclass_fields__") else ():
                found.setdefault(
                    (type(record), field.name), (name, f"{role}.{field.name}", getattr(record, field.name))
                )
    for record, root in ((task("digits"), "task"), (task("digits").plan, "plan")):
        for field in fields(record):
            if field.compare and field.name not in ("name", "plan"):
                found[type(record), field.name] = ("vanilla", f"{root}.{field.name}", getattr(record, field.name))
    return list(found.values())


def holder(made, path):
    root = path.partition(".")[0]
    return {"plan": made.task.plan, "task": made.task}.get(root) or getattr(made.method, root)


@pytest.mark.parametrize(("name", "path", "has"), settable())
def test_every_setting_refuses_what_is_no_value(name, path, has):
    """NaN and infinity by --set, and in Python; nonsense of every other kind in Python."""
    field = path.partition(".")[2]
    if not isinstance(has, str):
        for text in ("nan", "inf", "-inf"):
            with pytest.raises(BalcalError, match=path):
                recipe("digits", name, 0, [f"{path}={text}"])
    for value in (NAN, INF, "nonsense", object(), [object()], {}):
        if isinstance(has, str) and path in ("task.dataset", "task.backbone") and isinstance(value, str):
            continue
        with pytest.raises(BalcalError, match=path):
            replace(holder(recipe("digits", name), path), **{field: value})


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *(("fl", "loss.gamma=-1"), ("flsd", "loss.gammas=5,-3,3"), ("ls", "loss.alpha=1"), ("mmce", "loss.width=0")),
        *(("mixup", "mix.alpha=-1"), ("mit", "mix.margin=0"), ("plp", "before_epoch.gamma=0")),
        *(("pcs", "before_epoch.every=0"), ("pcs", "select.floor=-1"), ("tst", "head.latent=0")),
        *(
            ("vtst", "head.samples=0"),
            ("tst", "head.latent=1000000000"),
            ("histogram", "posthoc.bins=0"),
            ("ms", "posthoc.penalty=-1"),
        ),
        *(("dirichlet", "posthoc.penalty=-1"), ("balcal-auto", "tally.bold_points=1"), ("etf-1", "head.beta=0")),
        *(("balcal-beta", "tally.points=0"), ("ts", "posthoc.by=x"), ("cpc", "loss.bdc=-0.1")),
    ],
)
def test_roles_refuse_what_is_out_of_range(name, setting):
    with pytest.raises(BalcalError, match=setting.partition("=")[0]):
        recipe("digits", name, 0, [setting])


def test_a_method_s_own_settings_are_looked_at_too(monkeypatch):
    monkeypatch.setitem(table("methods"), "mine", Method("mine", settings={"plan.epochs": True}))
    with pytest.raises(BalcalError, match=r"`plan\.epochs=True` does not fit"):
        recipe("digits", "mine")


def test_a_calibrator_s_settings_are_looked_at_too():
    with pytest.raises(BalcalError, match=r"posthoc\.by='x'` does not fit: input should be 'nll' or 'ece'"):
        balcal.Calibrator("ts", inputs="logits", settings={"by": "x"}).fit(np.eye(2), [0, 1])


VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.lists(st.floats(-1, 2), max_size=4).map(lambda numbers: ",".join(map(str, numbers))),
    st.sampled_from(["", "none", "true", "off", "K", "val", "all", "1e400", "-0", "0x10", "1_000", "٣", "9" * 5000]),
    st.text(string.printable, max_size=8),
    st.text(max_size=4),
)


@given(st.sampled_from(settable()), VALUES)
@example(("vanilla", "plan.lr", 0.1), "inf")
@example(("balcal", "tally.guard", 0.1), "nan")
def test_whatever_is_set_the_recipe_is_sound_or_a_sentence_says_why_not(setting, value):
    name, path, _ = setting
    try:
        made = recipe("digits", name, 0, [f"{path}={value}"])
    except BalcalError:
        return
    json.dumps(describe(made), allow_nan=False)
    assert made.address() == recipe("digits", name, 0, [f"{path}={value}"]).address()


@pytest.mark.parametrize("more", [{"save_every": float("nan")}, {"save_every": -1.0}, {"keep_epochs": 0}])
def test_how_often_to_save_is_looked_at_before_a_folder_is_made(more, tmp_path):
    with pytest.raises(BalcalError, match=f"{next(iter(more))} must be at least"):
        train_recipe(recipe("digits", "vanilla"), tmp_path / "runs", "cpu", quiet=True, **more)
    assert not (tmp_path / "runs").exists()
