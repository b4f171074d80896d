"""The house keeps its order: imports point one way, and nobody imports what cannot be had."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "balcal"
FLOORS = [
    ["core", "unfinished"],
    ["randomness", "files", "naming", "values", "etf", "balance", "averaging", "stopping"],
    ["claims", "provenance", "settings", "fitting", "betting"],
    ["metrics", "monitoring", "backbones", "data", "devices", "affine", "piecewise", "stores"],
    ["recipe", "tapping", "arrays"],
    ["methods", "tasks"],
    ["registry"],
    ["model", "optimise", "health", "progress", "trackers"],
    ["runs", "features", "underway"],
    ["evaluate", "train", "stages"],
    ["sessions", "posthoc", "analysis"],
    ["arena"],
    ["plots"],
    ["demo", "offline", "checking", "inventory", "beyond", "retrofitting", "shipping", "adapters"],
    ["report", "paper", "printing"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in FLOOR, f"say in FLOORS where `{room}` belongs"
    for name in imports(path):
        assert not name.startswith("torchvision")
        if name.startswith("balcal.") and (other := name.split(".")[1]) != room and other != "__version__":
            assert FLOOR[other] < FLOOR[room], f"{room} may not import {other}"


OPTIONAL = ["onnx", "onnxruntime", "onnxscript", "lightning", "pytorch_lightning", "transformers", "accelerate", "timm"]


def test_no_name_of_ours_brings_an_optional_library():
    probe = "import sys, balcal\nfor name in balcal.__all__: getattr(balcal, name)\n"
    probe += f"found = set({OPTIONAL}) & set(sys.modules)\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_loop_knows_no_method_by_name():
    loop = (SOURCE / "train.py").read_text()
    for word in ("methods", "gamma", "beta", "Balanced", "temperature"):
        assert word not in loop
    assert not any("methods" in name for name in imports(SOURCE / "train.py"))
