"""The house keeps its order: imports point one way, and nobody imports what cannot be had."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "balcal"
FLOORS = [  # bottom to top, as in docs/walk.md
    ["core"],
    ["runtime"],
    ["metrics", "backbones"],
    ["decisions"],
    ["recipe"],
    ["data"],
    ["model"],
    ["methods", "tasks"],
    ["registry"],
    ["build"],
    ["runs"],
    ["evaluation"],
    ["training", "analysis"],
    ["arena"],
    ["plots"],
    ["report", "paper", "deploy"],
    ["posthoc"],
    ["adapters"],
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
    loop = (SOURCE / "training" / "loop.py").read_text()
    for word in ("methods", "gamma", "beta", "Balanced", "temperature"):
        assert word not in loop
    assert not any("methods" in name for name in imports(SOURCE / "training" / "loop.py"))


def test_the_hall_is_clear():
    """What a newcomer sees first: few modules beside the packages, and no file too long to read at one sitting."""
    hall = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert hall <= {"core", "recipe", "model", "registry", "build", "runs", "posthoc"}
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert not {str(path): length for path, length in lengths.items() if length > 300}
    assert len(lengths) <= 240


@pytest.mark.parametrize(("module", "most"), [("balcal.model", 12), ("balcal.training.loop", 45)])
def test_a_part_brings_little_else(module, most):
    probe = f"import sys, {module}\nours = [n for n in sys.modules if n.partition('.')[0] == 'balcal']\n"
    probe += f"assert len(ours) <= {most}, sorted(ours)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tests_have_the_folders_of_the_source():
    tests = Path(__file__).parent
    apart = {"helpers", "golden", "system", "fuzz"}
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert {str(f) for f in folders if f.parts and f.parts[0] not in apart and not (SOURCE / f).is_dir()} == set()
    for path in tests.rglob("*.py"):
        assert not [name for name in imports(path) if name.startswith("test_")], f"{path} imports a test file"
