"""`plan.precision=auto`: settled by the machine when a recipe is made, and kept by its run wherever it goes."""

import json

import pytest
import torch
from runs_helper import trained
from torch import nn

import balcal
from balcal import registry
from balcal.core import BalcalError
from balcal.data.loaders import LoaderBatches
from balcal.recipe import Plan
from balcal.runs import Run
from balcal.runtime import devices
from balcal.runtime.checkpoints import Memory
from balcal.runtime.devices import World, best_precision, cpu_has_bf16
from balcal.runtime.progress import Progress
from balcal.training.session import Session

CPU = torch.device("cpu")
AUTO = ["plan.precision=auto"]
X86 = "processor : 0\nflags\t\t: fpu avx512f {}\n\nprocessor : 1\nflags\t\t: fpu {}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86.format("avx512_bf16", "avx512_bf16"), True),
        (X86.format("amx_bf16", "amx_bf16 amx_tile"), True),
        (X86.format("avx512_vnni", "avx512_vnni"), False),
        (X86.format("avx512_bf16", ""), False),
        ("processor : 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor : 0\nFeatures\t: fp asimd svebf16\n", False),
        ("model name : a CPU that has bf16 in its name\n", False),
        ("", False),
    ],
)
def test_what_a_cpu_says_of_itself(text, expected, tmp_path):
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_has_bf16(tmp_path / "cpuinfo") is expected


def test_without_a_description_there_is_none(tmp_path):
    assert cpu_has_bf16(tmp_path / "nothing") is False


@pytest.mark.parametrize("has", [True, False])
def test_each_device_by_what_it_has(has, monkeypatch):
    monkeypatch.setattr(devices, "cpu_has_bf16", lambda: has)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    expected = "bf16" if has else "fp32"
    assert best_precision(CPU) == best_precision(torch.device("cuda")) == expected
    assert best_precision(torch.device("mps")) == "fp32"


def machine(monkeypatch, precision):
    monkeypatch.setattr(registry, "best_precision", lambda device=None: precision)


def test_a_recipe_says_what_it_became(monkeypatch):
    for precision in ("bf16", "fp32"):
        machine(monkeypatch, precision)
        settled = registry.recipe("digits", "balcal", 0, AUTO)
        assert settled.task.plan.precision == precision
        assert settled.address() == registry.recipe("digits", "balcal", 0, [f"plan.precision={precision}"]).address()
        staged = registry.recipe("digits", "tst", 0, AUTO)
        assert staged.parent.task.plan.precision == precision
        asked = [*AUTO, "plan.precision=fp32"]
        assert registry.recipe("digits", "tst", 0, asked).overrides == tuple(asked), "nothing left to settle"
    assert registry.recipe("digits", "balcal").task.plan.precision == "fp32", "as ever, unless somebody asks"


def test_a_run_is_found_on_a_machine_of_another_kind(tmp_path, monkeypatch):
    machine(monkeypatch, "bf16")
    path = trained("tst", tmp_path, settings=[*AUTO, "plan.epochs=1"])
    recorded = json.loads((path / "recipe.json").read_text())
    assert recorded["recipe"]["task"]["plan"]["precision"] == "bf16"
    machine(monkeypatch, "fp32")
    run = Run.at(path)
    assert run.recipe.task.plan.precision == run.recipe.parent.task.plan.precision == "bf16"
    assert run.recipe.address() == f"digits/{path.name}"
    assert registry.recipe("digits", "tst", 0, AUTO).address() != run.recipe.address()


def model():
    return balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(8, 4)), 4, "vanilla")


def test_fit_asks_the_device_of_the_model(monkeypatch):
    asked = []
    monkeypatch.setattr("balcal.training.own_data.best_precision", lambda device: asked.append(device) or "fp32")
    data = [(torch.randn(6, 8), torch.arange(6) % 4)]
    balcal.fit(model(), data, data, epochs=1, quiet=True, precision="auto")
    assert asked == [CPU]


def test_the_loop_never_guesses():
    empty = LoaderBatches([], CPU, 0)
    with pytest.raises(BalcalError, match="settled when a recipe is made"):
        Session(model(), empty, empty, Plan(precision="auto"), 0, Memory(), Progress("", True), World())
