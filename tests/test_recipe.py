"""Composition, addresses, overrides."""

import hashlib
import json
from pathlib import Path

import pytest

from balcal.core import BalcalError
from balcal.methods.balcal import Balanced, SolveGamma
from balcal.methods.temperature import TemperatureScaling
from balcal.methods.vanilla import AllTrainable
from balcal.recipe import Method
from balcal.registry import method, recipe, table
from balcal.runtime.provenance import fingerprint


def test_joining_is_the_union_of_what_both_change():
    joined = method("balcal+ts")
    assert joined.name == "balcal+ts"
    assert (joined.head, joined.tally, joined.posthoc) == (Balanced(), SolveGamma(), TemperatureScaling())
    assert joined.loss == method("vanilla").loss
    assert joined == method("balcal") + method("ts")
    assert method("ts+balcal").head == joined.head


def test_a_clash_names_the_field_and_both_values():
    with pytest.raises(BalcalError, match=r"both set `head`: Balanced\(beta=1.0.*Balanced\(beta='K'"):
        method("balcal+balcal-k")


def test_unknown_names_teach():
    with pytest.raises(
        BalcalError,
        match="unknown method `balcl`; did you mean `balcal`\\? known: acls, auto, averaged, balcal, balcal-auto",
    ):
        method("balcl")
    with pytest.raises(BalcalError, match="unknown task `fashon`; did you mean `fashion`"):
        recipe("fashon", "balcal")


def test_every_name_of_the_paper_s_ablations_is_there():
    names = "balcal balcal-k balcal-logits balcal-val etf-1 etf-k balcal-beta balcal-noadapter balcal-fixed"
    for name in [*names.split(), "balcal-fixedloss", "balcal-half", "balcal-mean", "balcal-auto", "vanilla", "ts"]:
        assert method(name).name == name
        assert method(name) == method(name)
    assert method("balcal-fixed").tally is None
    assert method("balcal-fixedloss").head.loss_follows is False
    for name in ("balcal-val", "balcal-auto", "balcal-mean", "balcal-half"):
        assert method(name).tally.on == "val"
        assert method(name).head.fusion == "logits"
    plans = [recipe("digits", name).task.plan for name in ("balcal-auto", "balcal-mean")]
    assert [(plan.average, plan.average_or_last) for plan in plans] == [(3, True), (3, False)]
    assert recipe("digits", "balcal-val").task.plan.average is None
    assert method("balcal-k").head.beta == "K"


def test_what_is_not_training_is_not_in_the_address():
    with_ts, plain = recipe("digits", "balcal+ts"), recipe("digits", "balcal")
    assert with_ts.address() == plain.address()
    assert recipe("digits", "ts").address() == recipe("digits", "vanilla").address() != plain.address()
    assert recipe("digits", "ts").for_training().method.name == "vanilla"


def test_whatever_decides_the_result_is_in_the_address():
    base = recipe("digits", "balcal")
    others = [
        recipe("digits", "balcal", 1),
        recipe("digits", "balcal-k"),
        recipe("digits", "balcal", 0, ["plan.epochs=3"]),
        recipe("digits", "balcal", 0, ["head.delta=0.91"]),
        recipe("digits", "balcal", 0, ["tally.on=val"]),
        recipe("digits", "balcal", 0, ["task.val_size=100"]),
        recipe("fashion", "balcal"),
    ]
    addresses = {r.address() for r in [base, *others]}
    assert len(addresses) == 8
    assert recipe("digits", "balcal", 0, ["plan.epochs=20"]).address() == base.address(), "the default, spelled out"


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("plan.lr=1e-2", lambda r: r.task.plan.lr == 0.01),
        ("plan.clip=2", lambda r: r.task.plan.clip == 2.0),
        ("plan.clip=none", lambda r: r.task.plan.clip is None),
        ("plan.milestones=0.3,0.6", lambda r: r.task.plan.milestones == (0.3, 0.6)),
        ("plan.compile=true", lambda r: r.task.plan.compile is True),
        ("head.beta=K", lambda r: r.method.head.beta == "K"),
        ("head.beta=2.5", lambda r: r.method.head.beta == 2.5),
        ("head.adapter=none", lambda r: r.method.head.adapter is None),
        ("tally.on=val", lambda r: r.method.tally.on == "val"),
        ("task.augment=crop+flip", lambda r: r.task.augment == "crop+flip"),
    ],
)
def test_settings_are_typed(setting, read):
    assert read(recipe("digits", "balcal", 0, [setting]))


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("plan.epoch=3", "unknown setting of `plan` `epoch`; did you mean `epochs`"),
        ("pln.epochs=3", "unknown setting `pln`; did you mean `plan`"),
        ("plan.epochs=many", "`plan.epochs=many` does not fit: input should be a valid integer"),
        ("plan.epochs=0", "plan.epochs must be at least 1, not 0"),
        ("plan.epochs", "is not a setting: write it as name.field=value"),
        ("head.fusion=both", "`head.fusion=both` does not fit: input should be 'probs' or 'logits'"),
        ("head.delta=2", r"head.delta must lie in \(0, 1\], not 2.0"),
        ("head.beta=-1", "head.beta must be above 0"),
        ("loss.gamma=3", r"`loss.gamma` cannot be set: CrossEntropy\(\) has no settings"),
    ],
)
def test_bad_settings_teach(setting, complaint):
    with pytest.raises(BalcalError, match=complaint):
        recipe("digits", "balcal", 0, [setting])


def test_addresses_do_not_move_between_versions():
    """Else nobody finds the runs that are on disk. A digest is over the recorded methods, one line for each."""
    recorded = json.loads((Path(__file__).parent / "golden" / "addresses.json").read_text())
    for task, digest in recorded["tasks"].items():
        lines = (f"{name} {recipe(task, name, 3).address()}\n" for name in recorded["methods"])
        assert hashlib.sha256("".join(lines).encode()).hexdigest() == digest, f"an address of {task} has moved"


def test_a_role_that_is_not_there_cannot_be_set():
    with pytest.raises(BalcalError, match="method `vanilla` has no tally"):
        recipe("digits", "vanilla", 0, ["tally.on=val"])


def test_a_method_of_one_s_own_joins_like_any_other():
    mine = Method("mine", before_epoch=AllTrainable())
    assert (mine + method("ts")).changes == {"before_epoch": "mine", "posthoc": "ts"}


def test_fingerprints_differ_where_values_do():
    marks = [fingerprint(table("methods")[name]) for name in table("methods")]
    assert len(set(marks)) == len(marks)


def test_the_last_name_of_a_setting_is_enough():
    short = recipe("digits", "balcal", overrides=["epochs=3", "delta=0.9", "val_size=200"])
    full = recipe("digits", "balcal", overrides=["plan.epochs=3", "head.delta=0.9", "task.val_size=200"])
    assert short == full
    assert short.address() == full.address()
    assert short.overrides == full.overrides
    child = recipe("digits", "tst", overrides=["epochs=3", "parent.epochs=9"])
    assert (child.task.plan.epochs, child.parent.task.plan.epochs) == (3, 9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch=3", "unknown setting `epoch` of `balcal.fl`; did you mean `plan.epochs`?"),
        ("gamma=2", "`gamma` may be loss.gamma or head.gamma: write one of them"),
    ],
)
def test_a_last_name_that_is_not_enough(text, words):
    with pytest.raises(BalcalError, match=words):
        recipe("digits", "balcal+fl", overrides=[text])
