"""Every method and every combination of the paper: by composition alone, and what it says of itself."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from command_line import balcal_cli
from torch import nn

import balcal
from balcal.methods.acls import Acls
from balcal.methods.balcal import Balanced
from balcal.methods.mbls import Mbls
from balcal.recipe import ROLES, Method
from balcal.registry import home, recipe, table

LOSSES = ["ls", "fl", "flsd", "dualfocal", "mmce", "mmce-w", "acls", "cpc", "mbls", "ecp", "mdca", "esd"]
NAMES = ["vanilla", *LOSSES, "mixup", "mit", "plp", "tst", "vtst", "pcs", "ts", "balcal"]
FITTED = [
    "vanilla",
    "mmce-w",
    "mixup",
    "plp",
    "tst",
    "vtst",
    "balcal+ls+ts",
    "balcal-k+mixup",
    "balcal-auto+mit+fl+plp+ts",
]
"""one of each kind; all of them are trained in test_conformance.py"""


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.filterwarnings("ignore:all .* calibration samples are right")
@pytest.mark.parametrize("name", FITTED)
def test_fits_a_network_of_one_s_own(name):
    model = balcal.wrap(net(), 4, name)
    x = torch.randn(120, 3, 8, 8)
    y = torch.arange(120) % 4
    x[torch.arange(120), 0, y, y] += 6
    loader = [(x[i : i + 40], y[i : i + 40]) for i in (0, 40, 80)]
    records = balcal.fit(model, loader, loader, epochs=5, lr=1e-2, quiet=True)
    assert records[-1]["val_nll"] < records[0]["val_nll"]
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_every_name_of_the_contract_is_there():
    assert set(NAMES) <= set(table("methods"))


@pytest.mark.parametrize("name", sorted(table("methods")))
def test_says_where_it_comes_from(name):
    method = table("methods")[name]
    assert method.about
    assert method.cost
    assert bool(method.paper) == bool(method.venue) == (name != "vanilla")
    files = [home("methods", name)]
    files += [sys.modules[type(getattr(method, role)).__module__] for role in method.changes if role in ROLES]
    opening = " ".join(" ".join(file.__doc__ for file in files).split())
    assert method.paper in opening, "the file opens with its authors"
    assert method.venue.removesuffix(" w.") in opening


def test_joined_methods_join_what_they_say():
    joined = balcal.method("balcal+mmce-w+ts")
    assert joined.paper == "Ni, Zhao, Gao, Guo, Zha; Kumar, Sarawagi, Jain; Guo, Pleiss, Sun, Weinberger"
    assert joined.venue == "CVPR 2025; ICML 2018; ICML 2017"
    assert joined.cost == "a second, small head; N^2 per batch; one fit after training"
    assert balcal.method("ls+plp").cost == "none"
    assert Method("a", loss=len, paper="x").cost == "none"


def test_what_a_method_says_of_itself_is_not_in_its_address():
    plain = recipe("digits", "balcal")
    other = replace(plain, method=replace(plain.method, paper="Anon", venue="Nowhere", cost="much"))
    assert other.address() == plain.address()
    assert other.method == plain.method


@pytest.mark.parametrize(
    ("name", "branches"),
    [
        ("balcal+acls", ["2 of 2"]),
        ("balcal+mbls", ["2 of 2"]),
        ("etf-1+mbls", ["1 of 1"]),
        ("balcal-k+acls", []),
        ("balcal-beta+acls", []),
        ("acls", []),
        ("balcal+ls", []),
        ("vanilla", []),
    ],
)
def test_combinations_without_effect_are_pointed_out(name, branches):
    remarks = balcal.method(name).remarks()
    assert len(remarks) == len(branches)
    for remark, branch in zip(remarks, branches, strict=True):
        assert f"has no effect on branch {branch}: logits stay within ±1 there, and up to ±5" in remark


def test_remarks_follow_the_settings():
    assert not Method("tight", loss=Mbls(margin=1.0), head=Balanced()).remarks()
    assert Method("tight", loss=Mbls(margin=2.0), head=Balanced()).remarks()
    assert not Method("bold", loss=Acls(), head=Balanced(beta=6.0)).remarks()


def test_a_remark_is_true():
    """On a trained ETF branch the loss is cross-entropy to the bit, however far the learnable one has gone."""
    model = balcal.wrap(net(), 4, "balcal+acls")
    with torch.no_grad():
        model.head.classifier.weight.mul_(500)
    standard, etf = model(torch.randn(8, 3, 8, 8), branches=True).logits
    y = torch.arange(8) % 4
    assert torch.equal(model.method.loss(etf, y), nn.functional.cross_entropy(etf, y))
    assert not torch.equal(model.method.loss(standard, y), nn.functional.cross_entropy(standard, y))


def test_show_points_out_what_has_no_effect(capsys):
    _, out, _ = balcal_cli("show", "balcal+acls", capsys=capsys)
    assert "`acls` has no effect on branch 2 of 2" in out
    _, out, _ = balcal_cli("show", "balcal+fl", capsys=capsys)
    assert "no effect" not in out
    assert "L = mean_i( -(1 - p_y)^gamma log p_y )" in out
    assert "Paper and released code differ" in out
    _, out, _ = balcal_cli("show", "balcal+acls", "--json", capsys=capsys)
    told = json.loads(out)
    assert len(told["remarks"]) == 1
    assert told["loss"]["margin"] == 10.0


def test_the_list_is_a_table_of_120_columns(capsys):
    _, out, _ = balcal_cli("list", "methods", "--all", capsys=capsys)
    lines = out.splitlines()
    assert lines[0].split() == ["name", "paper", "venue", "what", "it", "changes", "cost"]
    assert max(map(len, lines)) <= 120
    assert {line.split()[0] for line in lines[1:] if line[:1].strip()} == set(table("methods"))
    assert "…" not in out, "nothing is cut off"
    _, out, _ = balcal_cli("list", "methods", "--json", capsys=capsys)
    card = json.loads(out)["ls"]
    assert card["paper"] == "Müller, Kornblith, Hinton"
    assert card["venue"] == "NeurIPS 2019"
    assert card["changes"] == ["loss"]
    assert card["cost"] == "none"


def test_what_did_not_win_is_listed_only_on_request(capsys):
    trials = {name for name in table("methods") if home("methods", name).__name__ == "balcal.methods.balcal_trials"}
    assert {"balcal-half", "balcal-mean"} <= trials
    for options in ([], ["--json"]):
        _, usual, _ = balcal_cli("list", "methods", *options, capsys=capsys)
        _, every, _ = balcal_cli("list", "methods", "--all", *options, capsys=capsys)
        assert all(name in every and name not in usual for name in trials)
        assert "balcal-auto" in usual
    _, out, _ = balcal_cli("show", "balcal-half", capsys=capsys)
    assert "docs/research/auto-final.md" in out, "where the evidence is"
    assert "e = beta unit(A(z)) M" in out, "and the formula"


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("balcal+mmce-w", "loss.normalisation=single", "single"),
        ("flsd", "loss.gammas=5,3,2", (5.0, 3.0, 2.0)),
        ("acls", "loss.margin=6", 6.0),
        ("cpc", "loss.diagonal=false", False),
        ("balcal-k+mixup", "mix.counted=dominant", "dominant"),
        ("balcal+plp", "before_epoch.gamma=1", 1.0),
    ],
)
def test_settings_reach_their_role(name, setting, value):
    role, field = setting.split("=")[0].split(".")
    assert getattr(getattr(recipe("digits", name, 0, [setting]).method, role), field) == value
